"""TF-IDF vectors of a graph's variants over nodes and edges at three grains. Contract §4 (similar).

To weigh every feature again takes seconds where there are many variants, and sealing makes versions all the
time. So weights outlast a version until a twentieth of the sessions has come or gone, or a rebuild; variants
that are added in between get the same weights.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from recorder.memory.graph.inverted_index import Floats, Ints
from recorder.memory.queries.columns import GraphColumns

#: Least weight of a feature: what every session has still counts a little.
_LEAST_IDF = 0.05
#: Weights are computed again when more than this share of their sessions was added or removed since.
_MAX_CHANGED = 0.05


@dataclass(frozen=True, slots=True)
class TfidfVectors:
    """Weighted features of variants, as a sparse matrix of rows of length 1."""

    #: Version that the weights are of, and its number of sessions.
    version: int
    sessions: int
    #: Variant of each line of the matrix, and the line of each variant or -1.
    variants: Ints
    line_of: Ints
    matrix: Any
    #: The features by gram, ascending, each with its column; and the weight of each column.
    grams: Ints
    column_of: Ints
    idf: Floats


def tfidf_vectors(columns: GraphColumns) -> TfidfVectors:
    """Return the vectors of all variants that sessions take, and maybe more; weights may be a little older.

    A caller waits while another one makes them, whichever version they are for.
    """
    lasting = columns.lasting
    with lasting.lock:
        kept: TfidfVectors | None = lasting.made.get("bags")
        bags = _weighed(columns) if kept is None or _is_outdated(kept, columns) else _extended(kept, columns)
        lasting.made["bags"] = bags
    return bags


def _is_outdated(bags: TfidfVectors, columns: GraphColumns) -> bool:
    came = columns.added > bags.version
    gone = (columns.removed > bags.version) & (columns.removed <= columns.version)
    return bool(np.count_nonzero(came | gone) > _MAX_CHANGED * bags.sessions)


def _weighed(columns: GraphColumns) -> TfidfVectors:
    """TfidfVectors of all variants that sessions take, by weights of now."""
    sessions = np.bincount(columns.variant[columns.current()], minlength=len(columns.variant_path))
    variants = np.flatnonzero(sessions)
    line_of = _lines(variants, len(sessions))
    owners, grams = _grams(columns, line_of)
    distinct, features = np.unique(grams, return_inverse=True)
    owners, features, tf = _counted(owners, features, len(distinct))
    found_in = np.bincount(features, weights=sessions[variants][owners], minlength=len(distinct))
    idf = _idf(found_in.astype(np.float64), int(sessions.sum()))
    return TfidfVectors(
        version=columns.version,
        sessions=int(sessions.sum()),
        variants=variants,
        line_of=line_of,
        matrix=_matrix([_parts(owners, features, tf, idf, len(variants))], len(idf)),
        grams=distinct,
        column_of=np.arange(len(distinct)),
        idf=idf,
    )


def _extended(bags: TfidfVectors, columns: GraphColumns) -> TfidfVectors:
    """Return the vectors with a line for each new variant; features that are new in it weigh the most."""
    known = np.full(max(len(columns.variant_path), len(bags.line_of)), -1, dtype=np.int64)
    known[: len(bags.line_of)] = bags.line_of
    taken = np.unique(columns.variant[columns.current()])
    variants = taken[known[taken] < 0]
    if not len(variants):
        return replace(bags, line_of=known)
    owners, grams = _grams(columns, _lines(variants, len(columns.variant_path)))
    unknown = np.setdiff1d(grams, bags.grams)
    all_grams = np.concatenate([bags.grams, unknown])
    ascending = np.argsort(all_grams)
    # Columns of the matrix stay, so new features come behind, wherever their grams are.
    distinct = all_grams[ascending]
    column_of = np.concatenate([bags.column_of, len(bags.grams) + np.arange(len(unknown))])[ascending]
    idf = np.concatenate([bags.idf, _idf(np.zeros(len(unknown)), bags.sessions)])
    features = column_of[np.searchsorted(distinct, grams)]
    counted = _counted(owners, features, len(idf))
    known[variants] = len(bags.variants) + np.arange(len(variants))
    kept = (bags.matrix.data, bags.matrix.indices, bags.matrix.indptr)
    return replace(
        bags,
        variants=np.concatenate([bags.variants, variants]),
        line_of=known,
        matrix=_matrix([kept, _parts(*counted, idf, len(variants))], len(idf)),
        grams=distinct,
        column_of=column_of,
        idf=idf,
    )


def _lines(variants: Ints, count: int) -> Ints:
    lines = np.full(count, -1, dtype=np.int64)
    lines[variants] = np.arange(len(variants))
    return lines


def _idf(found_in: Floats, sessions: int) -> Floats:
    idf: Floats = np.maximum(np.log((1 + sessions) / (1 + found_in)), _LEAST_IDF)
    return idf


def _counted(owners: Ints, features: Ints, width: int) -> tuple[Ints, Ints, Ints]:
    """Each feature of each line once, by line, and how often it has it."""
    pairs, tf = np.unique(owners * max(width, 1) + features, return_counts=True)
    owners, features = np.divmod(pairs, max(width, 1))
    return owners, features, tf


def _parts(owners: Ints, features: Ints, tf: Ints, idf: Floats, count: int) -> tuple[Floats, Ints, Ints]:
    """Values, columns and offsets of some lines of a sparse matrix."""
    weights = (1 + np.log(tf)) * idf[features]
    norms = np.sqrt(np.bincount(owners, weights=weights**2, minlength=count))
    return weights / norms[owners], features, np.searchsorted(owners, np.arange(count + 1))


def _matrix(parts: list[tuple[Floats, Ints, Ints]], width: int) -> Any:
    """Return a sparse matrix of these lines, one part below the other."""
    # Not at the top: what only records sessions need not load it.
    from scipy.sparse import csr_array

    starts = np.zeros(1, dtype=np.int64)
    for _, _, offsets in parts:
        starts = np.concatenate([starts, starts[-1] + offsets[1:].astype(np.int64)])
    values = np.concatenate([values for values, _, _ in parts])
    places = np.concatenate([places for _, places, _ in parts])
    return csr_array((values, places, starts), shape=(len(starts) - 1, max(width, 1)))


def _grams(columns: GraphColumns, line_of: Ints) -> tuple[Ints, Ints]:
    """Nodes and edges of the variants that have a line, at each grain; runs of equal values count once.

    Returns:
        The line of each, and the gram: grain, first and second value packed into one number.
    """
    owners = line_of[np.repeat(np.arange(len(line_of)), np.diff(columns.variant_start))]
    nodes = columns.variant_nodes[owners >= 0]
    owners = owners[owners >= 0]
    # By first occurrence, so that nodes that come later change no number.
    numbers: dict[int, int] = {}
    acts = np.array([numbers.setdefault(node.act, len(numbers)) for node in columns.nodes], dtype=np.int64)
    screens = np.array([node.screen for node in columns.nodes], dtype=np.int64)
    grain_grams = [
        _grain(owners, values, grain) for grain, values in enumerate((screens[nodes], acts[nodes], nodes))
    ]
    return np.concatenate([lines for lines, _ in grain_grams]), np.concatenate(
        [grams for _, grams in grain_grams]
    )


def _grain(owners: Ints, values: Ints, grain: int) -> tuple[Ints, Ints]:
    begins = np.ones(len(values), dtype=np.bool_)
    begins[1:] = (owners[1:] != owners[:-1]) | (values[1:] != values[:-1])
    owners, values = owners[begins], values[begins]
    together = owners[1:] == owners[:-1]
    head = np.int64(grain) << 60
    ones = head | (values + 1) << 30
    twos = head | (values[:-1][together] + 1) << 30 | (values[1:][together] + 1)
    return np.concatenate([owners, owners[1:][together]]), np.concatenate([ones, twos])

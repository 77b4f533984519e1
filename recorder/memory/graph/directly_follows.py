"""Directly-follows graph, counted from sessions or from an event log: edges, variants, nodes and times.

Spec §2.6.

`count_directly_follows_graph` counts sessions that are walks through numbered nodes; the views of a memory
graph use it. `aggregate_log` makes such walks of the rows of an event log, in any order, and uses it too; the
event-log commands call that. The terms are those of van der Aalst, Process Mining (2016). Pure: no database.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from recorder.memory.graph.arrays import Ints, sort_distinct

#: Outcomes that a graph counts, each by its index; sessions with another one or none are in no count.
OUTCOMES = ("success", "error", "abandoned")
SUCCESS = OUTCOMES.index("success")

_UNITS_PER_MS = {"ms": 1, "us": 1_000, "ns": 1_000_000}
#: Bits for time and row number in the numbers that are sorted, below the hash of the case.
_LOW_BITS = 64


@dataclass(frozen=True, slots=True)
class Crossings:
    """Every step of every variant from one node to the next, and the distinct edges among them.

    A variant of n nodes has n + 1 crossings: into its first node, between nodes, and out of its last one. The
    number of nodes represents the outside: the source of the first crossing and the target of the last one.
    """

    #: Variant, source and target of each crossing, and the number of its edge.
    variant: Ints
    source: Ints
    target: Ints
    edge: Ints
    #: Ends of each distinct edge.
    edge_source: Ints
    edge_target: Ints
    #: First crossing of each variant.
    starts: Ints


def list_variant_crossings(nodes: Ints, starts: Ints, node_count: int) -> Crossings:
    """Return the crossings of variants.

    Args:
        nodes: the node numbers of all variants, one variant after the other.
        starts: offsets; variant v is `nodes[starts[v]:starts[v + 1]]`.
        node_count: number of nodes of the graph.
    """
    lengths = np.diff(starts)
    first = starts[:-1] + np.arange(len(lengths))
    total = len(nodes) + len(lengths)
    source = np.full(total, node_count, dtype=np.int64)
    target = np.full(total, node_count, dtype=np.int64)
    is_first, is_last = np.zeros(total, dtype=np.bool_), np.zeros(total, dtype=np.bool_)
    is_first[first] = True
    is_last[first + lengths] = True
    source[~is_first] = nodes
    target[~is_last] = nodes
    keys, edge = np.unique(source * (node_count + 1) + target, return_inverse=True)
    edge_source, edge_target = np.divmod(keys, node_count + 1)
    variant = np.repeat(np.arange(len(lengths)), lengths + 1)
    return Crossings(variant, source, target, edge, edge_source, edge_target, first)


@dataclass(frozen=True, slots=True)
class Walks:
    """Sessions as walks through numbered nodes; sessions of one variant share the sequence of nodes."""

    node_count: int
    #: Nodes of variant v: `nodes[starts[v]:starts[v + 1]]`.
    nodes: Ints
    starts: Ints
    #: Variant and outcome (0 to `outcome_count` - 1) of each session.
    variant: Ints
    outcome: Ints
    outcome_count: int
    #: Times of the crossings of all sessions, one session after the other, not negative.
    gaps: Ints


@dataclass(frozen=True, slots=True)
class GraphCounts:
    """Counts of a graph; tables by outcome have a row for each thing and a column for each outcome."""

    #: Sessions by outcome.
    variants: Ints
    nodes: Ints
    edges: Ints
    #: Number of times that sessions entered each node.
    visits: Ints
    #: Ends of each edge; the number of nodes represents the outside of a session.
    source: Ints
    target: Ints
    #: Number of crossings of each edge, the exact median of their times (of an even number the mean of the
    #: two in the middle, rounded down) and the sum.
    crossings: Ints
    median: Ints
    total: Ints


def count_directly_follows_graph(walks: Walks) -> GraphCounts:
    """Count variants, nodes and edges of sessions.

    Structure is counted once per variant and weighted with its sessions; times are counted per session.
    """
    variant_count, edges = (
        len(walks.starts) - 1,
        list_variant_crossings(walks.nodes, walks.starts, walks.node_count),
    )
    cells = np.bincount(
        walks.variant * walks.outcome_count + walks.outcome, minlength=variant_count * walks.outcome_count
    )
    variants = cells.reshape(variant_count, walks.outcome_count).astype(np.int64)
    sessions = variants.sum(axis=1)
    owner = np.repeat(np.arange(variant_count), np.diff(walks.starts))
    visits = np.bincount(walks.nodes, weights=sessions[owner], minlength=walks.node_count)
    edge_count = len(edges.edge_source)
    crossings = np.bincount(edges.edge, weights=sessions[edges.variant], minlength=edge_count)
    crossings = crossings.astype(np.int64)
    crossed = edges.edge[list_ranges(edges.starts[walks.variant], np.diff(walks.starts)[walks.variant] + 1)]
    median, total = _summarize_times(crossed, walks.gaps, crossings)
    return GraphCounts(
        variants=variants,
        nodes=_count_sessions_by_outcome(walks.nodes, owner, variants, walks.node_count),
        edges=_count_sessions_by_outcome(edges.edge, edges.variant, variants, edge_count),
        visits=visits.astype(np.int64),
        source=edges.edge_source,
        target=edges.edge_target,
        crossings=crossings,
        median=median,
        total=total,
    )


def list_ranges(starts: Ints, lengths: Ints) -> Ints:
    """Return the numbers start, start + 1, … of each range, one range after the other."""
    offsets = starts - (np.cumsum(lengths) - lengths)
    return np.repeat(offsets, lengths) + np.arange(int(lengths.sum()))


def _count_sessions_by_outcome(values: Ints, variant: Ints, variants: Ints, count: int) -> Ints:
    """Return by outcome the sessions that met each of `count` values at least once."""
    pairs = sort_distinct(variant * np.int64(count) + values)
    variant, values = np.divmod(pairs, np.int64(max(count, 1)))
    columns = [np.bincount(values, weights=by_outcome[variant], minlength=count) for by_outcome in variants.T]
    return np.stack(columns, axis=1).astype(np.int64)


def _summarize_times(edge: Ints, gaps: Ints, crossings: Ints) -> tuple[Ints, Ints]:
    """Return the median and the sum of the times of each edge; every edge has at least one crossing."""
    if not len(crossings):
        return crossings, crossings
    bits = int(gaps.max()).bit_length()
    if bits + len(crossings).bit_length() < 64:  # sorting one integer is faster than sorting by two columns
        ordered = np.sort((edge << bits) | gaps) & ((1 << bits) - 1)
    else:
        ordered = gaps[np.lexsort((gaps, edge))]
    starts = np.cumsum(crossings) - crossings
    low, high = ordered[starts + (crossings - 1) // 2], ordered[starts + crossings // 2]
    return low + (high - low) // 2, np.add.reduceat(ordered, starts)


@dataclass(frozen=True, slots=True)
class LogAggregate:
    """Nodes, edges, variants and sessions of an event log."""

    #: label, visits, sessions (that visit it at least once); most visited first.
    nodes: pl.DataFrame
    #: source, target, n, median_ms, sum_ms, from entering the source to entering the target. The source is
    #: null where sessions begin, the target where they end. Most frequent first.
    edges: pl.DataFrame
    #: variant (its number), sequence (list of labels), n, a count for each of `OUTCOMES`,
    #: median_duration_ms. Most frequent first.
    variants: pl.DataFrame
    #: case, variant, start (as in the log), duration_ms, outcome; the order does not depend on that of the
    #: rows.
    sessions: pl.DataFrame


def aggregate_log(
    rows: pl.DataFrame, outcomes: pl.DataFrame | None = None, *, collapse: bool = True
) -> LogAggregate:
    """Return nodes, edges, variants and sessions of an event log.

    Args:
        rows: case (string), activity (string), time (datetime, or int64 in ms), in any order. Rows of one
            case and one time keep their order.
        outcomes: case (string), outcome (string or null), each case once.
        collapse: whether equal activities in a row count once.

    Raises:
        ValueError: if a case, an activity or a time is null.
    """
    if any(rows[name].null_count() for name in ("case", "activity", "time")):
        raise ValueError("Every row of a log has a case, an activity and a time.")
    steps, sessions = _sort_directly_follows_steps(rows)
    if collapse:
        steps = steps.collapsed()
    if outcomes is None:
        sessions = sessions.with_columns(outcome=pl.lit(None, pl.String))
    else:
        sessions = sessions.join(outcomes, on="case", how="left", maintain_order="left")
    variants, numbers = _count_directly_follows_variants(steps, sessions)
    counts = count_directly_follows_graph(_make_session_walks(steps, sessions, variants, numbers))
    return LogAggregate(
        nodes=_describe_graph_nodes(counts, steps.labels),
        edges=_describe_graph_edges(counts, steps),
        variants=_describe_variants(counts, variants, steps.labels),
        sessions=sessions.select("case", pl.Series("variant", numbers), "start", "duration_ms", "outcome"),
    )


@dataclass(frozen=True, slots=True)
class _DirectlyFollowsSteps:
    """The steps of all sessions of a log, one session after the other."""

    labels: pl.Series
    #: Number of each step's label, and its time in units of which `per_ms` are a millisecond.
    codes: npt.NDArray[np.uint32]
    times: Ints
    per_ms: int
    #: Index of each session's first step.
    starts: Ints

    @property
    def lengths(self) -> Ints:
        """Number of steps of each session."""
        return np.diff(np.append(self.starts, len(self.codes)))

    def collapsed(self) -> "_DirectlyFollowsSteps":
        """Return the steps without those that repeat the step before."""
        is_kept = np.ones(len(self.codes), dtype=np.bool_)
        np.not_equal(self.codes[1:], self.codes[:-1], out=is_kept[1:])
        is_kept[self.starts] = True
        starts = np.cumsum(is_kept)[self.starts] - 1
        return _DirectlyFollowsSteps(
            self.labels, self.codes[is_kept], self.times[is_kept], self.per_ms, starts
        )


def _sort_directly_follows_steps(rows: pl.DataFrame) -> tuple[_DirectlyFollowsSteps, pl.DataFrame]:
    """Return the rows in order, and a row for each session: case, start, duration_ms."""
    order = _sort_directly_follows_rows(rows)
    hashes = rows["case"].hash().gather(order).to_numpy()
    time = rows["time"]
    # Categories for this log alone: those that polars shares would keep the labels of every log for ever.
    coded = rows["activity"].cast(pl.Categorical(pl.Categories.random()))
    codes = coded.to_physical()
    steps = _DirectlyFollowsSteps(
        labels=coded.unique().to_frame().sort(pl.col("activity").to_physical())["activity"].cast(pl.String),
        codes=codes.gather(order).to_numpy(),
        times=time.to_physical().cast(pl.Int64).gather(order).to_numpy(),
        per_ms=_UNITS_PER_MS[time.dtype.time_unit] if isinstance(time.dtype, pl.Datetime) else 1,
        starts=np.flatnonzero(np.append([True], hashes[1:] != hashes[:-1])[: len(hashes)]),
    )
    lasts = steps.starts + steps.lengths - 1
    durations = (steps.times[lasts] - steps.times[steps.starts]) // steps.per_ms
    sessions = rows.select("case", start="time")[order[steps.starts]]
    return steps, sessions.with_columns(pl.Series("duration_ms", durations, dtype=pl.Int64))


def _sort_directly_follows_rows(rows: pl.DataFrame) -> Ints:
    """Return the indexes of the rows by case, time and index.

    One sort of 128-bit numbers made of the hash of the case, the time and the index: three times as fast as a
    sort by the columns. Two cases of one hash would be taken for one; of a million cases, that happens in one
    log of thirty million.
    """
    index_bits = max(1, rows.height - 1).bit_length()
    time = rows["time"].to_physical().cast(pl.Int64)
    first, last = (0, 0) if time.is_empty() else (time.to_numpy().min(), time.to_numpy().max())
    if int(last - first).bit_length() + index_bits > _LOW_BITS:
        time, first = time.rank("dense").cast(pl.Int64), 0
    late = (pl.lit(time) - int(first)).cast(pl.UInt64) * (1 << index_bits)
    low = late + pl.int_range(pl.len(), dtype=pl.UInt64)
    high = pl.col("case").hash().reinterpret(signed=True).cast(pl.Int128) * (1 << _LOW_BITS)
    ordered = rows.select((high + low.cast(pl.Int128)).sort().cast(pl.UInt64, wrap_numerical=True))
    indexes: Ints = (ordered.to_series().to_numpy() & np.uint64((1 << index_bits) - 1)).astype(np.int64)
    return indexes


def _count_directly_follows_variants(
    steps: _DirectlyFollowsSteps, sessions: pl.DataFrame
) -> tuple[pl.DataFrame, Ints]:
    """Return the distinct sequences of codes, most frequent first, and the variant of each session."""
    offsets = pa.array(np.append(steps.starts, len(steps.codes)))
    sequences = pl.Series(pa.LargeListArray.from_arrays(offsets, pa.array(steps.codes)))
    variants = (
        sessions.with_columns(sequence=sequences, session=pl.int_range(pl.len()))
        .group_by("sequence")
        .agg(
            pl.col("duration_ms").median().floor().cast(pl.Int64).alias("median_duration_ms"),
            pl.col("session"),
        )
        .sort(-pl.col("session").list.len().cast(pl.Int64), pl.col("session").list.first())
    )
    numbers = np.zeros(sessions.height, dtype=np.int64)
    sizes = variants["session"].list.len().to_numpy()
    numbers[variants["session"].explode().to_numpy()] = np.repeat(np.arange(len(variants)), sizes)
    return variants.drop("session"), numbers


def _make_session_walks(
    steps: _DirectlyFollowsSteps, sessions: pl.DataFrame, variants: pl.DataFrame, numbers: Ints
) -> Walks:
    """Return the sessions as walks; entering the first step and leaving the last one take no time."""
    gaps = np.zeros(len(steps.codes) + sessions.height, dtype=np.int64)
    between = np.diff(steps.times, prepend=0)
    between[steps.starts] = 0
    gaps[np.arange(len(steps.codes)) + np.repeat(np.arange(sessions.height), steps.lengths)] = between
    outcome = sessions["outcome"].replace_strict(
        OUTCOMES, range(len(OUTCOMES)), default=len(OUTCOMES), return_dtype=pl.Int64
    )
    lengths = variants["sequence"].list.len().to_numpy()
    return Walks(
        node_count=len(steps.labels),
        nodes=variants["sequence"].explode(empty_as_null=False).to_numpy().astype(np.int64),
        starts=np.append(0, np.cumsum(lengths, dtype=np.int64)),
        variant=numbers,
        outcome=outcome.to_numpy(),
        outcome_count=len(OUTCOMES) + 1,
        gaps=gaps,
    )


def _describe_graph_nodes(counts: GraphCounts, labels: pl.Series) -> pl.DataFrame:
    nodes = {"label": labels, "visits": counts.visits, "sessions": counts.nodes.sum(axis=1)}
    return pl.DataFrame(nodes).sort(-pl.col("visits"), "label")


def _describe_graph_edges(counts: GraphCounts, steps: _DirectlyFollowsSteps) -> pl.DataFrame:
    edges = pl.DataFrame(
        {
            "source": counts.source,
            "target": counts.target,
            "n": counts.crossings,
            "median_ms": counts.median // steps.per_ms,
            "sum_ms": counts.total // steps.per_ms,
        }
    )
    label = pl.lit(steps.labels)
    ends = [label.gather(pl.col(name), null_on_oob=True).alias(name) for name in ("source", "target")]
    return edges.with_columns(ends).sort(-pl.col("n"), "source", "target")


def _describe_variants(counts: GraphCounts, variants: pl.DataFrame, labels: pl.Series) -> pl.DataFrame:
    labelled = pl.element().cat.to(pl.Enum(labels)).cast(pl.String)
    sequences = variants["sequence"].to_frame().select(pl.col("sequence").list.eval(labelled))
    by_outcome = dict(zip(OUTCOMES, counts.variants.T, strict=False))
    return sequences.with_columns(
        n=counts.variants.sum(axis=1), **by_outcome, median_duration_ms=variants["median_duration_ms"]
    ).select(pl.int_range(pl.len()).alias("variant"), pl.all())

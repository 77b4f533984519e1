"""An event log as nodes, edges, variants and sessions, in columns. Spec §2.6.

What process mining calls the directly-follows graph and the trace variants of a log (van der Aalst, Process
Mining, 2016), made at once from rows in any order. Pure: labels in, frames out.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

Ints = npt.NDArray[np.int64]

#: What a session can end with; anything else, or nothing, is counted in none of these.
OUTCOMES = ("success", "error", "abandoned")
_UNITS_PER_MS = {"ms": 1, "us": 1_000, "ns": 1_000_000}
#: Room for time and place in the numbers that are sorted, below the hash of the case.
_LOW_BITS = 64


@dataclass(frozen=True, slots=True)
class LogAggregate:
    """What a log comes to; `aggregate_log` makes it."""

    #: label, visits, sessions (how many visit it at all); most visited first.
    nodes: pl.DataFrame
    #: source, target, n, median_ms, sum_ms, from entering the one to entering the other. The source is null
    #: where sessions begin, the target where they end. Most frequent first.
    edges: pl.DataFrame
    #: variant (its number), sequence (list of labels), n, a count for each of `OUTCOMES`,
    #: median_duration_ms. Most frequent first.
    variants: pl.DataFrame
    #: case, variant, start (as in the log), duration_ms, outcome; in an order that does not hang on that of
    #: the rows.
    sessions: pl.DataFrame


def aggregate_log(
    rows: pl.DataFrame, outcomes: pl.DataFrame | None = None, *, collapse: bool = True
) -> LogAggregate:
    """Nodes, edges, variants and sessions of a log.

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
    walks, sessions = _walks(rows)
    if collapse:
        walks = walks.collapsed()
    if outcomes is None:
        sessions = sessions.with_columns(outcome=pl.lit(None, pl.String))
    else:
        sessions = sessions.join(outcomes, on="case", how="left", maintain_order="left")
    variants, numbers = _variants(walks, sessions)
    return LogAggregate(
        nodes=_nodes(walks, variants),
        edges=_edges(walks),
        variants=_with_sequences(variants, walks.labels),
        sessions=sessions.select("case", pl.Series("variant", numbers), "start", "duration_ms", "outcome"),
    )


@dataclass(frozen=True, slots=True)
class _Walks:
    """The steps of all sessions, one session after the other."""

    labels: pl.Series
    #: Of each step: the place of its label, and its time in units of which `per_ms` are a millisecond.
    codes: npt.NDArray[np.uint32]
    times: Ints
    per_ms: int
    #: Place of each session's first step.
    starts: Ints

    @property
    def lasts(self) -> Ints:
        """Place of each session's last step."""
        return np.append(self.starts[1:], len(self.codes))[: len(self.starts)] - 1

    def collapsed(self) -> "_Walks":
        """The same without the steps that repeat the one before."""
        kept = np.ones(len(self.codes), dtype=np.bool_)
        np.not_equal(self.codes[1:], self.codes[:-1], out=kept[1:])
        kept[self.starts] = True
        starts = np.cumsum(kept)[self.starts] - 1
        return _Walks(self.labels, self.codes[kept], self.times[kept], self.per_ms, starts)


def _walks(rows: pl.DataFrame) -> tuple[_Walks, pl.DataFrame]:
    """The rows in order, and a row for each session: case, start, duration_ms."""
    order = _order(rows)
    hashes = rows["case"].hash().gather(order).to_numpy()
    time = rows["time"]
    # Categories of its own: those that polars shares would keep the labels of every log for ever.
    coded = rows["activity"].cast(pl.Categorical(pl.Categories.random()))
    codes = coded.to_physical()
    walks = _Walks(
        labels=coded.unique().to_frame().sort(pl.col("activity").to_physical())["activity"].cast(pl.String),
        codes=codes.gather(order).to_numpy(),
        times=time.to_physical().cast(pl.Int64).gather(order).to_numpy(),
        per_ms=_UNITS_PER_MS[time.dtype.time_unit] if isinstance(time.dtype, pl.Datetime) else 1,
        starts=np.flatnonzero(np.append([True], hashes[1:] != hashes[:-1])[: len(hashes)]),
    )
    lasted = (walks.times[walks.lasts] - walks.times[walks.starts]) // walks.per_ms
    sessions = rows.select("case", start="time")[order[walks.starts]]
    return walks, sessions.with_columns(pl.Series("duration_ms", lasted, dtype=pl.Int64))


def _order(rows: pl.DataFrame) -> Ints:
    """The places of the rows by case, time and place.

    One sort of 128-bit numbers made of the hash of the case, the time and the place: three times as fast as a
    sort by the columns. Two cases of one hash would be taken for one; of a million cases, that happens in one
    log of thirty million.
    """
    place_bits = max(1, rows.height - 1).bit_length()
    time = rows["time"].to_physical().cast(pl.Int64)
    first, last = (0, 0) if time.is_empty() else (time.to_numpy().min(), time.to_numpy().max())
    if int(last - first).bit_length() + place_bits > _LOW_BITS:
        time, first = time.rank("dense").cast(pl.Int64), 0
    late = (pl.lit(time) - int(first)).cast(pl.UInt64) * (1 << place_bits)
    low = late + pl.int_range(pl.len(), dtype=pl.UInt64)
    high = pl.col("case").hash().reinterpret(signed=True).cast(pl.Int128) * (1 << _LOW_BITS)
    ordered = rows.select((high + low.cast(pl.Int128)).sort().cast(pl.UInt64, wrap_numerical=True))
    places: Ints = (ordered.to_series().to_numpy() & np.uint64((1 << place_bits) - 1)).astype(np.int64)
    return places


def _variants(walks: _Walks, sessions: pl.DataFrame) -> tuple[pl.DataFrame, Ints]:
    """Sessions of one sequence of codes together, and the number of each session's variant."""
    offsets = pa.array(np.append(walks.starts, len(walks.codes)))
    sequences = pl.Series(pa.LargeListArray.from_arrays(offsets, pa.array(walks.codes)))
    variants = (
        sessions.with_columns(sequence=sequences, place=pl.int_range(pl.len()))
        .group_by("sequence")
        .agg(
            pl.len().cast(pl.Int64).alias("n"),
            *((pl.col("outcome") == outcome).sum().cast(pl.Int64).alias(outcome) for outcome in OUTCOMES),
            pl.col("duration_ms").median().floor().cast(pl.Int64).alias("median_duration_ms"),
            pl.col("place"),
        )
        .sort(-pl.col("n"), pl.col("place").list.first())
    )
    numbers = np.zeros(sessions.height, dtype=np.int64)
    numbers[variants["place"].explode().to_numpy()] = np.repeat(np.arange(len(variants)), variants["n"])
    return variants.drop("place"), numbers


def _with_sequences(variants: pl.DataFrame, labels: pl.Series) -> pl.DataFrame:
    """The variants numbered, their codes as labels."""
    labelled = pl.element().cat.to(pl.Enum(labels)).cast(pl.String)
    return variants.with_columns(
        variant=pl.int_range(pl.len()), sequence=pl.col("sequence").list.eval(labelled)
    ).select("variant", pl.exclude("variant"))


def _nodes(walks: _Walks, variants: pl.DataFrame) -> pl.DataFrame:
    visits = np.bincount(walks.codes, minlength=len(walks.labels))
    nodes = pl.DataFrame({"label": walks.labels, "visits": visits})
    sessions = (
        variants.select(pl.col("sequence").list.unique(), "n")
        .explode("sequence")
        .group_by("sequence")
        .agg(sessions=pl.col("n").sum())
        .sort("sequence")
    )
    return nodes.with_columns(sessions["sessions"]).sort(-pl.col("visits"), "label")


def _edges(walks: _Walks) -> pl.DataFrame:
    """Every crossing as one number (source times width plus target), counted."""
    outside = len(walks.labels)
    width = outside + 1
    crossings = walks.codes[:-1].astype(np.int64) * width + walks.codes[1:]
    # From one session into the next: no crossing.
    nowhere = outside * width + outside
    crossings[walks.starts[1:] - 1] = nowhere
    between = _counted(crossings, np.diff(walks.times), walks.per_ms).filter(pl.col("crossing") != nowhere)
    into = _counted(outside * width + walks.codes[walks.starts].astype(np.int64))
    out = _counted(walks.codes[walks.lasts].astype(np.int64) * width + outside)
    labels = pl.lit(walks.labels)
    return (
        pl.concat([between, into, out])
        .select(
            labels.gather(pl.col("crossing") // width, null_on_oob=True).alias("source"),
            labels.gather(pl.col("crossing") % width, null_on_oob=True).alias("target"),
            pl.exclude("crossing"),
        )
        .sort(-pl.col("n"), "source", "target")
    )


def _counted(crossings: Ints, gaps: Ints | None = None, per_ms: int = 1) -> pl.DataFrame:
    """Number, median and sum of each crossing; without gaps it takes no time."""
    table = pl.DataFrame({"crossing": crossings, "gap": np.zeros_like(crossings) if gaps is None else gaps})
    return table.group_by("crossing").agg(
        n=pl.len().cast(pl.Int64),
        median_ms=(pl.col("gap").median() / per_ms).floor().cast(pl.Int64),
        sum_ms=pl.col("gap").sum() // per_ms,
    )

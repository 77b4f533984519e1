"""The aggregate of a log against a slow count in plain Python. Spec §2.6."""

import random
import statistics
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from itertools import groupby, pairwise
from typing import Any

import polars as pl
import pytest

from recorder.memory.graph.directly_follows import OUTCOMES, LogAggregate, aggregate_log

START = datetime(2026, 3, 2, tzinfo=UTC)


def random_rows(seed: int, *, cases: int = 60, labels: int = 6) -> list[tuple[str, str, int]]:
    """Return the rows of a log in random order, with repeats; no two of a case at one time."""
    dice = random.Random(seed)
    rows = []
    for case in range(cases):
        times = sorted(dice.sample(range(100_000), dice.randint(1, 12)))
        rows += [(f"case {case}", f"label {dice.randrange(labels)}", time) for time in times]
    dice.shuffle(rows)
    return rows


def random_outcomes(seed: int, cases: int = 60) -> dict[str, str | None]:
    dice = random.Random(seed)
    return {f"case {case}": dice.choice([*OUTCOMES, None]) for case in range(cases) if case % 7}


def slow_count(rows: list[tuple[str, str, int]], outcomes: dict[str, str | None], collapse: bool) -> Any:
    """Count the same in loops: nodes, edges, variants and sessions as dictionaries."""
    by_case: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for case, label, time in rows:
        by_case[case].append((time, label))
    visits: Counter[str] = Counter()
    visited: Counter[str] = Counter()
    edges: dict[tuple[str | None, str | None], list[int]] = defaultdict(list)
    variants: dict[tuple[str, ...], list[tuple[int, str | None]]] = defaultdict(list)
    sessions = {}
    for case, events in by_case.items():
        steps = sorted(events)
        lasted = steps[-1][0] - steps[0][0]
        if collapse:
            steps = [next(run) for _, run in groupby(steps, key=lambda step: step[1])]
        sequence = tuple(label for _, label in steps)
        visits.update(sequence)
        visited.update(set(sequence))
        edges[None, sequence[0]].append(0)
        edges[sequence[-1], None].append(0)
        for (before, source), (after, target) in pairwise(steps):
            edges[source, target].append(after - before)
        variants[sequence].append((lasted, outcomes.get(case)))
        sessions[case] = (sequence, steps[0][0], lasted, outcomes.get(case))
    return (
        {label: (count, visited[label]) for label, count in visits.items()},
        {edge: (len(gaps), int(statistics.median(gaps)), sum(gaps)) for edge, gaps in edges.items()},
        {
            sequence: (
                len(ends),
                *(sum(outcome == name for _, outcome in ends) for name in OUTCOMES),
                int(statistics.median(lasted for lasted, _ in ends)),
            )
            for sequence, ends in variants.items()
        },
        sessions,
    )


def as_dictionaries(log: LogAggregate) -> Any:
    sequences = [tuple(sequence) for sequence in log.variants["sequence"].to_list()]
    return (
        {label: (visits, sessions) for label, visits, sessions in log.nodes.rows()},
        {(source, target): tuple(rest) for source, target, *rest in log.edges.rows()},
        {tuple(sequence): tuple(rest) for _, sequence, *rest in log.variants.rows()},
        {case: (sequences[variant], *rest) for case, variant, *rest in log.sessions.rows()},
    )


def as_frame(rows: list[tuple[str, str, int]]) -> pl.DataFrame:
    schema = {"case": pl.String, "activity": pl.String, "time": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def outcome_frame(outcomes: dict[str, str | None]) -> pl.DataFrame:
    return pl.DataFrame(
        list(outcomes.items()), schema={"case": pl.String, "outcome": pl.String}, orient="row"
    )


@pytest.mark.parametrize("collapse", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_everything_is_what_a_slow_count_finds(seed: int, collapse: bool) -> None:
    rows, outcomes = random_rows(seed, labels=1 + seed), random_outcomes(seed)
    log = aggregate_log(as_frame(rows), outcome_frame(outcomes), collapse=collapse)
    assert as_dictionaries(log) == slow_count(rows, outcomes, collapse)


def test_the_order_of_the_rows_changes_nothing() -> None:
    rows = as_frame(random_rows(1))
    first, second = (aggregate_log(rows.sample(fraction=1, shuffle=True, seed=seed)) for seed in (1, 2))
    assert first.nodes.equals(second.nodes)
    assert first.edges.equals(second.edges)
    assert first.variants.equals(second.variants)
    assert first.sessions.equals(second.sessions)


def test_rows_of_one_time_keep_their_order() -> None:
    rows = [("a", label, 5) for label in "zyxwv"] + [("b", "z", 5)]
    log = aggregate_log(as_frame(rows))
    assert sorted(log.variants["sequence"].to_list()) == [["z"], ["z", "y", "x", "w", "v"]]


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_times_may_come_in_any_unit(unit: Any) -> None:
    rows = as_frame(random_rows(3))
    dated = rows.with_columns(
        (pl.lit(START) + pl.duration(milliseconds="time")).dt.cast_time_unit(unit).alias("time")
    )
    in_ms, in_unit = aggregate_log(rows), aggregate_log(dated)
    assert in_unit.edges.equals(in_ms.edges)
    assert in_unit.variants.equals(in_ms.variants)
    assert in_unit.sessions["start"].min() == START + timedelta(milliseconds=rows["time"].min())  # type: ignore[arg-type]


def test_less_than_a_millisecond_still_tells_the_order() -> None:
    times = [START + timedelta(microseconds=10 * n) for n in range(5)]
    rows = pl.DataFrame({"case": ["a"] * 5, "activity": list("abcde"), "time": times})
    log = aggregate_log(rows.reverse())
    assert log.variants["sequence"].to_list() == [list("abcde")]
    assert log.sessions["duration_ms"].to_list() == [0]


def test_times_may_lie_as_far_apart_as_numbers_go() -> None:
    far = 2**61
    more = [(f"c{n}", "x", n) for n in range(10)]
    log = aggregate_log(as_frame([("a", "x", far), ("a", "y", -far), *more]))
    assert dict(log.edges.filter(pl.col("source") == "y").select("target", "n").rows()) == {"x": 1}


def test_labels_may_be_any_text() -> None:
    labels = ["", " ", "a\0b", "ü" * 300, "null", "\n", "→"]
    rows = [(label, label, 1) for label in labels]
    log = aggregate_log(as_frame(rows))
    assert set(log.nodes["label"]) == set(log.sessions["case"]) == set(labels)


def test_a_log_without_rows_comes_to_nothing() -> None:
    log = aggregate_log(as_frame([]))
    assert [len(frame) for frame in (log.nodes, log.edges, log.variants, log.sessions)] == [0, 0, 0, 0]


@pytest.mark.parametrize("column", ["case", "activity", "time"])
def test_a_row_that_lacks_something_is_refused(column: str) -> None:
    rows = as_frame([("a", "x", 1)]).with_columns(pl.lit(None, as_frame([]).schema[column]).alias(column))
    with pytest.raises(ValueError, match="has a case, an activity and a time"):
        aggregate_log(rows)

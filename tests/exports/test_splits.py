"""To which part of a dataset a session belongs. Spec §4.3 (determinism), contract §5."""

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import recorder
from recorder.exports.planning.selection import split_of_unit
from recorder.models.export_request import SplitRule
from recorder.models.session import SessionRow
from recorder.runtime import Runtime
from tests.support.dataset_readers import Row, rows_in, samples_in, typed
from tests.support.export_runs import export
from tests.support.sealed_sessions import Recording, make_runtime, seal

_HALVES = {"validation": 0.3, "test": 0.3}
_ACTORS = 12


@pytest.fixture(scope="module")
def actors() -> dict[str, str | None]:
    """Return the actor of each session; the last ones have none."""
    return {}


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory, actors: dict[str, str | None]) -> Iterator[Runtime]:
    opened = make_runtime(tmp_path_factory.mktemp("splits"))
    ids = seal(opened, [Recording(frames=[0], events=[(0, "click")]) for _ in range(40)])
    with opened.database.transaction(write=True) as db:
        for number, session_id in enumerate(ids):
            actors[session_id] = f"actor-{number % _ACTORS}" if number < 36 else None
            row = db.get_one(SessionRow, session_id)
            row.actor_id = actors[session_id]
            db.add(row)
    yield opened
    opened.close()


def _parts(rows: list[Row]) -> dict[str, str]:
    """Return the part of each session; a session in two parts fails."""
    values: dict[str, str] = {}
    for row in rows:
        assert values.setdefault(row["session_id"], row["split"]) == row["split"]
    return values


def _exported(runtime: Runtime, by: str, **more: Any) -> Path:
    return export(runtime, **({"format": "jsonl", "split": {"by": by, **_HALVES}} | more))


@pytest.mark.parametrize("format", ["parquet", "webdataset"])
def test_each_file_holds_one_part_which_its_name_gives(runtime: Runtime, format: str) -> None:
    folder = _exported(runtime, "session", format=format)
    opened = recorder.open_export(folder)
    kind = opened.kinds[0]
    rows = (
        rows_in(folder, kind) if kind == "events" else [json.loads(row["json"]) for row in samples_in(folder)]
    )
    parts = _parts(rows)
    for name in ("train", "validation", "test"):
        (file,) = folder.rglob(f"{kind}-{name}-00000-of-00001.*")
        (shard,) = [shard for shard in opened.shards(kind) if folder / shard.path == file]
        assert shard.split == name
        assert shard.sessions == sum(part == name for part in parts.values())
    assert opened.verify().problems == []


def test_by_actor_no_actor_is_in_two_parts(runtime: Runtime, actors: dict[str, str | None]) -> None:
    parts = _parts(rows_in(_exported(runtime, "actor"), "events"))
    of_actor = defaultdict(set)
    for session_id, part in parts.items():
        of_actor[actors[session_id] or session_id].add(part)
    assert {len(item) for item in of_actor.values()} == {1}
    assert set(parts.values()) == {"train", "validation", "test"}


def test_by_session_the_actor_plays_no_role(runtime: Runtime) -> None:
    parts = _parts(rows_in(_exported(runtime, "session"), "events"))
    rule = SplitRule(**_HALVES)
    assert parts == {session_id: split_of_unit(session_id, rule) for session_id in parts}


def test_every_kind_and_format_agrees_on_the_parts(runtime: Runtime) -> None:
    folder = _exported(runtime, "actor")
    samples = samples_in(_exported(runtime, "actor", format="webdataset"))
    frames = [typed(json.loads(sample["json"])) for sample in samples]
    assert _parts(rows_in(folder, "events")) == _parts(rows_in(folder, "frames")) == _parts(frames)


def test_a_session_keeps_its_part_whatever_else_is_in_the_dataset(
    runtime: Runtime, actors: dict[str, str | None]
) -> None:
    whole = _parts(rows_in(_exported(runtime, "actor"), "events"))
    excluded = sorted(actors)[:25]
    fewer = _exported(runtime, "actor", filter={"exclude_session_ids": excluded})
    parts = _parts(rows_in(fewer, "events"))
    assert parts == {session_id: whole[session_id] for session_id in parts}
    assert len(parts) == 15


def test_growing_shares_take_from_the_training_part_alone() -> None:
    units = [f"unit-{number}" for number in range(2_000)]
    small, large = SplitRule(validation=0.1, test=0.1), SplitRule(validation=0.2, test=0.2)
    moved = {(split_of_unit(unit, small), split_of_unit(unit, large)) for unit in units}
    assert {pair for pair in moved if pair[0] != pair[1]} == {("train", "validation"), ("train", "test")}


@pytest.mark.parametrize(("validation", "test"), [(0.0, 0.0), (0.25, 0.25), (0.0, 1.0), (1.0, 0.0)])
def test_parts_have_about_the_shares_that_were_asked_for(validation: float, test: float) -> None:
    rule = SplitRule(validation=validation, test=test)
    results = [split_of_unit(f"unit-{number}", rule) for number in range(2_000)]
    assert results.count("test") / 2_000 == pytest.approx(test, abs=0.03)
    assert results.count("validation") / 2_000 == pytest.approx(validation, abs=0.03)


def test_no_id_of_an_actor_is_in_any_file(runtime: Runtime) -> None:
    folder = _exported(runtime, "actor")
    assert all(b"actor-" not in path.read_bytes() for path in folder.rglob("*") if path.is_file())

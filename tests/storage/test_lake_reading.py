"""Reads of one session from the lake: in order, in batches, with bounded work."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from recorder.storage.lake import Lake
from recorder.storage.lake_merge import SortedSource, merge_sorted_batches
from recorder.storage.lake_schemas import LAYOUTS
from recorder.tenant import Tenant
from tests.storage.test_lake import WORKSPACE, rows

PLACE: dict[str, Any] = {"workflow": "pay", "date": "2026-05-01"}


def read(lake: Lake, session_id: str = "ses_1", **options: Any) -> pa.Table:
    """Return all batches of a session, as one table."""
    batches = list(
        lake.read_session_batches(
            "events", Tenant(WORKSPACE, "live"), **PLACE, session_id=session_id, **options
        )
    )
    return pa.Table.from_batches(batches) if batches else LAYOUTS["events"].schema.empty_table()


def add(lake: Lake, number: int, table: pa.Table) -> None:
    lake.append("events", Tenant(WORKSPACE, "live"), table, lane="lane", number=number)


def test_a_session_is_read_in_order_and_alone(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    add(lake, 1, pa.concat_tables([rows("ses_2"), rows("ses_1", 5_000), rows("ses_1", 4, workflow="ship")]))
    stored = read(lake)
    assert stored["seq"].to_pylist() == list(range(5_000))
    assert set(stored["session_id"].to_pylist()) == {"ses_1"}
    assert stored.schema == LAYOUTS["events"].schema
    assert read(lake, "ses_3").num_rows == 0
    assert read(Lake(str(tmp_path / "empty"))).num_rows == 0


@pytest.mark.parametrize("seed", range(5))
def test_rows_of_several_files_are_merged(tmp_path: Path, seed: int) -> None:
    lake, table = Lake(str(tmp_path)), rows("ses_1", 3_000)
    choose = random.Random(seed)
    files = [choose.randrange(4) if seed else index // 750 for index in range(3_000)]
    for number in range(4):
        mask = pa.array([file == number for file in files])
        add(lake, number + 1, pa.concat_tables([table.filter(mask), rows(f"ses_{number + 2}", 20)]))
    assert read(lake)["seq"].to_pylist() == list(range(3_000))


def test_a_page_begins_behind_a_position(tmp_path: Path) -> None:
    lake, table = Lake(str(tmp_path)), rows("ses_1", 200)
    # Three events at each time, so that the id decides too.
    times = pa.array([seq // 3 for seq in table["seq"].to_pylist()], pa.int64())
    table = table.set_column(table.schema.get_field_index("t_ms"), table.schema.field("t_ms"), times)
    add(lake, 1, table)
    everything = [(row["t_ms"], row["event_id"]) for row in read(lake).to_pylist()]
    assert everything == sorted(everything) and len(everything) == 200
    for index in (0, 1, 2, 57, 198, 199):
        page = read(lake, after=everything[index], limit=7)
        expected = everything[index + 1 : index + 8]
        assert [(row["t_ms"], row["event_id"]) for row in page.to_pylist()] == expected
    assert read(lake, limit=0).num_rows == 0
    assert read(lake, columns=["seq"], limit=2).schema.names == ["seq"]


def test_sources_that_do_not_overlap_are_opened_one_after_the_other() -> None:
    opened: list[int] = []

    def source(start: int) -> SortedSource:
        def batches() -> Any:
            opened.append(start)
            yield pa.record_batch({"t": list(range(start, start + 10))})

        return SortedSource((start,), batches)

    merged = merge_sorted_batches([source(20), source(0), source(10)], ["t"])
    assert next(merged)["t"].to_pylist() == list(range(10)) and opened == [0]
    assert [value for batch in merged for value in batch["t"].to_pylist()] == list(range(10, 30))
    assert opened == [0, 10, 20]

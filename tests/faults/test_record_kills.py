"""kill -9 of a removal of Dagster's records, and of the rewrite of its databases: the next one ends it.

`RECORDER_FAULT_RECORD_KILLS` gives the number of kills on each engine; `make test-faults` does a few. The
moments follow `RECORDER_FAULT_SEED`, which a failure names.
"""

import os
import random
import signal
import time
from pathlib import Path

import dagster as dg

from tests.faults.results import add_result, count_done
from tests.faults.test_export_kills import SEED, lives_of
from tests.pipelines.test_dagster_records import broken, find_word, instance, is_postgresql, run, shown

__all__ = ["instance"]

KILLS = int(os.environ.get("RECORDER_FAULT_RECORD_KILLS", "3"))  # noqa: TID251
_KILLS_OF_ONE = 3
_PATIENCE_S = 60.0


def test_a_killed_removal_of_records_is_ended_by_the_next_one(
    instance: dg.DagsterInstance,
    tmp_path: Path,
) -> None:
    name = f"record kills on {'PostgreSQL' if is_postgresql(instance) else 'SQLite'}"
    done = count_done(name)
    missing = max(KILLS - done, 0)
    chance = random.Random(SEED + done)
    kills, number, whole = 0, 0, 1.0
    with lives_of(tmp_path / "home", "", launcher="records_launcher") as lives:
        while kills < missing:
            number += 1
            run(instance, broken)
            newest = run(instance, shown)
            for left in range(min(missing - kills, _KILLS_OF_ONE), -1, -1):
                life, began = lives.start(""), time.monotonic()
                if lives.ends_within(chance.uniform(0, 1.1 * whole) if left else _PATIENCE_S):
                    whole = time.monotonic() - began
                    break
                assert left, f"seed {SEED}: no removal ends"
                os.kill(life, signal.SIGKILL)
                kills += 1
            assert find_word(instance, tmp_path) == [], f"seed {SEED}"
            assert instance.get_run_ids() == [newest], f"seed {SEED}"
            shown_event = instance.get_latest_materialization_event(dg.AssetKey("shown"))
            assert shown_event is not None and shown_event.asset_materialization is not None
            assert shown_event.asset_materialization.metadata["rows"].value == 3, f"seed {SEED}"
    print(f"{kills} kills, {number} removals, one alone takes {whole:.1f} s")
    add_result(name, kills, seed=SEED, removals=number)

"""kill -9 of the drain run while many dry replays wait: the next run ends each of them, as if undisturbed.

`RECORDER_FAULT_LIVE_KILLS` is how often it is killed. With more than one kill the lease lasts as long as
that of the service. The moments follow `RECORDER_FAULT_SEED`.
"""

import os
import random
import signal
import time
from pathlib import Path

import httpx
from sqlmodel import col, func, select

from examples.webapp.server import run_webapp
from recorder.models.replay import ReplayRow, ReplayStepRow
from recorder.replay_service import replay_drain_run
from tests.faults.replay_losses import AFTER_LEASE_S, assert_no_inputs, list_descendants, wait_until_gone
from tests.faults.results import add_result
from tests.faults.test_export_kills import SEED, lives_of
from tests.support.factories import Caller, running_app
from tests.support.replay_requests import events_of, get_replay, post_replay
from tests.support.two_click_sessions import sealed_run
from tests.support.waiting import wait_for

KILLS = int(os.environ.get("RECORDER_FAULT_LIVE_KILLS", "1"))  # noqa: TID251
LEASE_MS = 3_000 if KILLS == 1 else replay_drain_run.LEASE_MS
#: Replays that wait before a kill.
REPLAYS = 250
SECRET = "typed-by-nobody-77"


def queue_replays(caller: Caller, session_id: str, number: int) -> list[str]:
    """Request replays that differ, so that the result of none is that of another."""
    return [
        post_replay(
            caller,
            session_id,
            inputs={"password": SECRET},
            policy={"thresholds": {"ok": round(0.5 + (number + count) / 100_000, 5)}},
        )["id"]
        for count in range(REPLAYS)
    ]


def count_open(caller: Caller) -> int:
    """Return how many replays have not ended."""
    with caller.service.runtime.database.transaction(write=False) as db:
        return db.exec(
            select(func.count()).select_from(ReplayRow).where(col(ReplayRow.finished_at).is_(None))
        ).one()


def wait_until_open(caller: Caller, count: int) -> None:
    """Wait until so many replays, or fewer, have not ended."""
    wait_for(lambda: count_open(caller) <= count)


def count_steps(caller: Caller) -> dict[str, list[tuple[int, str]]]:
    """Return number and outcome of the steps of each replay."""
    steps: dict[str, list[tuple[int, str]]] = {}
    with caller.service.runtime.database.transaction(write=False) as db:
        for row in db.exec(
            select(ReplayStepRow).order_by(col(ReplayStepRow.replay_id), col(ReplayStepRow.step))
        ):
            steps.setdefault(row.replay_id, []).append((row.step, row.outcome))
    return steps


def test_replays_of_a_killed_drain_run_are_ended_by_the_next_one(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    replay_ids: list[str] = []
    kills, longest_s = 0, 0.0
    with (
        run_webapp("base") as app,
        running_app(tmp_path) as service,
        lives_of(tmp_path, "", launcher="replays_launcher", lease_ms=LEASE_MS) as lives,
    ):
        caller = service.make_caller()
        session_id = sealed_run(caller, url=f"{app.url}/invoices/1042")
        while kills < KILLS:
            replay_ids += queue_replays(caller, session_id, len(replay_ids))
            wanted = chance.randrange(1, REPLAYS // 2)
            life = lives.start("")
            wait_until_open(caller, REPLAYS - wanted)
            started = list_descendants(life)
            os.kill(life, signal.SIGKILL)
            killed_s = time.monotonic()
            is_in_the_middle = count_open(caller) > 0
            wait_until_gone({life, *started})
            if is_in_the_middle:
                kills += 1
                lives.start("")
                assert lives.ends_within(LEASE_MS / 1_000 + AFTER_LEASE_S), f"seed {SEED}"
                longest_s = max(longest_s, time.monotonic() - killed_s)
            assert count_open(caller) == 0, f"seed {SEED}"
        steps = count_steps(caller)
        for replay_id in replay_ids:
            shown = get_replay(caller, replay_id)
            assert (shown["status"], shown["error"]) == ("completed", None), shown
            assert events_of(caller, replay_id) == ["replay.queued", "replay.running", "replay.completed"]
            assert steps[replay_id] == [(1, "matched"), (2, "matched")]
        assert httpx.get(f"{app.url}/calls", trust_env=False).json() == {"calls": []}
        assert_no_inputs(service.runtime, replay_ids, SECRET)
    add_result("drain run kills", kills, seed=SEED, replays=len(replay_ids), longest_s=round(longest_s, 1))

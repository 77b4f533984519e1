"""Claims of guided live replays in Dagster: one at a time, while other live replays go on. Decision 0045."""

import threading
from concurrent.futures import ThreadPoolExecutor

from recorder.live.claimed_replay import claim_live_replay, list_waiting_live_replays
from recorder.models.replay import ReplayRow
from recorder.replay_service.requests.replays import end_replay_as_failed
from tests.api.conftest import caller, service
from tests.live.test_live_work import ask
from tests.support.factories import Caller
from tests.support.replay_requests import get_replay
from tests.support.two_click_sessions import sealed_run

__all__ = ["caller", "service"]


def claim(caller: Caller, *replay_ids: str, has_one_guided: bool = True) -> str | None:
    """Claim one of some replays, as a run in Dagster does; return its id."""
    with caller.service.runtime.database.transaction(write=True) as db:
        claimed = claim_live_replay(db, "run", replay_ids, has_one_guided=has_one_guided)
        return None if claimed is None else claimed[0].id


def end(caller: Caller, replay_id: str) -> None:
    """End a replay."""
    with caller.service.runtime.database.transaction(write=True) as db:
        end_replay_as_failed(db, db.get_one(ReplayRow, replay_id), "internal", "The test ended it.")


def list_waiting(caller: Caller, *, is_guided: bool | None) -> list[str]:
    """Return the live replays of the workspace that wait."""
    with caller.service.runtime.database.transaction(write=False) as db:
        rows = list_waiting_live_replays(db, each=10, limit=1_000, is_guided=is_guided)
    return [row.id for row in rows if row.workspace_id == caller.key.workspace_id]


def test_guided_replays_are_claimed_one_after_the_other_and_others_beside_them(caller: Caller) -> None:
    session_id = sealed_run(caller)
    first, second = (ask(caller, session_id, mode="guided") for _ in range(2))
    asking = ask(caller, session_id, policy={"on_divergence": "ask"})
    full = ask(caller, session_id)
    assert list_waiting(caller, is_guided=True) == [first, second, asking]
    assert list_waiting(caller, is_guided=False) == [full]
    assert claim(caller, first) == first
    assert claim(caller, second) is None and claim(caller, asking) is None
    assert get_replay(caller, second)["status"] == "queued"
    assert claim(caller, second, asking, full) == full
    end(caller, first)
    assert claim(caller, asking, second) == asking
    assert claim(caller, second) is None
    # A worker has slots for several.
    assert claim(caller, second, has_one_guided=False) == second
    end(caller, asking)
    end(caller, second)


def test_of_two_claims_at_once_one_gets_its_guided_replay(caller: Caller) -> None:
    session_id = sealed_run(caller)
    for _ in range(5):
        waiting = [ask(caller, session_id, mode="guided") for _ in range(2)]
        both = threading.Barrier(2)

        def claim_together(replay_id: str, both: threading.Barrier = both) -> str | None:
            both.wait()
            return claim(caller, replay_id)

        with ThreadPoolExecutor(2) as threads:
            claimed = list(threads.map(claim_together, waiting))
        assert claimed.count(None) == 1
        for replay_id in waiting:
            end(caller, replay_id)

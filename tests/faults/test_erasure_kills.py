"""kill -9 of an erasure at any moment: the next run ends it, and all that others have is as it was.

`RECORDER_FAULT_PURGE_KILLS` gives the number of kills on each engine; `make test-faults` does a few. The
moments follow `RECORDER_FAULT_SEED`, which a failure names. Each round erases a person for each kind of
session.
"""

import os
import random
import re

import pytest
from sqlmodel import select

from recorder.exports.verify import verify_manifest
from recorder.models.governance import PurgeRow
from recorder.models.operations import AuditRow
from recorder.runtime import Runtime
from recorder.tenant import Tenant
from tests.faults.results import add_result, count_done
from tests.faults.test_erasure_canaries import age_lake_logs, find_words, join_words, require_others_unchanged
from tests.faults.test_export_kills import SEED, Lives, lives_of
from tests.governance.test_erasure import ADDRESS
from tests.support.content_snapshots import take_snapshot
from tests.support.erasure_canaries import record_people, write_exports
from tests.support.export_runs import folder_of
from tests.support.factories import Caller, Service
from tests.support.service_fixtures import service

__all__ = ["service"]

KILLS = int(os.environ.get("RECORDER_FAULT_PURGE_KILLS", "1"))  # noqa: TID251
_KILLS_OF_ONE = 5
_LEASE_MS = 1_000


def test_a_killed_erasure_is_ended_by_the_next_run(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recorder.exports.planning.plan.SHARD_BYTES", 2_000)
    runtime = service.runtime
    name = f"erasure kills on {'SQLite' if runtime.database.is_sqlite else 'PostgreSQL'}"
    done = count_done(name)
    missing = max(KILLS - done, 0)
    chance = random.Random(SEED + done)
    kills, rounds, whole = 0, 0, 0.0
    folder, url = runtime.settings.data_dir, runtime.database.url
    with lives_of(folder, url, launcher="purge_launcher", lease_ms=_LEASE_MS) as lives:
        while not rounds or kills < missing:
            # Rounds without a kill show how long an undisturbed run takes.
            most = min(missing - kills, _KILLS_OF_ONE) if rounds else 0
            killed, seconds = erase_and_kill(service.make_caller(), lives, chance, whole, most=most)
            whole = whole if killed else seconds
            kills, rounds = kills + killed, rounds + 1
    print(f"{kills} kills, {rounds} rounds of five erasures, one round alone takes {whole:.1f} s")
    add_result(name, kills, seed=SEED, rounds=rounds)


def erase_and_kill(
    caller: Caller, lives: Lives, chance: random.Random, whole: float, *, most: int
) -> tuple[int, float]:
    """Erase persons of a new workspace, killing the runs; return the kills, and the last run's seconds.

    Args:
        caller: an administrator's key.
        lives: starts the runs.
        chance: chooses the moments.
        whole: seconds that an undisturbed run takes.
        most: kills after which a run is left in peace.
    """
    runtime, tenant = caller.service.runtime, Tenant(caller.key.workspace_id, "live")
    gone, kept = record_people(caller, subjects=1)
    exports = write_exports(caller, ["parquet"])
    erased = join_words(caller, gone)
    known = find_words(caller, gone, kept).keys()
    assert any(re.fullmatch(erased, word) for word in known)
    before = take_snapshot(runtime, tenant, erased)
    age_lake_logs(runtime)
    erasures = [
        caller.post(ADDRESS, {"subject": person.word, "scope": "all"}).json() for person in gone.everyone
    ]
    kills, seconds = lives.kill_until_ended("erasure", chance, whole, most=most)

    stored = find_words(caller, gone, kept)
    left = {word: sorted(locations) for word, locations in stored.items() if re.fullmatch(erased, word)}
    assert not left, f"seed {SEED}: {left}"
    assert stored.keys() == {word for word in known if not re.fullmatch(erased, word)}, f"seed {SEED}"
    require_others_unchanged(before, take_snapshot(runtime, tenant, erased))
    sessions = 0
    for erasure, person in zip(erasures, gone.everyone, strict=True):
        ended = caller.get(f"{ADDRESS}/{erasure['id']}").json()
        sessions += len(person.session_ids)
        counts = ended["counts"]
        assert (ended["status"], counts["sessions"]) == ("completed", len(person.session_ids)), f"seed {SEED}"
    ids = {erasure["id"] for erasure in erasures}
    require_ended_once(runtime, caller.key.workspace_id, ids, sessions=sessions)
    for row in exports:
        report = verify_manifest(folder_of(runtime, row))
        assert report.is_valid, f"seed {SEED}: {report.problems}"
    return kills, seconds


def require_ended_once(runtime: Runtime, workspace_id: str, erasure_ids: set[str], *, sessions: int) -> None:
    """Require one entry of the audit log for each erasure, each purged session counted once, no open work."""
    with runtime.database.transaction(write=False) as db:
        of_workspace = select(AuditRow).where(AuditRow.workspace_id == workspace_id)
        entries = list(db.exec(of_workspace))
        assert db.exec(select(PurgeRow).where(PurgeRow.workspace_id == workspace_id)).all() == []
    ended = [entry.resource_id for entry in entries if entry.action == "privacy.erase"]
    purged = [entry.details["sessions"] for entry in entries if entry.action == "session.purge"]
    assert (sorted(ended), sum(purged)) == (sorted(erasure_ids), sessions), f"seed {SEED}"

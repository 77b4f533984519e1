"""kill -9 of a run of retention at any moment: the next runs end it, each session by its day.

`RECORDER_FAULT_PURGE_KILLS` gives the number of kills on each engine; `make test-faults` does a few. The
moments follow `RECORDER_FAULT_SEED`, which a failure names. Each round has a workspace with sessions that are
expired, to archive, held or too young, by a second as well as by days.
"""

import os
import random
from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import polars as pl
from sqlmodel import select

from recorder import clock
from recorder.audit.log import Origin
from recorder.governance.holds import add_hold
from recorder.ids import new_id
from recorder.models.governance import PurgeRow
from recorder.models.operations import AuditRow
from recorder.models.session import SessionRow
from recorder.models.tables import METADATA
from recorder.models.workspace import WorkspaceRow
from recorder.runtime import Runtime
from recorder.storage.blobs import Blobs
from recorder.storage.lake_schemas import LakeKind
from recorder.tenant import Tenant
from tests.faults.results import add_result, count_done
from tests.faults.test_export_kills import SEED, lives_of
from tests.support.sealed_sessions import START, Recording, make_runtime, picture, seal
from tests.support.stored_content import texts_of_file

KILLS = int(os.environ.get("RECORDER_FAULT_PURGE_KILLS", "2"))  # noqa: TID251
_KILLS_OF_ONE = 5
_LEASE_MS = 1_000
_FRAMES_DAYS, _EVENTS_DAYS = 10, 20
#: Instant of all runs: ids of sessions are of today, and must be older than the days.
_AT = clock.now() + timedelta(days=100)
_SECOND = timedelta(seconds=1)
#: Tables of the lake that have rows of each session.
_LAKE_KINDS: tuple[LakeKind, ...] = ("events", "frames", "sessions")


@dataclass(frozen=True)
class Groups:
    """Sessions of a workspace by what retention does with them."""

    workspace_id: str
    expired: list[str]
    archived: list[str]
    young: list[str]
    held: list[str]

    @property
    def kept(self) -> list[str]:
        """Sessions that stay."""
        return [*self.archived, *self.young, *self.held]


def test_a_killed_run_of_retention_is_ended_by_the_next_run(database_url: str, tmp_path: Path) -> None:
    runtime = make_runtime(tmp_path, database_url=database_url)
    name = f"retention kills on {'SQLite' if runtime.database.is_sqlite else 'PostgreSQL'}"
    done = count_done(name)
    missing = max(KILLS - done, 0)
    chance = random.Random(SEED + done)
    kills, whole, rounds = 0, 0.0, list[Groups]()
    with lives_of(tmp_path, database_url, launcher="purge_launcher", lease_ms=_LEASE_MS) as lives:
        while not rounds or kills < missing:
            groups = record_groups(runtime)
            before = read_contents(runtime, groups)
            # Rounds without a kill show how long an undisturbed run takes.
            most = min(missing - kills, _KILLS_OF_ONE) if rounds else 0
            line = f"retention {_AT.isoformat()}"
            killed, seconds = lives.kill_until_ended(line, chance, whole, most=most)
            kills, whole = kills + killed, whole if killed else seconds
            require_done(runtime, groups, before)
            rounds.append(groups)
    require_gone_from_files(runtime, rounds)
    runtime.close()
    print(f"{kills} kills, {len(rounds)} rounds of retention, one alone takes {whole:.1f} s")
    add_result(name, kills, seed=SEED, rounds=len(rounds))


def record_groups(runtime: Runtime) -> Groups:
    """Seal sessions of a new workspace on both sides of each day, with frames."""
    workspace_id = new_id("wsp")
    with runtime.database.transaction(write=True) as db:
        row = WorkspaceRow(id=workspace_id, name=workspace_id, region="us", created_at=START)
        row.frames_days, row.events_days = _FRAMES_DAYS, _EVENTS_DAYS
        db.add(row)
    frames, events = timedelta(days=_FRAMES_DAYS), timedelta(days=_EVENTS_DAYS)
    ages = {
        "expired": [events + _SECOND, events + timedelta(days=1), events + timedelta(days=40)] * 2,
        "archived": [frames + _SECOND, frames + timedelta(days=1), events - _SECOND] * 2,
        "young": [frames - _SECOND, timedelta()],
        "held": [events + _SECOND],
    }
    ids: dict[str, list[str]] = defaultdict(list)
    for group, ages_of_group in ages.items():
        recordings = [Recording(frames=[0, 600], sealed_at=_AT - age) for age in ages_of_group]
        ids[group] = seal(runtime, recordings, workspace_id=workspace_id)
    with runtime.database.transaction(write=True) as db:
        for session_id in ids["held"]:
            add_hold(db, Origin.operator(workspace_id), kind="session", value=session_id)
    return Groups(workspace_id, **ids)


def read_contents(runtime: Runtime, groups: Groups) -> dict[str, list[str]]:
    """Return all rows of the sessions that stay, in tables and lake, but for the time of the archive."""
    contents: dict[str, list[str]] = {}
    with runtime.database.transaction(write=False) as db:
        for table in METADATA.sorted_tables:
            column = table.columns.get("id" if table.name == "sessions" else "session_id")
            if column is not None:
                columns = [each for each in table.columns if each.name != "frames_archived_at"]
                rows = db.connection().execute(select(*columns).where(column.in_(groups.kept)))
                contents[table.name] = sorted(map(repr, rows))
    for kind in _LAKE_KINDS:
        rows_of_lake = runtime.lake.scan(kind, Tenant(groups.workspace_id, "live")).collect()
        kept = rows_of_lake.filter(pl.col("session_id").is_in(groups.kept))
        contents[f"lake {kind}"] = sorted(map(repr, kept.rows()))
    return contents


def require_done(runtime: Runtime, groups: Groups, before: dict[str, list[str]]) -> None:
    """Require that each session past its day is gone or archived whole, and every other one as it was."""
    assert read_contents(runtime, groups) == before, f"seed {SEED}"
    with runtime.database.transaction(write=False) as db:
        rows = db.exec(select(SessionRow).where(SessionRow.workspace_id == groups.workspace_id)).all()
        purges = db.exec(select(PurgeRow).where(PurgeRow.workspace_id == groups.workspace_id)).all()
        audit = select(AuditRow).where(AuditRow.workspace_id == groups.workspace_id)
        purged = [entry.details for entry in db.exec(audit) if entry.action == "session.purge"]
        for table in METADATA.sorted_tables:
            if "session_id" in table.columns and table.name != "purges":
                gone = select(table.columns["session_id"]).where(
                    table.columns["session_id"].in_(groups.expired)
                )
                assert db.connection().execute(gone).all() == [], f"seed {SEED}: {table.name}"
    assert {row.id for row in rows} == {*groups.kept}, f"seed {SEED}"
    archived = {row.id for row in rows if row.frames_archived_at is not None}
    assert archived == {*groups.archived}, f"seed {SEED}"
    assert {(purge.session_id, purge.cause, purge.step) for purge in purges} == {
        (session_id, "retention", "done") for session_id in groups.expired
    }, f"seed {SEED}"
    # Each session is counted once, however often its purge was begun.
    assert sum(entry["sessions"] for entry in purged) == len(groups.expired), f"seed {SEED}"
    for kind in _LAKE_KINDS:
        lake = runtime.lake.scan(kind, Tenant(groups.workspace_id, "live")).select("session_id").collect()
        assert {*lake["session_id"]} == {*groups.kept}, f"seed {SEED}: {kind}"
    hot, cold = (
        read_objects(url, groups.workspace_id) for url in (runtime.blobs.url, runtime.settings.cold_url)
    )
    assert cold == {session_id: frames_of(session_id) for session_id in groups.archived}, f"seed {SEED}"
    assert hot == {session_id: frames_of(session_id) for session_id in [*groups.young, *groups.held]}


def read_objects(url: str, workspace_id: str) -> dict[str, bytes]:
    """Return the frames of a workspace in a store, by session."""
    store = Blobs(url)
    objects = store.list_objects(f"frames/{workspace_id}/")
    assert len({stored.key.split("/")[2] for stored in objects}) == len(objects), f"seed {SEED}"
    return {stored.key.split("/")[2]: store.get(stored.key) for stored in objects}


def frames_of(session_id: str) -> bytes:
    """Return the bytes of the two frames that a session was sealed with."""
    return picture(session_id, 0) + picture(session_id, 1)


def require_gone_from_files(runtime: Runtime, rounds: list[Groups]) -> None:
    """Require that data files of lake and stores name the sessions that stay, and no expired one."""
    roots = [Path(url) for url in (runtime.lake.url, runtime.blobs.url, runtime.settings.cold_url)]
    # The logs of the lake keep bounds of columns for a while.
    paths = [path for root in roots for path in root.rglob("*") if path.is_file()]
    paths = [path for path in paths if "_delta_log" not in path.parts]
    texts = "\n".join(f"{path}\n{text}" for path in paths for text in texts_of_file(path))
    expired = [session_id for groups in rounds for session_id in groups.expired]
    assert [session_id for session_id in expired if session_id in texts] == [], f"seed {SEED}"
    assert all(session_id in texts for groups in rounds for session_id in groups.kept), f"seed {SEED}"

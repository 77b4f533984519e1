"""Retention under made-up clocks that jump both ways, with restarts: all goes in the first run after its day.

`RECORDER_FAULT_CLOCKS` gives the number of clocks on each engine; `make test-faults` does a few. Each clock
is a sequence of instants, at which the runs of retention take place.
"""

import os
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlmodel import col, select

from recorder import clock, limits
from recorder.audit.log import Origin, record_audit_entry
from recorder.governance.retention import run_retention
from recorder.ids import new_id
from recorder.models.export import ExportRow
from recorder.models.governance import PurgeRow
from recorder.models.operations import AuditRow
from recorder.models.session import SessionRow
from recorder.models.workspace import WorkspaceRow
from recorder.runtime import Runtime
from tests.governance.test_due_dates import (
    DAY,
    INSTANTS,
    History,
    add_session,
    add_workspace,
    expected_cause,
    histories,
    is_to_archive,
    near,
)

CLOCKS = int(os.environ.get("RECORDER_FAULT_CLOCKS", "10"))  # noqa: TID251
_DAYS = st.sampled_from([1, 28, 29, 30, 31, 365, 366, 730, 3_650])


@dataclass
class World:
    """Things with due dates, and which of them are gone."""

    workspace: WorkspaceRow
    histories: dict[str, History] = field(default_factory=dict)
    #: Times of completion of hosted exports.
    exports: dict[str, datetime] = field(default_factory=dict)
    #: Times of the audit entries that are whole, in the order of the chain.
    entries: list[datetime] = field(default_factory=list)
    purged: dict[str, str] = field(default_factory=dict)
    archived: set[str] = field(default_factory=set)
    expired: set[str] = field(default_factory=set)

    def advance(self, at: datetime) -> None:
        """Let a run take place."""
        days = self.workspace
        for session_id, history in self.histories.items():
            if session_id not in self.purged:
                for cause in expected_cause(history, at, days.events_days):
                    self.purged[session_id] = cause
            if session_id not in self.purged and is_to_archive(
                history, at, days.events_days, days.frames_days
            ):
                self.archived.add(session_id)
        hosted = limits.HOSTED_EXPORT_DAYS * DAY
        self.expired |= {name for name, ended_at in self.exports.items() if ended_at + hosted <= at}
        pruned = 0
        for number, entry in enumerate(self.entries, 1):
            # One from a clock that was ahead goes with those after it, and does not keep them.
            if at - days.audit_days * DAY <= entry <= at:
                break
            pruned = pruned if entry > at else number
        # The pruning is an entry itself.
        self.entries = self.entries[pruned:] + [clock.truncate_to_ms(at)] * bool(pruned)

    def due_dates(self) -> list[datetime]:
        """Return the instants at which something becomes due."""
        days = self.workspace
        ended = [history.purge_after for history in self.histories.values() if history.purge_after]
        starts = [history.counted_from for history in self.histories.values()]
        return [
            *ended,
            *(start + number * DAY for start in starts for number in (days.events_days, days.frames_days)),
            *(ended_at + limits.HOSTED_EXPORT_DAYS * DAY for ended_at in self.exports.values()),
            *(entry + days.audit_days * DAY for entry in self.entries),
        ]


def draw_world(runtime: Runtime, data: st.DataObject) -> World:
    """Add a workspace with sessions, hosted exports and audit entries."""
    kinds = ("events_days", "frames_days", "audit_days")
    world = World(add_workspace(runtime.database, **{kind: data.draw(_DAYS) for kind in kinds}))
    workspace_id = world.workspace.id
    for history in data.draw(st.lists(histories(), min_size=1, max_size=3)):
        session_id = add_session(runtime.database, workspace_id, history)
        world.histories[session_id] = history
        runtime.blobs.put(f"frames/{workspace_id}/{session_id}/frm_1.pack", b"a frame")
    for ended_at in map(clock.truncate_to_ms, data.draw(st.lists(st.sampled_from(INSTANTS), max_size=2))):
        with runtime.database.transaction(write=True) as db:
            row = ExportRow(
                id=new_id("exp"),
                workspace_id=workspace_id,
                mode="live",
                status="completed",
                format="parquet",
                spec={},
                destination={"kind": "signed_url"},
                dataset="made",
                created_at=ended_at,
                completed_at=ended_at,
            )
            world.exports[row.id] = ended_at
            db.add(row)
    for at in data.draw(st.lists(st.sampled_from(INSTANTS), max_size=3)):
        with pytest.MonkeyPatch.context() as patch, runtime.database.transaction(write=True) as db:
            set_clock(patch, at)
            origin = Origin.operator(workspace_id)
            record_audit_entry(db, origin, "hold.add", resource_type="session", resource_id=new_id("ses"))
        world.entries.append(clock.truncate_to_ms(at))
    return world


def set_clock(patch: pytest.MonkeyPatch, at: datetime) -> None:
    """Let the present be an instant."""
    patch.setattr(clock, "now", lambda: clock.truncate_to_ms(at))
    patch.setattr(clock, "now_ms", lambda: clock.to_ms(at))


def read_world(runtime: Runtime, world: World) -> World:
    """Return what is gone and what is left, as the database holds it."""
    ids = [*world.histories]
    with runtime.database.transaction(write=False) as db:
        purges = db.exec(select(PurgeRow).where(col(PurgeRow.session_id).in_(ids))).all()
        is_archived = col(SessionRow.frames_archived_at).is_not(None)
        archived = db.exec(select(SessionRow.id).where(col(SessionRow.id).in_(ids), is_archived)).all()
        exports = db.exec(select(ExportRow).where(col(ExportRow.id).in_([*world.exports]))).all()
        of_workspace = select(AuditRow.at).where(AuditRow.workspace_id == world.workspace.id)
        entries = db.exec(of_workspace.order_by(col(AuditRow.number))).all()
    return World(
        world.workspace,
        world.histories,
        world.exports,
        entries=[at.astimezone(UTC) for at in entries],
        purged={purge.session_id: purge.cause for purge in purges},
        archived=set(archived),
        expired={row.id for row in exports if row.expired_at is not None},
    )


@settings(
    max_examples=CLOCKS,
    # A failure is shown as it was found: to make it smaller would take minutes.
    phases=(Phase.generate,),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    print_blob=True,
)
@given(data=st.data())
def test_each_kind_goes_in_the_first_run_after_its_day(runtime: Runtime, data: st.DataObject) -> None:
    world = draw_world(runtime, data)
    for at in data.draw(st.lists(near(world.due_dates()), min_size=1, max_size=6)):
        # A restart: a process that knows nothing of the one before.
        acting = Runtime.open(runtime.settings) if data.draw(st.booleans()) else runtime
        with pytest.MonkeyPatch.context() as patch:
            set_clock(patch, at)
            report = run_retention(acting, "tests", workspace_id=world.workspace.id)
        assert report is not None and report.failures == []
        if acting is not runtime:
            acting.close()
        world.advance(clock.truncate_to_ms(at))
        assert read_world(runtime, world) == world

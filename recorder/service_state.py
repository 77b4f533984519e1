"""State of a deployment: backlog, status of Dagster, and warnings to its operator. Contract §9.

All of it is in the database, so every process computes the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import get_args

from sqlalchemy import ColumnClause, func, literal_column
from sqlmodel import Session as DbSession
from sqlmodel import col, delete, select

from recorder import clock
from recorder.ids import first_id_at
from recorder.models.export import OPEN_STATUSES, ExportRow
from recorder.models.operations import OrchestrationKind, OrchestrationStatusRow, OutboxRow
from recorder.models.webhook import DeliveryRow, DeliveryStatus
from recorder.number_formats import format_seconds
from recorder.sealing.breaker import OpenBreaker, read_open_breaker
from recorder.sealing.failures import SealingBacklog, read_sealing_backlog
from recorder.storage.database import Database

# As text in the statement: a partial index is not found by a bound value.
_PENDING: ColumnClause[str] = literal_column("'pending'")
_RECENT = timedelta(hours=1)
_OUTCOMES = get_args(DeliveryStatus)


@dataclass(frozen=True)
class Backlog:
    """Numbers of unfinished objects."""

    #: Unfinished exports by status.
    exports: dict[str, int]
    #: Events that were not dispatched to webhooks yet, and the time of the oldest.
    outbox_pending: int
    oldest_event: datetime | None
    #: Attempts to deliver that wait or are under way, and those created in the last hour by status.
    deliveries_pending: int
    deliveries: dict[str, int]


def count_backlog(db: DbSession) -> Backlog:
    """Count the exports, events and deliveries that are unfinished; each count reads an index or few rows."""
    exports = (
        select(ExportRow.status, func.count())
        .where(col(ExportRow.status).in_(OPEN_STATUSES))
        .group_by(ExportRow.status)
    )
    # Both engines read the index alone, which has the ids, but not the times; ids rise with time.
    outbox = select(func.count(), func.min(OutboxRow.id)).where(col(OutboxRow.dispatched_at).is_(None))
    pending = select(func.count()).where(col(DeliveryRow.status) == _PENDING)
    recent = (
        select(DeliveryRow.status, func.count())
        .where(DeliveryRow.id >= first_id_at("dlv", clock.now() - _RECENT))
        .group_by(DeliveryRow.status)
    )
    outbox_pending, oldest_id = db.exec(outbox).one()
    oldest_event = select(OutboxRow.created_at).where(OutboxRow.id == oldest_id)
    return Backlog(
        exports={"queued": 0, "running": 0, **dict(db.exec(exports).all())},
        outbox_pending=outbox_pending,
        oldest_event=db.exec(oldest_event).one_or_none() if oldest_id is not None else None,
        deliveries_pending=db.exec(pending).one(),
        deliveries={**dict.fromkeys(_OUTCOMES, 0), **dict(db.exec(recent).all())},
    )


#: Without a change the rows are written again after so long: their age says whether Dagster runs.
REPEAT_AFTER = timedelta(seconds=30)


@dataclass(frozen=True)
class DagsterStatus:
    """State of one sensor, schedule or daemon, as Dagster's side reported it."""

    kind: OrchestrationKind
    name: str
    is_on: bool
    seen_at: datetime


def store_service_statuses(database: Database, statuses: Sequence[DagsterStatus]) -> bool:
    """Replace the stored statuses if they differ or are old; return whether they were replaced."""
    with database.transaction(write=False) as db:
        if not _must_store_service_statuses(read_service_statuses(db), statuses):
            return False
    with database.transaction(write=True) as db:
        db.exec(delete(OrchestrationStatusRow))
        db.add_all(
            OrchestrationStatusRow(
                kind=status.kind,
                name=status.name,
                state="on" if status.is_on else "off",
                seen_at=status.seen_at,
            )
            for status in statuses
        )
    return True


def read_service_statuses(db: DbSession) -> list[DagsterStatus]:
    """Return the stored statuses; none where Dagster has never run."""
    rows = db.exec(select(OrchestrationStatusRow).order_by("kind", "name"))
    return [DagsterStatus(row.kind, row.name, row.state == "on", row.seen_at) for row in rows]  # type: ignore[arg-type]


def _must_store_service_statuses(stored: Sequence[DagsterStatus], seen: Sequence[DagsterStatus]) -> bool:
    before = {(status.kind, status.name): status for status in stored}
    after = {(status.kind, status.name): status for status in seen}
    if before.keys() != after.keys() or any(before[key].is_on != after[key].is_on for key in after):
        return True
    # Before is later if the clock was set back in between.
    return any(abs(after[key].seen_at - before[key].seen_at) >= REPEAT_AFTER for key in after)


# A sensor of the service reports every thirty seconds at the latest.
_DAGSTER_SILENT = timedelta(seconds=90)
# Dagster's own daemon sends a heartbeat every thirty seconds, and the report is as old again.
_DAEMON_LATE = timedelta(seconds=150)
_SEALING_BEHIND_S = 60.0


@dataclass(frozen=True)
class ServiceWarning:
    """Condition that an operator should check."""

    code: str
    message: str


@dataclass(frozen=True)
class ServiceState:
    """Values from which warnings and gauges are computed."""

    backlog: SealingBacklog
    statuses: list[DagsterStatus]
    breaker: OpenBreaker | None = None

    @property
    def switched_off(self) -> list[DagsterStatus]:
        """Sensors and schedules of the service that are switched off."""
        return [status for status in self.statuses if not status.is_on]


def read_service_state(db: DbSession) -> ServiceState:
    """Return the state of sealing and of Dagster, as the database holds it."""
    return ServiceState(read_sealing_backlog(db), read_service_statuses(db), read_open_breaker(db))


def list_warnings(state: ServiceState, now: datetime | None = None) -> list[ServiceWarning]:
    """Return the warnings that a state gives rise to."""
    now = now or clock.now()
    return [
        *_warn_of_dagster(state.statuses, now),
        *(
            ServiceWarning(
                f"{status.kind}_off",
                f"The {status.kind} `{status.name}` is switched off in Dagster. Switch it on in Dagster's "
                "pages, under Automation.",
            )
            for status in state.switched_off
        ),
        *_warn_of_breaker(state.breaker),
        *_warn_of_sealing(state.backlog),
    ]


def _warn_of_dagster(statuses: list[DagsterStatus], now: datetime) -> list[ServiceWarning]:
    report_times = [status.seen_at for status in statuses if status.kind != "daemon"]
    if not report_times:
        return [
            ServiceWarning(
                "dagster_silent",
                "Dagster has never reported to this deployment: sessions stay `stopped`, exports stay "
                "`queued`. Start Dagster with the same database, or leave out `--no-dagster`.",
            )
        ]
    silence = now - max(report_times)
    if silence >= _DAGSTER_SILENT:
        return [
            ServiceWarning(
                "dagster_silent",
                f"Dagster has not reported for {format_seconds(silence.total_seconds())}: no sensor runs, "
                "and sealing and exports stop within minutes. Check that its daemon and code server run, and "
                "that not all sensors are switched off.",
            )
        ]
    if -silence >= _DAGSTER_SILENT:
        return [
            ServiceWarning(
                "dagster_silent",
                f"Dagster's last report is {format_seconds(-silence.total_seconds())} in the future: it has "
                "not reported since the clock was set back, or the clocks of two hosts differ. Check that "
                "its daemon and code server run, and set all clocks by NTP.",
            )
        ]
    return [
        ServiceWarning(
            "daemon_late",
            f"Dagster's {status.name.lower()} daemon has sent no heartbeat for "
            f"{format_seconds((now - status.seen_at).total_seconds())}. "
            "Check its log; `recorder up` restarts a silent daemon.",
        )
        for status in statuses
        if status.kind == "daemon" and now - status.seen_at >= _DAEMON_LATE
    ]


def _warn_of_breaker(breaker: OpenBreaker | None) -> list[ServiceWarning]:
    if breaker is None:
        return []
    return [
        ServiceWarning(
            "sealing_fails",
            f"Nothing can be sealed: session after session fails ({breaker.error}). They wait and are "
            "tried again, one at a time. Read the log of the runs of `seal_stopped_sessions` and remove the "
            "cause. `recorder sessions reseal --all` seals those that were set aside before.",
        )
    ]


def _warn_of_sealing(backlog: SealingBacklog) -> list[ServiceWarning]:
    warnings = []
    if backlog.oldest_waiting_s is not None and backlog.oldest_waiting_s >= _SEALING_BEHIND_S:
        age = format_seconds(backlog.oldest_waiting_s)
        warnings.append(
            ServiceWarning(
                "sealing_behind",
                f"Sessions waiting to be sealed: {backlog.waiting}, the oldest for {age}. Check the runs "
                "of `seal_stopped_sessions` in Dagster's pages.",
            )
        )
    if backlog.set_aside:
        warnings.append(
            ServiceWarning(
                "sessions_set_aside",
                f"Sessions that could not be sealed and were set aside: {backlog.set_aside}. "
                "`recorder sessions quarantined` lists them with the reason.",
            )
        )
    return warnings

"""Warnings about a deployment that answers, and yet does not do all of its work. Contract §9."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlmodel import Session as DbSession

from recorder import clock
from recorder.orchestration import Status, read_statuses
from recorder.sealing.failures import SealingBacklog, read_sealing_backlog

# A sensor of ours reports every thirty seconds at the latest.
_DAGSTER_SILENT = timedelta(seconds=90)
# Dagster's own daemon sends a heartbeat every thirty seconds, and the report is as old again.
_DAEMON_LATE = timedelta(seconds=150)
_SEALING_BEHIND_S = 60.0


@dataclass(frozen=True)
class ServiceWarning:
    """One thing that an operator should look at."""

    code: str
    message: str


@dataclass(frozen=True)
class ServiceState:
    """Values from which warnings and gauges are computed."""

    backlog: SealingBacklog
    statuses: list[Status]

    @property
    def switched_off(self) -> list[Status]:
        """Sensors and schedules of ours that somebody switched off."""
        return [one for one in self.statuses if not one.is_on]


def read_state(db: DbSession) -> ServiceState:
    """Return the state of sealing and of Dagster, as the database holds it."""
    return ServiceState(read_sealing_backlog(db), read_statuses(db))


def list_warnings(state: ServiceState, now: datetime | None = None) -> list[ServiceWarning]:
    """Return the warnings that a state gives rise to."""
    now = now or clock.now()
    return [
        *_warn_of_dagster(state.statuses, now),
        *(
            ServiceWarning(
                f"{one.kind}_off",
                f"The {one.kind} `{one.name}` is switched off in Dagster. Switch it on in Dagster's pages, "
                "under Automation.",
            )
            for one in state.switched_off
        ),
        *_warn_of_sealing(state.backlog),
    ]


def _warn_of_dagster(statuses: list[Status], now: datetime) -> list[ServiceWarning]:
    if not statuses:
        return [
            ServiceWarning(
                "dagster_silent",
                "Dagster has never reported to this deployment: sessions stay `stopped`, exports stay "
                "`queued`. Start Dagster with the same database, or leave out `--no-dagster`.",
            )
        ]
    looked_at = [one.seen_at for one in statuses if one.kind != "daemon"]
    silence = now - max(looked_at, default=datetime.min.replace(tzinfo=now.tzinfo))
    if silence >= _DAGSTER_SILENT:
        return [
            ServiceWarning(
                "dagster_silent",
                f"Dagster has not reported for {_shown(silence)}: no sensor runs, and nothing is sealed or "
                "exported for long. Look whether its daemon and code server run, and whether all sensors "
                "are switched off.",
            )
        ]
    return [
        ServiceWarning(
            "daemon_late",
            f"Dagster's {one.name.lower()} daemon has sent no heartbeat for {_shown(now - one.seen_at)}. "
            "Look into its log; `recorder up` starts a daemon again that falls silent.",
        )
        for one in statuses
        if one.kind == "daemon" and now - one.seen_at >= _DAEMON_LATE
    ]


def _warn_of_sealing(backlog: SealingBacklog) -> list[ServiceWarning]:
    found = []
    if backlog.oldest_waiting_s is not None and backlog.oldest_waiting_s >= _SEALING_BEHIND_S:
        age = _shown(timedelta(seconds=backlog.oldest_waiting_s))
        found.append(
            ServiceWarning(
                "sealing_behind",
                f"Sessions waiting to be sealed: {backlog.waiting}, the oldest for {age}. Look at the runs "
                "of `seal_stopped_sessions` in Dagster's pages.",
            )
        )
    if backlog.set_aside:
        found.append(
            ServiceWarning(
                "sessions_set_aside",
                f"Sessions that could not be sealed and were set aside: {backlog.set_aside}. "
                "`recorder sessions quarantined` lists them with the reason.",
            )
        )
    return found


def _shown(span: timedelta) -> str:
    seconds = int(span.total_seconds())
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min"

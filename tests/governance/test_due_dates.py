"""Due dates under made-up clocks: leap days, ends of years, clocks that jump both ways. Spec §8.3."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recorder import clock
from recorder.governance import archive
from recorder.governance.purging.due_sessions import list_due_sessions
from recorder.ids import first_id_at, new_id
from recorder.models.session import SessionRow, SessionStatusRow
from recorder.models.workspace import WorkspaceRow
from recorder.storage.database import Database

DAY = timedelta(days=1)
_RANDOM_CHARACTERS = 16
INSTANTS = (
    datetime(2024, 2, 28, 23, 59, 59, 999999, UTC),
    datetime(2024, 2, 29, tzinfo=UTC),
    datetime(2024, 2, 29, 12, 30, tzinfo=UTC),
    datetime(2024, 3, 1, tzinfo=UTC),
    datetime(2025, 2, 28, 23, 59, 59, tzinfo=UTC),
    datetime(2025, 12, 31, 23, 59, 59, 999999, UTC),
    datetime(2026, 1, 1, tzinfo=UTC),
    datetime(2028, 2, 29, 23, 59, 59, 999000, UTC),
    datetime(2099, 12, 31, 23, 59, 59, tzinfo=UTC),
)
_STEPS = [timedelta(microseconds=1), timedelta(milliseconds=1), timedelta(hours=1), DAY, 366 * DAY]
_GAPS = st.timedeltas(-2 * DAY, 40 * DAY) | st.just(timedelta(0))


@dataclass(frozen=True)
class History:
    """The times of a session; the clock may have jumped back between them."""

    created_at: datetime
    sealed_at: datetime | None
    #: Last change of status of a session that was never sealed.
    changed_at: datetime | None
    deleted_at: datetime | None
    purge_after: datetime | None

    @property
    def counted_from(self) -> datetime:
        """Time from which the days of the workspace count."""
        return self.sealed_at or self.changed_at or self.created_at


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Return sessions of each kind of retention."""
    created_at = draw(
        st.sampled_from(INSTANTS) | st.datetimes(_first(2024), _first(2090), timezones=st.just(UTC))
    )
    ended_at = draw(st.none() | _GAPS.map(created_at.__add__))
    is_sealed = ended_at is not None and draw(st.booleans())
    kind = draw(st.sampled_from(["live", "test", "deleted"]))
    deleted_at = created_at + draw(_GAPS) if kind == "deleted" else None
    ends = {"live": None, "test": created_at + 7 * DAY, "deleted": deleted_at and deleted_at + 30 * DAY}
    return History(
        created_at,
        sealed_at=ended_at if is_sealed else None,
        changed_at=None if is_sealed else ended_at,
        deleted_at=deleted_at,
        purge_after=ends[kind],
    )


def _first(year: int) -> datetime:
    return datetime(year, 1, 1)


def runs(history: History, days: list[int]) -> st.SearchStrategy[list[datetime]]:
    """Return instants of runs in any order, most of them near a date at which something becomes due."""
    dates = [history.counted_from + number * DAY for number in days]
    dates += [history.created_at + number * DAY for number in days]
    dates += [] if history.purge_after is None else [history.purge_after]
    return st.lists(near(dates), min_size=1, max_size=8)


def near(dates: list[datetime]) -> st.SearchStrategy[datetime]:
    """Return instants at one of the dates, or before or after it."""
    steps = st.just(timedelta(0)) | st.sampled_from([*_STEPS, *(-step for step in _STEPS)])
    return st.builds(datetime.__add__, st.sampled_from(dates), steps)


def add_workspace(database: Database, **days: int) -> WorkspaceRow:
    """Add a workspace with these days of retention."""
    workspace = WorkspaceRow(
        id=new_id("wsp"), name=new_id("wsp"), region="us", created_at=INSTANTS[0], **days
    )
    with database.transaction(write=True) as db:
        db.add(workspace)
    return workspace


def add_session(database: Database, workspace_id: str, history: History) -> str:
    """Add a session of a history; return its id."""
    # The time of creation is in the id; the rest of it is random.
    first = first_id_at("ses", history.created_at)
    session_id = first[:-_RANDOM_CHARACTERS] + new_id("ses")[-_RANDOM_CHARACTERS:]
    with database.transaction(write=True) as db:
        db.add(
            SessionRow(
                id=session_id,
                workspace_id=workspace_id,
                mode="live",
                workflow="checkout",
                status="recording" if history.sealed_at is None else "sealed",
                created_at=history.created_at,
                sealed_at=history.sealed_at,
                deleted_at=history.deleted_at,
                purge_after=history.purge_after,
                frame_count=1,
            )
        )
        if history.changed_at is not None:
            times = {"session_id": session_id, "status": "recording"}
            db.add(SessionStatusRow(position=1, at=min(history.created_at, history.changed_at), **times))
            db.add(SessionStatusRow(position=2, at=history.changed_at, **times))
    return session_id


def is_past(history: History, limit: datetime) -> bool:
    """Return whether both the creation, to the millisecond, and the counted time are before a limit."""
    return history.counted_from < limit and clock.to_ms(history.created_at) < clock.to_ms(limit)


def expected_cause(history: History, at: datetime, events_days: int) -> list[str]:
    """Return why a session is due at an instant; nothing if it is not."""
    if history.purge_after is not None and history.purge_after <= at:
        return ["test_expiry" if history.deleted_at is None else "deletion"]
    is_old = history.deleted_at is None and is_past(history, at - events_days * DAY)
    return ["retention"] if is_old else []


def is_to_archive(history: History, at: datetime, events_days: int, frames_days: int) -> bool:
    """Return whether the frames of a session are due to be archived at an instant."""
    if history.sealed_at is None or history.deleted_at is not None:
        return False
    is_over = history.purge_after is not None and history.purge_after <= at
    is_expired = history.sealed_at < at - events_days * DAY
    return not is_over and not is_expired and is_past(history, at - frames_days * DAY)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data(), history=histories(), days=st.tuples(*[st.integers(1, 3_650) | st.just(365)] * 2))
def test_each_kind_of_session_is_due_at_its_instant(
    database: Database, data: st.DataObject, history: History, days: tuple[int, int]
) -> None:
    events_days, frames_days = days
    workspace = add_workspace(database, events_days=events_days, frames_days=frames_days)
    add_session(database, workspace.id, history)
    for at in data.draw(runs(history, [events_days, frames_days])):
        pages = list_due_sessions(database, workspace, at=at)
        assert [session.cause for page in pages for session in page] == expected_cause(
            history, at, events_days
        )
        archived = list(archive.list_sessions_to_archive(database, workspace, at=at))
        assert bool(archived) == is_to_archive(history, at, events_days, frames_days)

"""The list of sessions: filters, order, pages. Spec §4.1 (GET /v1/sessions), contract §1 (lists)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.ids import first_id_at
from recorder.memory.queries.path_selection import select_path
from recorder.memory.storage.session_paths import read_path_ids
from recorder.models.session import Session, SessionMetadataRow, SessionRow, TagRow
from recorder.models.wire import ActorKind, Outcome
from recorder.recording.sessions import session_to_wire
from recorder.storage.conditions import in_tenant
from recorder.storage.limited_reads import check_read_time, set_postgres_options, without_time_limit
from recorder.storage.list_pages import FetchedPage, fetch_list_page, stream_rows
from recorder.tenant import Tenant

#: Ids of one statement; SQLite takes 32,766 values.
_IDS_AT_ONCE = 2_000


@dataclass(frozen=True, kw_only=True)
class SessionFilter:
    """Filters of `GET /v1/sessions`; None and empty match everything."""

    workflow: tuple[str, ...] = ()
    status: str | None = None
    outcome: Outcome | None = None
    actor_kind: ActorKind | None = None
    tag: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    #: Id of a path of the memory graph that the session is counted on.
    path: str | None = None
    #: Id of a path of the memory graph whose nodes the session went through, one directly after the other.
    subpath: str | None = None

    @property
    def has_path(self) -> bool:
        """True if the memory graph selects sessions; times then bound their start."""
        return self.path is not None or self.subpath is not None


def list_sessions(
    db: DbSession,
    tenant: Tenant,
    filters: SessionFilter,
    *,
    before_id: str | None,
    limit: int,
) -> FetchedPage[Session, str]:
    """Return a page of sessions, newest first; its position is the id of the last one.

    Ids rise with `created_at`, so times, cursor and order are one range over the ids.

    Args:
        db: a transaction.
        tenant: workspace and mode.
        filters: filters of the list.
        before_id: the last id of the page before.
        limit: most items of the page.

    Raises:
        NotFound: if the filter names a path that is not there.
        ReadTooLong: if the transaction has a limited time, which is over.
    """
    statement = _select_listed_sessions(tenant, filters, before_id=before_id)
    statements: Iterable[Any] = [statement]
    if filters.has_path:
        id_lists = _iterate_session_ids_on_path(db, tenant, filters, before_id=before_id)
        statements = (statement.where(col(SessionRow.id).in_(ids)) for ids in id_lists)

    def read_rows(count: int) -> Iterator[Any]:
        if db.get_bind().dialect.name == "postgresql":
            # By these joins the planner may read the metadata of all workspaces, in the order of their ids.
            set_postgres_options(db, enable_mergejoin="off", enable_hashjoin="off")
        for part in statements:
            check_read_time(db)
            for row in stream_rows(db, part.limit(count)):
                yield row
                count -= 1

    page = fetch_list_page(read_rows, limit=limit, position_of=lambda pair: str(pair[0].id))
    path_ids = read_path_ids(db, [row.id for row, _ in page.items])
    return page.convert(
        lambda pair: session_to_wire(pair[0], pair[1].metadata_, path_id=path_ids.get(pair[0].id))
    )


def _iterate_session_ids_on_path(
    db: DbSession, tenant: Tenant, filters: SessionFilter, *, before_id: str | None
) -> Iterator[list[str]]:
    """Return the ids of the sessions on a path from the memory graph, newest first, in parts."""
    with without_time_limit(db):
        selection = select_path(db, tenant=tenant, path=filters.path, subpath=filters.subpath)
    if selection is None or (filters.workflow and selection.workflow not in filters.workflow):
        return iter(())
    return selection.iterate_session_ids(
        since=filters.since,
        until=filters.until,
        outcome=filters.outcome,
        actor_kind=filters.actor_kind,
        below=before_id,
        at_once=_IDS_AT_ONCE,
    )


def _select_listed_sessions(tenant: Tenant, filters: SessionFilter, *, before_id: str | None) -> Any:
    statement = (
        select(SessionRow, SessionMetadataRow)
        .join(SessionMetadataRow, col(SessionMetadataRow.session_id) == col(SessionRow.id))
        .where(
            *in_tenant(SessionRow, tenant),
            col(SessionRow.deleted_at).is_(None),
        )
    )
    if filters.workflow:
        statement = statement.where(col(SessionRow.workflow).in_(filters.workflow))
    for column, value in (
        (SessionRow.status, filters.status),
        (SessionRow.outcome, filters.outcome),
        (SessionRow.actor_kind, filters.actor_kind),
    ):
        if value is not None:
            statement = statement.where(col(column) == value)
    if filters.since is not None and not filters.has_path:
        statement = statement.where(col(SessionRow.id) >= first_id_at("ses", filters.since))
    if filters.until is not None and not filters.has_path:
        statement = statement.where(col(SessionRow.id) < first_id_at("ses", filters.until))
    if before_id is not None:
        statement = statement.where(col(SessionRow.id) < before_id)
    if filters.tag is not None:
        tagged = select(TagRow.session_id).where(*in_tenant(TagRow, tenant), TagRow.name == filters.tag)
        statement = statement.where(col(SessionRow.id).in_(tagged))
    return statement.order_by(col(SessionRow.id).desc())

"""Sessions ranked by the memory graph: outliers, and those most similar to one. Spec §4.2; contract §4."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.errors import InvalidCursor, SessionNotSealed
from recorder.memory.graph.paths import NO_PATH
from recorder.memory.queries.chosen_sessions import read_newest_columns, select_session_rows
from recorder.memory.queries.columns import NOWHERE, GraphColumns, make_session_lookup
from recorder.memory.queries.outliers import THRESHOLD, Rank, find_outliers
from recorder.memory.queries.similarity import SimilarRow, index_similarity
from recorder.memory.storage.versions import has_outcome_changed_twice, was_rebuilt_since_graph_version
from recorder.models.memory import OutlierSession, SimilarSession
from recorder.models.session import Session, SessionMetadataRow, SessionRow
from recorder.models.wire import ActorKind, Outcome
from recorder.recording.sessions import find_session, session_to_wire
from recorder.storage.conditions import in_tenant
from recorder.storage.list_pages import FetchedPage, fetch_list_page, take_page_items
from recorder.tenant import GraphScope, Tenant

#: Sessions of a page that are read at once: 1.6 MB of the largest metadata.
_SESSIONS_AT_ONCE = 100


def rank_outliers(
    db: DbSession,
    *,
    tenant: Tenant,
    workflow: str,
    rank: Rank = "path",
    threshold: float = THRESHOLD,
    since: datetime | None = None,
    until: datetime | None = None,
    outcome: Outcome | None = None,
    actor_kind: ActorKind | None = None,
    after: tuple[int, int] | None = None,
    limit: int,
) -> FetchedPage[OutlierSession, tuple[int, int]]:
    """Return a page of outliers, least typical first.

    Sessions that were deleted since the first page was read are left out of the later ones.

    Args:
        db: a transaction.
        tenant: workspace and mode.
        workflow: name of the workflow.
        rank: `path` lists sessions on rare paths, `typicality` lists all sessions.
        threshold: largest share of a rare path, exclusive; of no effect with `typicality`.
        since: sessions that started at this instant or later.
        until: sessions that started before this instant.
        outcome: sessions with this outcome; None takes all.
        actor_kind: sessions of this kind of actor; None takes all.
        after: graph version of the first page, whose order the next pages keep, and number of outliers before
            this page; None for the first page.
        limit: most items of the page.

    Raises:
        InvalidCursor: if the graph was rebuilt since that version, or if with `outcome` a session got another
            outcome twice: sessions are in another order, or which of them had this outcome is no longer
            known, so an offset would skip some and repeat others.
        NotFound: for an unknown workflow.
    """
    scope = GraphScope(tenant, workflow)
    columns = read_newest_columns(db, scope)
    version, offset = (columns.version, 0) if after is None else after
    if version < columns.version and was_rebuilt_since_graph_version(db, scope, version):
        raise InvalidCursor("The graph was rebuilt since the first page; begin again without a cursor.")
    if outcome is not None and has_outcome_changed_twice(db, scope, version, columns.version):
        raise InvalidCursor("Outcomes changed since the first page; begin again without a cursor.")
    chosen = select_session_rows(
        columns, since=since, until=until, outcome=outcome, actor_kind=actor_kind, version=version
    )
    outliers = find_outliers(columns, chosen, rank=rank, threshold=threshold)

    def read_ranked(count: int) -> Iterator[tuple[int, OutlierSession | None]]:
        end = min(offset + count, len(outliers.rows))
        for first in range(offset, end, _SESSIONS_AT_ONCE):
            ranks = range(first, min(first + _SESSIONS_AT_ONCE, end))
            rows = {rank: int(outliers.rows[rank]) for rank in ranks}
            sessions = _read_ranked_sessions(
                db, tenant, (_find_ranked_session_id(columns, row) for row in rows.values())
            )
            for rank, row in rows.items():
                session = sessions.get(_find_ranked_session_id(columns, row))
                if session is None:
                    yield rank, None
                    continue
                outlier = OutlierSession(
                    **vars(session) | {"path_id": _find_ranked_path_id(columns, row)},
                    path_frequency=float(outliers.path_frequency[rank]),
                    typicality=float(outliers.typicality[rank]),
                )
                yield rank, outlier

    page = fetch_list_page(read_ranked, limit=limit, position_of=lambda ranked: (version, ranked[0] + 1))
    return FetchedPage([session for _, session in page.items if session is not None], page.position)


def rank_similar_sessions(
    db: DbSession, *, tenant: Tenant, session_id: str, limit: int
) -> list[SimilarSession]:
    """Return the sessions of the same workflow whose way is most like a session's, itself left out.

    A session that was sealed while the graph was paused has none. The list ends
    before it has more bytes than a page.

    Raises:
        NotFound: if there is no such session.
        SessionNotSealed: if it is not sealed yet.
    """
    session = find_session(db, tenant, session_id)
    if session.status != "sealed":
        raise SessionNotSealed(session.status)
    columns = read_newest_columns(db, GraphScope(tenant, session.workflow))
    (row,) = make_session_lookup(columns).find([session_id]).tolist()
    if row == NOWHERE:
        return []
    neighbours = index_similarity(columns).nearest(row, limit)
    return take_page_items(_describe_similar_sessions(db, tenant, columns, neighbours))


def _describe_similar_sessions(
    db: DbSession, tenant: Tenant, columns: GraphColumns, neighbours: Sequence[SimilarRow]
) -> Iterator[SimilarSession]:
    """Yield the sessions of rows, a part of them read at once; those that were deleted are left out."""
    for first in range(0, len(neighbours), _SESSIONS_AT_ONCE):
        part = neighbours[first : first + _SESSIONS_AT_ONCE]
        sessions = _read_ranked_sessions(
            db, tenant, (_find_ranked_session_id(columns, neighbour.row) for neighbour in part)
        )
        for neighbour in part:
            session = sessions.get(_find_ranked_session_id(columns, neighbour.row))
            if session is not None:
                yield SimilarSession(
                    **vars(session) | {"path_id": _find_ranked_path_id(columns, neighbour.row)},
                    similarity=neighbour.similarity,
                    shared_nodes=[columns.nodes[node].node_id for node in neighbour.shared_nodes],
                )


def _read_ranked_sessions(db: DbSession, tenant: Tenant, session_ids: Iterable[str]) -> dict[str, Session]:
    """Read sessions by id; those that were deleted are left out."""
    statement = (
        select(SessionRow, SessionMetadataRow)
        .join(SessionMetadataRow, col(SessionMetadataRow.session_id) == col(SessionRow.id))
        .where(
            *in_tenant(SessionRow, tenant),
            col(SessionRow.deleted_at).is_(None),
            col(SessionRow.id).in_(list(session_ids)),
        )
    )
    return {row.id: session_to_wire(row, metadata.metadata_) for row, metadata in db.exec(statement)}


def _find_ranked_session_id(columns: GraphColumns, row: int) -> str:
    session_id: str = columns.session_id[row].decode()
    return session_id


def _find_ranked_path_id(columns: GraphColumns, row: int) -> str | None:
    # Not `columns.path[row]`, which looks up that of every row.
    path = int(columns.variant_path[columns.trace_variant[columns.trace[row]]])
    return None if path == NO_PATH else columns.paths[path].path_id

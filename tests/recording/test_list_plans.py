"""Plans of the session list on PostgreSQL: a list reads rows of its own workspace alone. Contract §1."""

import pytest
from sqlalchemy import text

from recorder.recording.session_list import SessionFilter, list_sessions
from recorder.storage.database import Database
from recorder.storage.limited_reads import limited_read
from recorder.tenant import Tenant
from tests.recording.test_ingest import make_session
from tests.support.databases import create_database
from tests.support.query_plans import noted_statements

SESSIONS = 20_000
#: Every tenth session of the workspace that lists is tagged, and other workspaces have nine tenths of all.
OWN = 10


def fill(database: Database) -> None:
    """Store sessions of many workspaces, each with metadata and a tag."""
    make_session(database, workspace_id="wsp_template")
    with database.transaction(write=True) as db:
        connection = db.connection()
        statement = "SELECT column_name FROM information_schema.columns WHERE table_name = 'sessions'"
        names = list(connection.execute(text(statement)).scalars())
        changed = {
            "id": "'ses_' || lpad(n::text, 26, '0')",
            "workspace_id": f"CASE WHEN n % {OWN} = 0 THEN 'wsp_a' ELSE 'wsp_' || n % 100 END",
        }
        values = ", ".join(changed.get(name, f"template.{name}") for name in names)
        connection.execute(
            text(
                f"INSERT INTO sessions ({', '.join(names)}) SELECT {values} "
                f"FROM sessions AS template, generate_series(1, {SESSIONS}) AS n"
            )
        )
        connection.execute(
            text("INSERT INTO session_metadata (session_id, metadata) SELECT id, '{}' FROM sessions")
        )
        connection.execute(
            text(
                "INSERT INTO tags (id, session_id, workspace_id, mode, name, t_ms, position, created_at) "
                "SELECT 'tag_' || substr(id, 5), id, workspace_id, mode, "
                "CASE WHEN id LIKE '%00' THEN 'rare' ELSE 'usual' END, 0, 1, created_at FROM sessions"
            )
        )
        connection.execute(text("ANALYZE"))


@pytest.mark.parametrize("tag", ["rare", "usual", None])
def test_a_list_joins_the_metadata_of_its_own_sessions(postgres: str, tag: str | None) -> None:
    database = Database(create_database(postgres))
    fill(database)
    tenant = Tenant("wsp_a", "live")
    with noted_statements() as noted, limited_read(database, limit_s=60) as db:
        page = list_sessions(db, tenant, SessionFilter(tag=tag), before_id=None, limit=100)
        settings = [each for each in noted if "set_config" in each[0]]
        statement, parameters = next(each for each in noted if "session_metadata" in each[0])
    with database.transaction(write=False) as db:
        connection = db.connection()
        for setting, values in settings:
            connection.exec_driver_sql(setting, values)
        plan = "\n".join(row[0] for row in connection.exec_driver_sql(f"EXPLAIN {statement}", parameters))
    database.close()
    assert len(page.items) == (100 if tag != "rare" else min(100, SESSIONS // 100))
    assert "Index Cond: ((session_id)::text = (sessions.id)::text)" in plan, plan
    assert "Backward using sessions_pkey" not in plan, plan

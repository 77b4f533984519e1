"""Schema of the database, created and changed by Alembic's migrations. Design §4."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection


def upgrade_schema(connection: Connection, present: str | None, revision: str) -> bool:
    """Bring the schema from one revision to another; return False if this release does not know one of them.

    Args:
        connection: open transaction of the database.
        present: revision of the schema now; None if there is none.
        revision: revision to reach, or "head".
    """
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    scripts = ScriptDirectory.from_config(config).walk_revisions()
    known = {*(script.revision for script in scripts), "head", None}
    if present not in known or revision not in known:
        return False
    command.upgrade(config, revision)
    return True

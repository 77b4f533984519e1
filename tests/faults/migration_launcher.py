"""Migrations one after the other: one process has imported them, each life is a child that migrates.

`python -m tests.faults.migration_launcher` reads addresses of databases, one a line, and ignores its
arguments. Each starts a life, once the one before it has ended; its process id is written to stdout, and
`ended` when the database has the newest schema.
"""

import os

# Imported here, so that lives begin with the migration itself.
import recorder.models.tables
import recorder.storage.schema  # noqa: F401
from recorder.storage.database import Database
from tests.support.forked_restarts import live_in_turns


def live(url: str) -> None:
    """Bring a database up to date, as a starting process does."""
    database = Database(url)
    database.migrate()
    database.close()
    os.write(1, b"ended\n")


if __name__ == "__main__":
    live_in_turns(live)

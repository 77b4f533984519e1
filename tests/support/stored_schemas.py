"""Dumps of databases of earlier schemas, with rows, that each release must open."""

import sqlite3
from pathlib import Path

import psycopg

from tests.support.databases import create_empty_database

FOLDER = Path(__file__).parents[1] / "storage" / "fixtures"
#: The dump that has no rows of replays and governance.
FIRST_SCHEMA = "schema_2026_5_0"
SCHEMAS = sorted(folder.name for folder in FOLDER.glob("schema_*"))


def load_schema_file(schema: str, folder: Path) -> str:
    """Return the address of a SQLite database that is loaded from a dump into a folder."""
    with sqlite3.connect(folder / "recorder.db") as connection:
        connection.executescript((FOLDER / schema / "sqlite.sql").read_text())
    connection.close()
    return f"sqlite:///{folder / 'recorder.db'}"


def load_schema_database(schema: str, cluster: str) -> str:
    """Return the address of a PostgreSQL database that is loaded from a dump into a cluster."""
    url = create_empty_database(cluster)
    with psycopg.connect(url) as connection:
        connection.execute((FOLDER / schema / "postgresql.sql").read_bytes())
    return url

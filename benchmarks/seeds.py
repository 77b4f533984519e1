"""Seeds of a load: a workspace, its keys, and sessions that record."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import psycopg

from recorder.access.keys import create_key
from recorder.access.workspaces import create_workspace
from recorder.models.session import SessionCreate
from recorder.recording.sessions import create_session
from recorder.runtime import Runtime
from recorder.settings import Settings
from recorder.tenant import Tenant


@dataclass(frozen=True)
class Target:
    """A session that takes events, and a key that may send them."""

    session_id: str
    key: str

    @property
    def path(self) -> str:
        """Address of its events."""
        return f"/v1/sessions/{self.session_id}/events"


#: Variable with the address of a PostgreSQL cluster; without it deployments have SQLite.
POSTGRES = "RECORDER_BENCHMARK_POSTGRES"


def new_settings(data_dir: Path) -> Settings:
    """Return a fresh deployment in a folder, deaf to this machine's environment but for `POSTGRES`."""
    cluster = os.environ.get(POSTGRES)
    variables = {} if cluster is None else {"RECORDER_DATABASE_URL": _find_database(cluster, data_dir)}
    return Settings.from_env(variables, data_dir=data_dir)


def _find_database(cluster: str, data_dir: Path) -> str:
    """Return the address of the database of a folder, which is created the first time."""
    name = "bench_" + hashlib.sha256(str(data_dir.resolve()).encode()).hexdigest()[:24]
    with psycopg.connect(f"{cluster}/postgres", autocommit=True) as connection:
        known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone()
        if known is None:
            connection.execute(f"CREATE DATABASE {name}".encode())
    return f"{cluster}/{name}"


def new_key(settings: Settings, name: str = "benchmark") -> str:
    """Return a fresh workspace's first key."""
    runtime = Runtime.open(settings)
    try:
        with runtime.database.transaction(write=True) as db:
            return create_workspace(
                db, name, region=settings.region, secret=settings.secret, tier="unlimited"
            ).key
    finally:
        runtime.close()


def recording_sessions(settings: Settings, *, sessions: int, keys: int) -> list[Target]:
    """Return sessions of one workspace that record, spread over so many of its keys."""
    runtime = Runtime.open(settings)
    try:
        with runtime.database.transaction(write=True) as db:
            first = create_workspace(
                db, "benchmark", region=settings.region, secret=settings.secret, tier="unlimited"
            )
            given = [first.key]
            for n in range(1, keys):
                key = create_key(
                    db,
                    first.workspace_id,
                    label=f"load {n}",
                    scope="write",
                    mode="live",
                    secret=settings.secret,
                )
                given.append(key.key)
            body = SessionCreate(workflow="benchmark", start=True)
            ids = [create_session(db, Tenant(first.workspace_id, "live"), body).id for _ in range(sessions)]
        return [Target(session_id, given[n % keys]) for n, session_id in enumerate(ids)]
    finally:
        runtime.close()

"""A throw-away PostgreSQL cluster on loopback."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.databases import are_parts_hidden, part_is_missing
from tests.support.ports import find_free_port

_BINARIES = Path("/usr/lib/postgresql")
_LISTEN = ("listen_addresses=127.0.0.1", "unix_socket_directories=")
# The cluster is thrown away, so it need not survive a crash; nothing lives long enough to be vacuumed.
_THROWN_AWAY = ("fsync=off", "full_page_writes=off", "autovacuum=off")


@contextmanager
def running_postgres(*, is_durable: bool = False) -> Iterator[str]:
    """Start a PostgreSQL cluster on loopback and yield its address; skip where PostgreSQL is missing.

    Args:
        is_durable: keep PostgreSQL's own settings, with which commits survive a power cut.
    """
    installed = [] if are_parts_hidden() else _BINARIES.glob("*/bin/pg_ctl")
    folders = sorted(installed, key=lambda path: int(path.parts[-3]))
    if not folders:
        part_is_missing("PostgreSQL is not installed (apt-get install postgresql).")
    binaries = folders[-1].parent
    user = _server_user()
    folder = Path(tempfile.mkdtemp(prefix="recorder-postgres-"))
    shutil.chown(folder, user)
    port = find_free_port()
    try:
        # Sorted as people sort, not by bytes: code that leans on byte order shows.
        initdb = ["initdb", "--no-sync", "-A", "trust", "-U", "recorder", "-E", "UTF8", "--locale=C.UTF-8"]
        _run(
            binaries,
            [*initdb, "--locale-provider=icu", "--icu-locale=en-US", "-D", str(folder / "data")],
            user,
        )
        settings = [*_LISTEN, *(() if is_durable else _THROWN_AWAY), f"port={port}"]
        options = " ".join(f"-c {setting}" for setting in settings)
        log = str(folder / "log")
        _run(binaries, ["pg_ctl", "start", "-w", "-D", str(folder / "data"), "-l", log, "-o", options], user)
        yield f"postgresql://recorder@127.0.0.1:{port}"
        _run(binaries, ["pg_ctl", "stop", "-m", "immediate", "-D", str(folder / "data")], user)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _server_user() -> str:
    """Return a user without rights for PostgreSQL, which refuses to run as root."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid()).pw_name
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _run(binaries: Path, command: list[str], user: str) -> None:
    program, *arguments = command
    subprocess.run(
        [binaries / program, *arguments],
        user=user if os.geteuid() == 0 else None,
        cwd="/",
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

"""Data folder of a deployment: its errors, the address of its database, and the secret that it holds."""

import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from recorder.errors import Conflict, NotFound


class NoDeployment(NotFound):
    """The data folder holds no deployment."""

    def __init__(self, data: Path) -> None:
        super().__init__(
            "deployment",
            f"There is no deployment in {data}. Choose its folder with --data or RECORDER_DATA_DIR, or "
            "create one with `recorder up` or `recorder workspaces create --init`.",
        )


class DataFolderUnusable(Conflict):
    """The data folder cannot be created, read or written."""

    def __init__(self, data: Path, error: OSError) -> None:
        super().__init__(
            f"The data folder {data} cannot be used: {error.strerror}. Choose another folder with --data, or "
            "give this user the right to write to it."
        )


class MissingSecret(Conflict):
    """The data folder holds a database, and its secret is missing or empty."""

    code = "secret_missing"

    def __init__(self, data: Path) -> None:
        super().__init__(
            f"The secret of the deployment in {data} is missing. Copy it back to {data / 'secret'}, or set "
            "RECORDER_SECRET. If it is lost, `recorder db accept-secret` creates another one."
        )


def make_sqlite_url(path: Path) -> str:
    """Return SQLAlchemy's address of a file, also where its path contains `%`."""
    return f"sqlite:///{path}".replace("%", "%25")


def read_secret(environment: Mapping[str, str], data: Path, *, create: bool) -> bytes:
    """Return the secret of the environment or of the data folder.

    Args:
        environment: its `RECORDER_SECRET` overrules the file.
        data: the data folder.
        create: create a missing folder, and a missing secret where the folder holds no database.

    Raises:
        NoDeployment: if there is no secret and none is to be created.
        MissingSecret: if the secret is empty, or there is none beside a database.
        DataFolderUnusable: if this user may not use the data folder.
    """
    try:
        if create:
            data.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Read first: a process that starts at the same time stores the secret before the database.
        has_database = (data / "recorder.db").exists()
        path = data / "secret"
        if environment.get("RECORDER_SECRET", "").strip():
            return environment["RECORDER_SECRET"].encode()
        if path.exists():
            secret = path.read_bytes()
            if not secret.strip():
                raise MissingSecret(data)
            return secret
        if has_database:
            raise MissingSecret(data)
        if not create:
            raise NoDeployment(data)
        return create_secret(data)
    except OSError as error:
        raise DataFolderUnusable(data, error) from error


def create_secret(data: Path) -> bytes:
    """Store a new secret in a data folder that has none; return the one that is there."""
    return store_secret(data, secrets.token_hex(32).encode())


def store_secret(data: Path, secret: bytes) -> bytes:
    """Store a secret in a data folder that has none; return the one that is there."""
    path, fresh = data / "secret", data / f".secret.{secrets.token_hex(8)}"
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secret)
        file.flush()
        os.fsync(file.fileno())
    # A link never replaces a file: of two processes that start at once, both read the first one's secret.
    with suppress(FileExistsError):
        os.link(fresh, path)
    fresh.unlink()
    # Without its entry on the disk, a start after a power cut would make another secret.
    folder = os.open(data, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    return path.read_bytes()

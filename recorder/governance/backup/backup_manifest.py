"""Manifest of a backup: its moment, its files with their parts, and the seal that the secret gives it.

The manifest is written last: what has none is no backup. The list of files is stored in parts like a file,
so the manifest itself stays small.
"""

import hmac
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Literal, NamedTuple

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from recorder.governance.backup.errors import DamagedBackup, WrongSecret
from recorder.hashing import canonical_json, compute_keyed_digest

#: Locations that a file of a backup comes from.
Store = Literal["database", "lake", "frames", "exports", "cold", "changes"]
VERSION = 1


class BackupFileEntry(NamedTuple):
    """File of a backup, with the SHA-256 of each of its parts in order."""

    store: Store
    key: str
    size: int
    modified: str
    parts: list[str]

    def to_line(self) -> bytes:
        """Return the entry as a line of the list of files."""
        return orjson.dumps(list(self)) + b"\n"


class LakeVersion(BaseModel):
    """Version of a lake table that the backup holds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    workspace_id: str
    mode: str
    kind: str
    version: int


class BackupManifest(BaseModel):
    """A complete backup."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    manifest_version: int
    id: str
    release: str
    #: Revision of the database's schema.
    schema_revision: str
    engine: Literal["sqlite", "postgresql"]
    region: str
    #: Keyed digest that is equal for all backups of a deployment.
    deployment: str
    #: Instant of the database's snapshot and of the versions of the lake.
    moment: datetime
    #: Tables of PostgreSQL with their columns; empty for SQLite, which is one file.
    tables: dict[str, list[str]]
    lake: list[LakeVersion]
    #: Number and hash of the last audit entry of each workspace: a later audit log must continue them.
    audit_heads: dict[str, tuple[int, str]]
    files: int
    total_bytes: int
    #: Parts of the list of files.
    listing: list[str]
    listing_bytes: int
    #: Keyed digest of all other members.
    seal: str = ""

    def sealed(self, secret: bytes) -> "BackupManifest":
        """Return the manifest with its seal."""
        return self.model_copy(update={"seal": self._make_seal(secret)})

    def check(self, secret: bytes) -> None:
        """Check that the deployment with this secret wrote the manifest.

        Raises:
            WrongSecret: if the deployment had another secret.
            DamagedBackup: if the manifest was changed.
        """
        if not hmac.compare_digest(self.deployment, deployment_digest(secret)):
            raise WrongSecret
        if not hmac.compare_digest(self.seal, self._make_seal(secret)):
            raise DamagedBackup(f"the manifest of {self.id} was changed")

    def _make_seal(self, secret: bytes) -> str:
        """Return the digest of the manifest under the deployment's secret, by which a change is detected."""
        content: dict[str, Any] = self.model_dump(mode="json", exclude={"seal"})
        return compute_keyed_digest(secret, "backup-manifest", canonical_json(content)).hex()


def parse_backup_manifest(data: bytes, backup_id: str) -> BackupManifest:
    """Return the manifest of a backup.

    Raises:
        DamagedBackup: if it cannot be read.
    """
    try:
        manifest = BackupManifest.model_validate_json(data)
    except ValidationError as error:
        raise DamagedBackup(f"the manifest of {backup_id} cannot be read") from error
    if manifest.id != backup_id or manifest.manifest_version != VERSION:
        raise DamagedBackup(f"the manifest of {backup_id} is of another backup or release")
    return manifest


def parse_backup_listing(chunks: Iterable[bytes]) -> Iterator[BackupFileEntry]:
    """Yield the files that the list names.

    Raises:
        DamagedBackup: if a line cannot be read.
    """
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            try:
                yield BackupFileEntry(*orjson.loads(line))
            except (orjson.JSONDecodeError, TypeError) as error:
                raise DamagedBackup("its list of files cannot be read") from error
    if rest:
        raise DamagedBackup("its list of files is cut off")


def deployment_digest(secret: bytes) -> str:
    """Return what all backups of a deployment share, without its secret."""
    return compute_keyed_digest(secret, "backup-deployment", b"").hex()

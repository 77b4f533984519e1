"""Versions of the lake's tables that belong to a snapshot of the database, and the files they need.

A batch is numbered in the database before its rows are committed to the lake. The newest version of a table
whose batches the snapshot all knows therefore holds every batch that the snapshot counts as done, and none
that a restored deployment would number again. Purges that came in between are listed apart.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow.fs as pa_fs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from recorder.errors import Unavailable
from recorder.governance.backup.backup_manifest import LakeVersion
from recorder.sealing.lanes import Lane
from recorder.storage.blobs import StoredObject
from recorder.storage.lake import Lake
from recorder.storage.lake_schemas import LAYOUTS, LakeKind
from recorder.storage.lake_tables import LakeTable
from recorder.tenant import Tenant

_ENTRY = re.compile(r"(\d{20})\.(?:json|checkpoint.*\.parquet)", re.ASCII)
#: Commits after the snapshot that are passed over; a run commits a few while the versions are read.
_STEPS_BACK = 10_000


def is_log_key(key: str) -> bool:
    """Return whether a file of the lake belongs to the log of a table."""
    return "/_delta_log/" in key


class FilesChanged(Exception):
    """Files of a version were removed while it was read; another instant is chosen."""


class TableMoment(NamedTuple):
    """Version of a table, and the files it needs; keys are relative to the lake."""

    version: LakeVersion
    files: list[StoredObject]


def read_lake_moment(
    lake: Lake, tenants: Iterable[Tenant], counters: Mapping[Lane, int] | None, slots: int
) -> Iterator[TableMoment]:
    """Yield the version of each table that belongs to a snapshot.

    Args:
        lake: the lake.
        tenants: workspaces and modes of the snapshot.
        counters: last number of each lane of the snapshot; None takes the newest versions.
        slots: number of sealing slots of the snapshot.

    Raises:
        FilesChanged: if files of a version were removed in between.
        Unavailable: if the lake does not answer.
    """
    for tenant in tenants:
        numbers = None
        if counters is not None:
            lanes = [Lane(tenant, slot) for slot in range(slots)]
            numbers = {lane.name: counters.get(lane, 0) for lane in lanes}
        for kind in LAYOUTS:
            try:
                moment = _read_table_moment(lake, kind, tenant, numbers)
            except (FileNotFoundError, DeltaError) as error:
                raise FilesChanged from error
            except OSError as error:
                raise Unavailable("The lake") from error
            if moment is not None:
                yield moment


def _read_table_moment(
    lake: Lake, kind: LakeKind, tenant: Tenant, numbers: Mapping[str, int] | None
) -> TableMoment | None:
    stored = lake.stored_table(kind, tenant)
    table = stored.open()
    steps = 0
    while table is not None and numbers is not None and _is_table_ahead_of_moment(table, numbers):
        if table.version() == 0:
            return None
        steps += 1
        wanted = table.version() - 1
        table = stored.open(wanted)
        # An older version whose log was cleaned opens as the newest one.
        if table is None or table.version() != wanted or steps > _STEPS_BACK:
            raise FilesChanged
    if table is None:
        return None
    folder = f"{tenant.workspace_id}/{tenant.mode}/{kind}"
    files = [
        StoredObject(f"{folder}/{unquote(file.path)}", file.size_bytes, "")
        for file in stored.list_files(table)
    ]
    version = table.version()
    for info in _list_log_of_lake_version(stored, table, version):
        files.append(StoredObject(f"{folder}/{info.path}", info.size, ""))
    described = LakeVersion(workspace_id=tenant.workspace_id, mode=tenant.mode, kind=kind, version=version)
    return TableMoment(described, files)


def _is_table_ahead_of_moment(table: DeltaTable, numbers: Mapping[str, int]) -> bool:
    """Return whether a version holds a batch that the snapshot has not numbered."""
    return any((table.transaction_version(lane) or 0) > number for lane, number in numbers.items())


def _list_log_of_lake_version(
    stored: LakeTable, table: DeltaTable, version: int
) -> Collection[pa_fs.FileInfo]:
    """Return the files of the log that a version needs: its last checkpoint, and the entries since.

    Raises:
        FilesChanged: if an entry was removed in between.
    """
    infos = stored.open_file_system(table).get_file_info(pa_fs.FileSelector("_delta_log"))
    entries: dict[int, pa_fs.FileInfo] = {}
    checkpoints: dict[int, list[pa_fs.FileInfo]] = {}
    for info in infos:
        match = _ENTRY.fullmatch(info.base_name)
        if match is None or int(match[1]) > version:
            continue
        if info.base_name.endswith(".json"):
            entries[int(match[1])] = info
        else:
            checkpoints.setdefault(int(match[1]), []).append(info)
    last = max(checkpoints, default=-1)
    needed = range(last + 1, version + 1)
    if any(number not in entries for number in needed):
        raise FilesChanged
    return [*checkpoints.get(last, []), *(entries[number] for number in needed)]

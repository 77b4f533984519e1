"""TCP ports that processes of this deployment listen on, as Linux shows them in `/proc`.

A process belongs to the deployment if its environment names the deployment's Dagster folder: `recorder up`
gives that variable to every child, and children pass it on. Systems other than Linux have no such list; there
only the addresses from the settings are known.
"""

import os
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_LISTEN = "0A"


def listening_ports(dagster_dir: Path) -> frozenset[int]:
    """Return the ports that processes of the deployment with this Dagster folder listen on."""
    ports_by_inode = dict(_read_listeners())
    if not ports_by_inode:
        return frozenset()
    marker = b"RECORDER_DAGSTER_DIR=" + os.fsencode(dagster_dir)
    found: set[int] = set()
    for process in _own_processes(marker):
        found.update(ports_by_inode[inode] for inode in _socket_inodes(process) if inode in ports_by_inode)
    return frozenset(found)


def _read_listeners() -> Iterator[tuple[str, int]]:
    """Yield inode and port of every socket of this network that listens."""
    for name in ("tcp", "tcp6"):
        try:
            lines = (_PROC / "net" / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            if columns[3] == _LISTEN:
                yield columns[9], int(columns[1].rpartition(":")[2], 16)


def _own_processes(marker: bytes) -> Iterator[Path]:
    """Yield the folders of processes that were started with this variable."""
    for folder in _PROC.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            variables = (folder / "environ").read_bytes()
        except OSError:  # it has ended, or belongs to another user
            continue
        if marker in variables.split(b"\0"):
            yield folder


def _socket_inodes(process: Path) -> Iterator[str]:
    try:
        descriptors = list((process / "fd").iterdir())
    except OSError:
        return
    for descriptor in descriptors:
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            yield target[8:-1]

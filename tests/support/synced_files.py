"""Files and folders that a test writes to the disk."""

import os
from pathlib import Path
from typing import Any

import pytest


def note_syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which the path of each file and folder is added that is synced from now on."""
    synced: list[str] = []

    def note(call: Any) -> Any:
        def sync(descriptor: int) -> None:
            synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
            call(descriptor)

        return sync

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, note(getattr(os, name)))
    return synced

"""A deployment that records, seals, sweeps and compacts until it is killed.

`python -m tests.faults.power_worker FOLDER ACKNOWLEDGED [no-sync]` writes a line to the second path for each
session whose items were acknowledged: its id, workspace and number of events.
"""

import os
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TextIO

from recorder import limits
from recorder.runtime import Runtime
from recorder.sealing import Sealer
from recorder.storage import lake_log, lake_tables
from recorder.storage.lake import Lake
from tests.support.factories import picture
from tests.support.recorded_sessions import WORKSPACE, open_desk, png_item
from tests.support.sealed_sessions import make_settings
from tests.support.sealing import seal_waiting

OTHER_WORKSPACE = "wsp_01k0000000000000000000000b"


def main(folder: Path, acknowledged: Path, *options: str) -> None:
    """Record and seal small batches until the process is killed, or once if `once` is given."""
    # Sessions are swept as soon as they are sealed, and few files are compacted.
    limits.STREAM_RESUME_MINUTES = 0  # type: ignore[misc]
    if "no-sync" in options:
        lake_log.sync_path_to_disk = lake_tables.sync_path_to_disk = lambda path: None
    opened = Runtime.open(make_settings(folder))
    runtime = replace(opened, lake=Lake(opened.lake.url, compact_at_files=5, checkpoint_every=10))
    with acknowledged.open("a", buffering=1) as lines:
        for turn in count():
            record(runtime, turn, lines)
            sealer = Sealer(runtime, owner=f"run-{turn}")
            if sealer.take():
                seal_waiting(sealer)
                if turn % 3 == 2:
                    sealer.maintain()
                sealer.release()
            lines.write("sealed\n")
            if "once" in options:
                runtime.close()
                # What is synced by now counts: nothing that ends a process in order may add to it.
                os._exit(0)


def record(runtime: Runtime, turn: int, lines: TextIO) -> None:
    """Record two stopped sessions, and one that goes on."""
    workspace_id = (WORKSPACE, OTHER_WORKSPACE)[turn % 2]
    with open_desk(runtime, workspace_id=workspace_id) as desk:
        for number in range(3):
            events = [{"t_ms": n, "type": "click"} for n in range(2 + turn % 5)]
            frames = [png_item(1, picture(turn % 7))] if number == 0 else []
            session_id = desk.record(events=events, frames=frames, is_stopped=number < 2)
            lines.write(f"{session_id} {workspace_id} {len(events)}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])

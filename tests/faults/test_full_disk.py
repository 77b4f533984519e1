"""A full disk is 503: nothing is stored by halves, sealing waits, and with room again all goes on.

Database, store of objects and lake are each on a small disk in memory, and then all of them.
"""

import json
from pathlib import Path

import pytest

from tests.faults.full_disk_launcher import EVENTS
from tests.support.small_disk import run_on_small_disk

_SIZE = "24m"
REFUSED = {
    "database": {"events", "frames"},
    "blobs": {"frames"},
    "lake": set(),
    "all": {"events", "frames"},
}


@pytest.mark.parametrize("part", REFUSED)
def test_a_full_disk_is_503_and_all_goes_on_when_there_is_room(part: str, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    program = ["-m", "tests.faults.full_disk_launcher", str(tmp_path / "data"), part, str(disk)]
    ended = run_on_small_disk(disk, _SIZE, program, 240)
    assert ended.returncode == 0, ended.stderr
    seen = json.loads(ended.stdout)
    assert seen["refused"] == {kind: [503, "unavailable"] for kind in REFUSED[part]}
    assert seen["is_unchanged"] == dict.fromkeys(REFUSED[part], True)
    # The object of a frame is stored before its row: without a row it goes after a day.
    most = {"events": 0, "frames": int(part == "database")}
    assert all(count <= most[kind] for kind, count in seen["files_left"].items())
    # Sealing found no fault in the session that waits; a small session needs no room for objects.
    assert seen["waiting"] == ["sealed" if part == "blobs" else "stopped", 0, None]
    assert seen["sealed"] == ["sealed", "sealed"]
    accepted = seen["accepted"]
    assert seen["stored"] == {"events": accepted["events"] * EVENTS, "frames": accepted["frames"]}
    print(f"{part}: {accepted} requests stored, refused {seen['refused']}")

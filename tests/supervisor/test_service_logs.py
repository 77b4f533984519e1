"""Rotation of the logs of a service: five files stay, and a disk without room stops nothing."""

from pathlib import Path

import pytest

from recorder.supervisor import service_logs
from recorder.supervisor.service_logs import OLD_LOGS, LogRotation, rotate_service_log
from tests.support.small_disk import run_on_small_disk


def test_a_log_is_moved_when_it_is_large_and_five_files_stay(tmp_path: Path) -> None:
    log = tmp_path / "part.log"
    with log.open("ab") as written:  # as a child has it open
        for number in range(9):
            written.write(b"%d" % number * 10)
            written.flush()
            assert rotate_service_log(log, most_bytes=10)
            assert not rotate_service_log(log, most_bytes=10)
        written.write(b"last")
    values = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert values["part.log"] == "last"
    assert {name: text[0] for name, text in values.items()} == {
        "part.log": "l",
        "part.log.1": "8",
        "part.log.2": "7",
        "part.log.3": "6",
        "part.log.4": "5",
    }
    assert OLD_LOGS == 4 and service_logs.LOG_BYTES == 10_000_000


def test_a_log_that_cannot_be_rotated_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, blocked = tmp_path / "part.log", tmp_path / "part.log.new"
    log.write_bytes(b"x" * service_logs.LOG_BYTES)
    blocked.mkdir()
    rotation = LogRotation()
    for _ in range(3):
        rotation.rotate([log])
    assert [record.getMessage() for record in caplog.records] == [f"{log} cannot be rotated: Is a directory"]
    assert {path.name for path in tmp_path.iterdir()} == {"part.log", "part.log.new"}
    blocked.rmdir()
    rotation.rotate([log])
    assert log.read_bytes() == b"" and (tmp_path / "part.log.1").stat().st_size == service_logs.LOG_BYTES


def test_a_log_on_a_full_disk_keeps_its_last_lines(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    program = (
        "from pathlib import Path\n"
        "from recorder.supervisor.service_logs import rotate_service_log\n"
        f"log = Path({str(disk)!r}, 'part.log')\n"
        "log.with_name('part.log.1').write_text('older')\n"
        "log.write_text('\\n'.join(f'line {number:06}' for number in range(25_000)))\n"
        "with log.open('a') as written:\n"
        "    assert not rotate_service_log(log, most_bytes=100_000)\n"
        "    written.write('\\nanother')\n"
        "print(*sorted(path.name for path in log.parent.iterdir()), log.stat().st_size)\n"
        "print(log.with_name('part.log.1').read_text(), *log.read_text().splitlines()[-2:])\n"
    )
    ended = run_on_small_disk(disk, "400k", ["-c", program], 60)
    assert ended.stdout == "part.log part.log.1 64008\nolder line 024999 another\n", ended.stderr

"""Files that threads write and hash while rows are made. Spec §2.5."""

import errno
import hashlib
import io
import random
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from recorder.exports.destinations.hashed_files import DiskFull, HashedFile

_MIB = 1024 * 1024


def pieces(seed: int) -> Iterator[bytes]:
    """Yield a few MiB in pieces of very different sizes, empty ones among them."""
    drawn = random.Random(seed)
    for _ in range(40):
        yield drawn.randbytes(drawn.choice([0, 1, 56, 4_000, 300_000, _MIB - 1, _MIB, 2 * _MIB + 7]))


@pytest.mark.parametrize("seed", range(4))
def test_all_bytes_arrive_in_order_whatever_their_pieces(tmp_path: Path, seed: int) -> None:
    whole = b"".join(pieces(seed))
    with (tmp_path / "file").open("wb") as file, HashedFile(file) as hashed:
        for piece in pieces(seed):
            assert hashed.write(piece) == len(piece)
        assert hashed.tell() == hashed.size_bytes == len(whole)
        hashed.flush()
        assert (tmp_path / "file").read_bytes() == whole
    assert hashed.sha256 == hashlib.sha256(whole).hexdigest()


def test_what_is_lent_may_change_once_it_is_written(tmp_path: Path) -> None:
    lent = bytearray(b"a" * 2 * _MIB)
    with (tmp_path / "file").open("wb") as file, HashedFile(file) as hashed:
        for letter in b"abc":
            lent[:] = bytes([letter]) * len(lent)
            hashed.write(memoryview(lent))
            hashed.write(memoryview(lent)[:100])
        hashed.flush()
    size = 2 * _MIB + 100
    assert hashed.sha256 == hashlib.sha256(b"a" * size + b"b" * size + b"c" * size).hexdigest()


def test_the_hash_is_of_all_that_was_written_so_far(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file, HashedFile(file) as hashed:
        hashed.write(b"one")
        assert hashed.sha256 == hashlib.sha256(b"one").hexdigest()
        hashed.write(b"two")
        assert hashed.sha256 == hashlib.sha256(b"onetwo").hexdigest()


def test_a_full_disk_is_told_in_the_next_call_and_kept() -> None:
    with Path("/dev/full").open("wb", buffering=0) as file, HashedFile(file) as hashed:
        with pytest.raises(DiskFull) as raised:
            for _ in range(100):
                hashed.write(bytes(_MIB))
        assert raised.value.__cause__ is None
        assert hashed.size_bytes < 100 * _MIB and isinstance(hashed.failure, DiskFull)
        with pytest.raises(DiskFull):
            hashed.write(b"more")


def test_a_full_disk_is_told_at_the_end_of_a_small_file() -> None:
    with Path("/dev/full").open("wb", buffering=0) as file, HashedFile(file) as hashed:
        hashed.write(b"small")
        with pytest.raises(DiskFull):
            hashed.flush()


class Odd(io.RawIOBase):
    """A file in memory that takes a part of what it is given, or fails at its second piece."""

    def __init__(self, folder: BinaryIO, *, most: int = _MIB, failing: OSError | None = None) -> None:
        self.pieces = list[bytes]()
        self._folder = folder
        self._most = most
        self._failing = failing

    def fileno(self) -> int:
        """Return the statistics of a file system with space."""
        return self._folder.fileno()

    def write(self, data: Any) -> int:
        """Take a part."""
        if self.pieces and self._failing is not None:
            failing, self._failing = self._failing, None
            raise failing
        self.pieces.append(bytes(data[: self._most]))
        return len(self.pieces[-1])


def test_a_file_that_takes_a_part_is_given_the_rest(tmp_path: Path) -> None:
    whole = random.Random(1).randbytes(5 * _MIB + 3)
    with (tmp_path / "file").open("wb") as file:
        odd = Odd(file, most=100_000)
        with HashedFile(odd) as hashed:  # type: ignore[arg-type]
            hashed.write(whole[: 3 * _MIB])
            hashed.write(whole[3 * _MIB :])
            hashed.flush()
    assert b"".join(odd.pieces) == whole and hashed.sha256 == hashlib.sha256(whole).hexdigest()


def test_nothing_stands_behind_a_hole_though_the_writer_buries_the_error(tmp_path: Path) -> None:
    with (
        (tmp_path / "file").open("wb") as file,
        HashedFile(
            odd := Odd(file, failing=OSError(errno.EIO, "no answer"))  # type: ignore[arg-type]
        ) as hashed,
    ):
        for _ in range(20):
            with suppress(OSError):
                hashed.write(bytes(_MIB))
        for ask in (hashed.flush, lambda: hashed.sha256):
            with pytest.raises(OSError, match="no answer") as raised:
                ask()
            assert raised.value is hashed.failure and raised.value.__cause__ is None
    assert len(odd.pieces) == 1


class Slow:
    """A file whose first piece takes until it is let go."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.may_go_on = threading.Event()
        self.closed = False

    def fileno(self) -> int:
        """Return the descriptor of the file."""
        return self._file.fileno()

    def write(self, data: bytes) -> int:
        """Write when it is let go."""
        assert self.may_go_on.wait(20)
        return self._file.write(data)

    def flush(self) -> None:
        """Pass the data on."""
        self._file.flush()


def test_the_writer_waits_once_enough_is_waiting(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        slow = Slow(file)
        with HashedFile(slow) as hashed:  # type: ignore[arg-type]
            writer = threading.Thread(target=lambda: [hashed.write(bytes(_MIB)) for _ in range(64)])
            writer.start()
            writer.join(0.3)
            assert writer.is_alive() and hashed.size_bytes < 32 * _MIB
            slow.may_go_on.set()
            writer.join()
            hashed.flush()
    assert (tmp_path / "file").stat().st_size == 64 * _MIB


def test_nothing_is_at_work_after_an_error(tmp_path: Path) -> None:
    before = threading.active_count()
    with (tmp_path / "file").open("wb") as file:
        with pytest.raises(RuntimeError), HashedFile(file) as hashed:
            for _ in range(4):
                hashed.write(bytes(4 * _MIB))
            raise RuntimeError
        assert threading.active_count() == before
        size = file.tell()
    assert (tmp_path / "file").stat().st_size == size

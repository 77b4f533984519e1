"""Files made to do harm: lines, archives, buffers, read with care and in little memory. docs/exports.md."""

import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recorder.datasets.webdataset import format_tar_header
from recorder.exports.verify import verify_manifest
from recorder.exports.verify.checked_rows import read_checked_events, read_checked_frames
from tests.support.spoiled_datasets import exchange_file, file_of_rows, problems_of


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"session_id": "ses_1"}\n', "missing required field"),
        (b'{"session_id": 7, "event_id": "", "t_ms": 1}\n', "line 1"),
        (b"not json\n", "line 1"),
        (b'"' + b"x" * 1_200_000 + b'"\n', "more than 1048576 bytes"),
        (b"\xff\xff\n", "line 1"),
    ],
)
def test_a_broken_line_is_named(copy: Callable[[str], Path], line: bytes, words: str) -> None:
    folder = copy("jsonl")
    path = file_of_rows(folder)
    exchange_file(folder, path, line + path.read_bytes())
    assert words in problems_of(folder)


def _member(name: str, data: bytes, size: int | None = None) -> bytes:
    return (
        format_tar_header(name.encode(), len(data) if size is None else size) + data + bytes(-len(data) % 512)
    )


def _whole_sample() -> bytes:
    frame = {"session_id": "ses_1", "seq": 0, "frame_id": "frm_1", "sha256": "0" * 64, "image": None}
    text = orjson.dumps(frame).ljust(600)
    return _member("ses_1-000000.events.json", b"[]") + _member("ses_1-000000.json", text)


_END = bytes(1024)


def _linked() -> bytes:
    info = tarfile.TarInfo("ses_1-000000.json")
    info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return info.tobuf(tarfile.USTAR_FORMAT) + _END


def _extended() -> bytes:
    info = tarfile.TarInfo("n" * 300 + ".json")
    return info.tobuf(tarfile.PAX_FORMAT) + _END


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (_member("ses_1-000000.json", b"{}", 8**11 - 1) + _END, "ends within a member"),
        (_whole_sample()[:-600], "ends within a member"),
        (_whole_sample()[:-100], "without the mark"),
        (_whole_sample(), "without the mark"),
        (_member("../../etc/passwd", b"{}") + _END, "belongs to no sample"),
        (_member("ses_1-000000.json", b"{}") + _END, "broken member"),
        (_member("ses_1-000000.exe", b"{}") + _END, "belongs to no sample"),
        (_member("ses_1-000000.events.json", b"[]") + _END, "lacks the frame or the events"),
        (_linked(), "no plain file"),
        (_extended(), "no plain file"),
        (b"\0" * 511, "without the mark"),
    ],
)
def test_an_archive_is_read_with_care(copy: Callable[[str], Path], data: bytes, words: str) -> None:
    folder = copy("webdataset")
    exchange_file(folder, file_of_rows(folder), data)
    assert words in problems_of(folder)


def test_a_sample_under_another_name_is_found(copy: Callable[[str], Path]) -> None:
    folder = copy("webdataset")
    path = file_of_rows(folder)
    with tarfile.open(path) as archive:
        names = [member.name for member in archive]
    session = names[0].split("-")[0].encode()
    exchange_file(folder, path, _renamed(path.read_bytes(), session + b"-000000.", session + b"-000009."))
    assert "another sample than the row of the frame says" in problems_of(folder)


def _renamed(data: bytes, old: bytes, new: bytes) -> bytes:
    """Return the archive with changed names in its headers, and checksums that fit."""
    blocks = [data[start : start + 512] for start in range(0, len(data), 512)]
    for index, block in enumerate(blocks):
        if block.startswith(old) and block[257:262] == b"ustar":
            name = block[:100].rstrip(b"\0").replace(old, new).decode()
            blocks[index] = format_tar_header(name.encode(), int(block[124:135], 8))
    return b"".join(blocks)


def test_arrow_buffers_are_not_taken_at_their_word(copy: Callable[[str], Path]) -> None:
    # Offsets that point outside of their buffer must be refused, not read.
    folder = copy("arrow")
    path = file_of_rows(folder)
    data = bytearray(path.read_bytes())
    with pa.ipc.open_file(path) as file:
        offsets = file.get_batch(0).column("payload").buffers()[1].to_pybytes()
    at = bytes(data).index(offsets[:24])
    data[at + 8 : at + 16] = (2**40).to_bytes(8, "little")
    exchange_file(folder, path, bytes(data))
    assert "cannot be read" in problems_of(folder)


@pytest.mark.parametrize("kind", ["events", "frames"])
def test_one_long_value_that_all_rows_repeat_takes_little_memory(
    copy: Callable[[str], Path], kind: str
) -> None:
    path = next(copy("parquet").glob(f"data/*/{kind}-*"))
    row = pq.read_table(path).slice(0, 1)
    name, count, long = ("payload", 150, "x" * 2**20)
    if kind == "frames":
        name, count, long = ("image", 15, {"bytes": b"x" * 10 * 2**20, "path": "a"})  # type: ignore[assignment]
    index = row.schema.get_field_index(name)
    column = pa.repeat(pa.scalar(long, row.schema.field(name).type), count)
    rows = pa.concat_tables([row] * count).set_column(index, row.schema.field(name), column)
    pq.write_table(rows, path, compression="zstd")
    del rows, column
    read: Any = read_checked_events if kind == "events" else read_checked_frames
    before = pa.total_allocated_bytes()
    allocated = [pa.total_allocated_bytes() - before for _ in read(path, "parquet")]
    assert len(allocated) == count and path.stat().st_size < 2**20
    assert max(allocated) < 120 * 2**20


@pytest.mark.parametrize(
    "written",
    [
        {"row_group_size": 2},
        {"write_batch_size": 1, "dictionary_pagesize_limit": 1},
        {"use_dictionary": False},
    ],
    ids=["dictionaries", "overflowing", "plain"],
)
def test_pictures_are_read_whatever_their_dictionaries(
    copy: Callable[[str], Path], written: dict[str, Any]
) -> None:
    folder = copy("parquet")
    path = next(folder.glob("data/*/frames-*"))
    rows = pq.read_table(path)
    pq.write_table(rows, path, **written)
    exchange_file(folder, path, path.read_bytes())
    report = verify_manifest(folder)
    assert (report.problems, report.frames) == ([], rows.num_rows)


def test_an_arrow_dictionary_is_expanded_by_few_rows_at_a_time(copy: Callable[[str], Path]) -> None:
    path = next(copy("arrow").glob("data/*/events-*"))
    with pa.ipc.open_file(path) as file:
        row = file.read_all().slice(0, 1).combine_chunks()
    rows = pa.concat_tables([row] * 100).combine_chunks()
    long = pa.DictionaryArray.from_arrays(pa.array([0] * 100, pa.int32()), ["x" * 2**20])
    rows = rows.set_column(rows.schema.get_field_index("payload"), "payload", long)
    with pa.ipc.new_file(path, rows.schema) as writer:
        writer.write_table(rows)
    before = pa.total_allocated_bytes()
    allocated = [pa.total_allocated_bytes() - before for _ in read_checked_events(path, "arrow")]
    assert len(allocated) == 100 and max(allocated) < 80 * 2**20

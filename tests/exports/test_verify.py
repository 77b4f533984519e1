"""Datasets that were spoiled, or made to do harm: sentences, no tracebacks, and nothing read beside them."""

import hashlib
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import orjson
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recorder.exports.verify import ManifestUnreadable, verify_manifest
from recorder.exports.verify.checking import ANOTHER_MANIFEST
from recorder.exports.verify.contents import read_events, read_frames
from recorder.exports.verify.listing import Entry, parse_listing
from recorder.exports.verify.places import NotFetched, open_place
from recorder.exports.writers.ustar import _header
from tests.exporting import export, manifest_of
from tests.reading_back import FORMATS
from tests.sealed import Recording, make_runtime, seal


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    runtime = make_runtime(tmp_path_factory.mktemp("verify"))
    seal(
        runtime, [Recording(frames=[0, 100, 600, 900], outcome=None), Recording(actor_kind=None, frames=[0])]
    )
    yield {format: export(runtime, format=format) for format in FORMATS}
    runtime.close()


@pytest.fixture
def copy(originals: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """A dataset of a format that a test may spoil."""

    def _copy(format: str) -> Path:
        return Path(shutil.copytree(originals[format], tmp_path / "dataset"))

    return _copy


def _file(folder: Path) -> Path:
    """The file that its rows are in: events, or samples."""
    return next(path for path in folder.glob("data/*/*") if not path.name.startswith("frames"))


def _put(folder: Path, path: Path, data: bytes) -> None:
    """Exchange a file and make the manifest fit, so that only reading it tells."""
    path.write_bytes(data)
    manifest = manifest_of(folder)
    entry = next(shard for shard in manifest["shards"] if folder / shard["path"] == path)
    manifest["totals"]["bytes"] += len(data) - entry["size_bytes"]
    entry |= {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "manifest.json").write_bytes(orjson.dumps(manifest))


def _problems(folder: Path) -> str:
    report = verify_manifest(folder)
    assert not report.is_valid
    return " ".join(report.problems)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("how", ["cut", "garbled", "emptied", "other"])
def test_a_broken_file_is_told_of_in_a_sentence(copy: Callable[[str], Path], format: str, how: str) -> None:
    folder = copy(format)
    path = _file(folder)
    data = path.read_bytes()
    spoiled = {
        "cut": data[: len(data) // 3],
        "garbled": data[: len(data) // 4] + bytes(byte ^ 0x5A for byte in data[len(data) // 4 :]),
        "emptied": b"",
        "other": b'{"rows": [[[[' + b"[" * 100_000,
    }[how]
    _put(folder, path, spoiled)
    assert path.name in _problems(folder)


@pytest.mark.parametrize("format", FORMATS)
def test_a_changed_event_is_found_though_the_manifest_was_made_to_fit(
    copy: Callable[[str], Path], format: str
) -> None:
    folder = copy(format)
    path = _file(folder)
    match format:
        case "parquet":
            pl.read_parquet(path).with_columns(t_ms=pl.col("t_ms") + 1).write_parquet(path)
        case "arrow":
            rows = pl.read_ipc(path.read_bytes()).with_columns(t_ms=pl.col("t_ms") + 1)
            rows.write_ipc(path)
        case "jsonl":
            path.write_text(path.read_text().replace('"t_ms":500', '"t_ms":501'))
        case _:
            path.write_bytes(path.read_bytes().replace(b'"event_id":"evt_', b'"event_id":"evu_'))
    _put(folder, path, path.read_bytes())
    assert "not the row set" in _problems(folder)


@pytest.mark.parametrize("format", ["arrow", "webdataset"])
def test_an_exchanged_picture_is_found(copy: Callable[[str], Path], format: str) -> None:
    folder = copy(format)
    path = next(path for path in folder.glob("data/*/*") if not path.name.startswith("events"))
    _put(folder, path, path.read_bytes().replace(b"\x89PNG\r\n", b"\x89PNG\r\r"))
    assert "another picture" in _problems(folder)


_PATHS = [
    "../../../etc/passwd",
    "/etc/passwd",
    "data/workflow=checkout/../../../secret-00000-of-00001.parquet",
    "data/workflow=../events-00000-of-00001.parquet",
    "data/workflow=checkout/events-00000-of-00001.parquet\n",
    "file:///etc/passwd",
    "data\\workflow=checkout\\events-00000-of-00001.parquet",
    "",
    7,
    None,
]


@pytest.mark.parametrize("path", _PATHS)
def test_a_manifest_that_leads_elsewhere_is_not_followed(copy: Callable[[str], Path], path: Any) -> None:
    folder = copy("parquet")
    manifest = manifest_of(folder)
    manifest["shards"][0]["path"] = path
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ManifestUnreadable, match="none of ours"):
        verify_manifest(folder)


def test_a_link_out_of_the_folder_is_not_followed(copy: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copy("jsonl")
    path = _file(folder)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert "leads out of the dataset's folder" in _problems(folder)


def test_a_pipe_in_place_of_a_file_is_not_waited_for(copy: Callable[[str], Path]) -> None:
    folder = copy("jsonl")
    path = _file(folder)
    path.unlink()
    os.mkfifo(path)
    assert "is missing" in _problems(folder)


def _changed(manifest: dict[str, Any], change: dict[str, Any]) -> bytes:
    return orjson.dumps(manifest | change)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"[]",
        b"\xff\xfe",
        b"[" * 200_000,
        b'{"export_id": "exp_1"}',
        b'{"export_id":' * 50_000,
    ],
)
def test_what_is_no_manifest_is_called_so(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "manifest.json").write_bytes(text)
    with pytest.raises(ManifestUnreadable):
        verify_manifest(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"shards": {}},
        {"shards": [[]]},
        {"totals": None},
        {"format": "csv"},
        {"format": "webdataset"},
        {"row_set_sha256": "short"},
        {"export_id": "\x1b[2J"},
        {"totals": {"rows": -1, "frames": 0, "bytes": 0, "shards": 0}},
        {"totals": {"rows": 1e300, "frames": 0, "bytes": 0, "shards": 0}},
    ],
)
def test_a_manifest_of_wrong_members_is_none_of_ours(
    copy: Callable[[str], Path], change: dict[str, Any]
) -> None:
    folder = copy("parquet")
    (folder / "manifest.json").write_bytes(_changed(manifest_of(folder), change))
    with pytest.raises(ManifestUnreadable):
        verify_manifest(folder)


def test_a_file_that_is_listed_twice_is_refused(originals: dict[str, Path]) -> None:
    manifest = manifest_of(originals["arrow"])
    with pytest.raises(ManifestUnreadable, match="twice"):
        parse_listing(_changed(manifest, {"shards": manifest["shards"] * 2}))


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
    path = _file(folder)
    _put(folder, path, line + path.read_bytes())
    assert words in _problems(folder)


def _member(name: str, data: bytes, size: int | None = None) -> bytes:
    return _header(name.encode(), len(data) if size is None else size) + data + bytes(-len(data) % 512)


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
    _put(folder, _file(folder), data)
    assert words in _problems(folder)


def test_a_sample_under_another_name_is_found(copy: Callable[[str], Path]) -> None:
    folder = copy("webdataset")
    path = _file(folder)
    with tarfile.open(path) as archive:
        names = [member.name for member in archive]
    session = names[0].split("-")[0].encode()
    _put(folder, path, _renamed(path.read_bytes(), session + b"-000000.", session + b"-000009."))
    assert "another sample than the row of the frame says" in _problems(folder)


def _renamed(data: bytes, old: bytes, new: bytes) -> bytes:
    """The archive with the names of headers changed, and their sums with them."""
    blocks = [data[start : start + 512] for start in range(0, len(data), 512)]
    for index, block in enumerate(blocks):
        if block.startswith(old) and block[257:262] == b"ustar":
            name = block[:100].rstrip(b"\0").replace(old, new).decode()
            blocks[index] = _header(name.encode(), int(block[124:135], 8))
    return b"".join(blocks)


def test_arrow_buffers_are_not_taken_at_their_word(copy: Callable[[str], Path]) -> None:
    """Offsets that lead out of their buffer would be read as they are."""
    folder = copy("arrow")
    path = _file(folder)
    data = bytearray(path.read_bytes())
    with pa.ipc.open_file(path) as file:
        offsets = file.get_batch(0).column("payload").buffers()[1].to_pybytes()
    at = bytes(data).index(offsets[:24])
    data[at + 8 : at + 16] = (2**40).to_bytes(8, "little")
    _put(folder, path, bytes(data))
    assert "cannot be read" in _problems(folder)


def test_a_file_of_another_hash_is_not_parsed(copy: Callable[[str], Path]) -> None:
    folder = copy("parquet")
    path = _file(folder)
    pl.read_parquet(path).with_columns(t_ms=pl.col("t_ms") + 1).write_parquet(path)
    report = verify_manifest(folder)
    assert report.rows == 0 and "its rows were not read" in " ".join(report.problems)
    report = verify_manifest(folder, manifest_sha256="0" * 64)
    assert (report.problems, report.shards) == ([ANOTHER_MANIFEST], 0)


@pytest.mark.parametrize("kind", ["events", "frames"])
def test_one_long_value_that_all_rows_repeat_takes_little_memory(
    copy: Callable[[str], Path], kind: str
) -> None:
    path = next(copy("parquet").glob(f"data/*/{kind}-*"))
    row = pq.read_table(path).slice(0, 1)
    name, count, long = ("payload", 150, "x" * 2**20)
    if kind == "frames":
        name, count, long = ("image", 15, {"bytes": b"x" * 10 * 2**20, "path": "a"})  # type: ignore[assignment]
    place = row.schema.get_field_index(name)
    column = pa.repeat(pa.scalar(long, row.schema.field(name).type), count)
    rows = pa.concat_tables([row] * count).set_column(place, row.schema.field(name), column)
    pq.write_table(rows, path, compression="zstd")
    del rows, column
    read: Any = read_events if kind == "events" else read_frames
    before = pa.total_allocated_bytes()
    allocated = [pa.total_allocated_bytes() - before for _ in read(path, "parquet")]
    assert len(allocated) == count and path.stat().st_size < 2**20
    assert max(allocated) < 120 * 2**20


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
    allocated = [pa.total_allocated_bytes() - before for _ in read_events(path, "arrow")]
    assert len(allocated) == 100 and max(allocated) < 80 * 2**20


def test_a_destination_gives_no_more_of_a_file_than_was_listed(originals: dict[str, Path]) -> None:
    class Store:
        """A store whose files have become very long; it counts what is asked of them."""

        asked = 0

        def size(self, path: str) -> int:
            return 2**40

        def read_range(self, path: str, start: int, end: int) -> Iterator[bytes]:
            self.asked = end - start
            yield b""

        def fetch(self, path: str, folder: Path) -> Path:
            raise AssertionError("the whole file is fetched")

    store = Store()
    with pytest.raises(ManifestUnreadable):
        verify_manifest(store)
    entry = parse_listing((originals["parquet"] / "manifest.json").read_bytes()).shards[0]
    with tempfile.TemporaryDirectory() as folder:
        open_place(store).fetch(entry, Path(folder))
    assert store.asked == entry.size_bytes + 1


def test_a_wholly_wrong_dataset_is_told_of_briefly(copy: Callable[[str], Path]) -> None:
    folder = copy("parquet")
    manifest = manifest_of(folder)
    entry = manifest["shards"][0]
    manifest["shards"] = [
        entry | {"path": f"data/workflow=checkout/events-{number:05d}-of-01024.parquet"}
        for number in range(1_000)
    ]
    (folder / "manifest.json").write_bytes(orjson.dumps(manifest))
    problems = verify_manifest(folder).problems
    assert len(problems) == 201
    assert problems[-1] == "More is wrong; the list ends here."


@pytest.mark.parametrize("format", FORMATS)
def test_progress_goes_from_nothing_to_everything(originals: dict[str, Path], format: str) -> None:
    told: list[tuple[int, int]] = []
    verify_manifest(originals[format], on_progress=lambda done, total: told.append((done, total)))
    done, totals = zip(*told, strict=True)
    size = manifest_of(originals[format])["totals"]["bytes"]
    assert list(done) == sorted(done)
    assert (done[-1], set(totals)) == (size, {size})


def test_a_dataset_in_a_store_is_verified_there(copy: Callable[[str], Path]) -> None:
    folder = copy("webdataset")
    store = fsspec.filesystem("memory")
    store.put(str(folder), "/verified", recursive=True)
    assert verify_manifest("memory://verified").problems == []
    store.pipe("/verified/" + str(_file(folder).relative_to(folder)), b"x" * 100_000)
    assert "another SHA-256" in " ".join(verify_manifest("memory://verified/manifest.json").problems)


_SHARD = "data/workflow=checkout/events-00000-of-00001.parquet"
_SERVED = "http://127.0.0.1:9/v1/exports/exp_1"


@pytest.mark.parametrize(
    "url",
    [
        None,
        "http://169.254.169.254/latest/meta-data",
        f"http://127.0.0.1:8/v1/exports/exp_1/files/{_SHARD}",
        f"https://127.0.0.1:9/v1/exports/exp_1/files/{_SHARD}",
        f"{_SERVED}/files/data/workflow=other/events-00000-of-00001.parquet",
        "http://127.0.0.1:9/v1/exports/exp_2/files/" + _SHARD,
        "file:///etc/passwd",
        "http://[",
    ],
)
def test_no_address_but_the_exports_own_is_asked(tmp_path: Path, url: str | None) -> None:
    entry = Entry(kind="events", path=_SHARD, size_bytes=1, rows=1, sessions=1, sha256="0" * 64, url=url)
    with pytest.raises(NotFetched, match="not the export's own"):
        open_place(f"{_SERVED}/manifest?sig=x").fetch(entry, tmp_path)

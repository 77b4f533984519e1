"""The search for stored words finds them in whatever packs them."""

import base64
import gzip
import io
import sqlite3
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
import zstandard

from tests.support.stored_content import locations_of_words, texts_of_file

WORD = "canarywordofaperson"
_TEXT = WORD.encode()


def write_archive(path: Path) -> None:
    """Write an archive with a packed member."""
    data = zstandard.compress(_TEXT)
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("member.zst")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))


def write_database(path: Path) -> None:
    """Write a SQLite database with a row of the word."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE words (word TEXT)")
        connection.execute("INSERT INTO words VALUES (?)", (WORD,))
        connection.commit()


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("raw.bin", lambda path: path.write_bytes(b"\xff\x00" + _TEXT + b"\xff")),
        ("packed.bin", lambda path: path.write_bytes(b"\xff" + zstandard.compress(_TEXT * 3))),
        ("packed.gz", lambda path: path.write_bytes(gzip.compress(_TEXT * 3))),
        ("line.jsonl", lambda path: path.write_bytes(b'{"a":"' + base64.b64encode(b"a " + _TEXT) + b'"}')),
        ("escaped.json", lambda path: path.write_text("".join(f"\\u{ord(letter):04x}" for letter in WORD))),
        ("table.parquet", lambda path: pl.DataFrame({"a": [_TEXT] * 3}).write_parquet(path)),
        ("table.arrow", lambda path: pl.DataFrame({"a": [WORD]}).write_ipc(path, compression="zstd")),
        ("archive.tar", write_archive),
        ("recorder.db", write_database),
    ],
)
def test_a_word_is_found_in_every_form(tmp_path: Path, name: str, write: Callable[[Path], object]) -> None:
    path = tmp_path / name
    write(path)
    assert locations_of_words(((name, text) for text in texts_of_file(path)), WORD) == {WORD: {name}}
    assert locations_of_words(((name, text) for text in texts_of_file(path)), "another") == {}


def test_a_word_is_found_in_the_log_of_an_open_database(tmp_path: Path) -> None:
    path = tmp_path / "recorder.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = wal")
        connection.execute("CREATE TABLE words (word TEXT)")
        connection.execute("INSERT INTO words VALUES (?)", (WORD,))
        connection.commit()
        log = tmp_path / "recorder.db-wal"
        assert locations_of_words((("log", text) for text in texts_of_file(log)), WORD) == {WORD: {"log"}}

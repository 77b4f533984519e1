"""Files of uploads in live replays, made of inputs. Spec §4.6."""

import pytest

from recorder.live.upload_files import InvalidFile, read_file


@pytest.mark.parametrize(
    ("value", "type", "content"),
    [
        ("a,b\n1,ü", "text/plain", "a,b\n1,ü".encode()),
        ("data:text/csv;charset=utf-8,a%2Cb", "text/csv", b"a,b"),
        ("data:application/pdf;base64,JVBERi0=", "application/pdf", b"%PDF-"),
        ("data:,", "text/plain", b""),
    ],
)
def test_a_file_is_a_text_or_a_data_url(value: str, type: str, content: bytes) -> None:
    file = read_file({"files": ["bill.pdf"]}, value)
    assert (file.name, file.type, file.content) == ("bill.pdf", type, content)


@pytest.mark.parametrize("value", ["data:text/csv", "data:;base64,a", "data:;base64,***="])
def test_other_urls_are_no_file(value: str) -> None:
    with pytest.raises(InvalidFile):
        read_file({}, value)


def test_a_file_has_no_folder() -> None:
    for name in ("/etc/passwd", "..\\up\\passwd", "a/../passwd"):
        assert read_file({"files": [name]}, "x").name == "passwd"
    assert read_file({}, "x").name == read_file({"files": [".."]}, "x").name == "file"

"""Files of uploads in live replays, made of inputs. Spec §4.6."""

import json

import pytest

from recorder.live.upload_files import InvalidFile, list_upload_contents, make_upload_files


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
    (file,) = make_upload_files({"files": ["bill.pdf"]}, value)
    assert (file.name, file.type, file.content) == ("bill.pdf", type, content)


@pytest.mark.parametrize("value", ["data:text/csv", "data:;base64,a", "data:;base64,***="])
def test_other_urls_are_no_file(value: str) -> None:
    with pytest.raises(InvalidFile):
        make_upload_files({}, value)


def test_a_file_has_no_folder() -> None:
    for name in ("/etc/passwd", "..\\up\\passwd", "a/../passwd"):
        assert make_upload_files({"files": [name]}, "x")[0].name == "passwd"
    assert make_upload_files({}, "x")[0].name == make_upload_files({"files": [".."]}, "x")[0].name == "file"


def test_several_files_are_an_array_of_as_many() -> None:
    given = {"files": ["a.csv", "up/b.txt"]}
    contents = ["data:text/csv,a%2Cb", "plain"]
    files = make_upload_files(given, json.dumps(contents))
    assert [(file.name, file.content) for file in files] == [("a.csv", b"a,b"), ("b.txt", b"plain")]
    assert list_upload_contents(given, json.dumps(contents)) == contents
    for wrong in (
        "data:text/csv,a",
        "[",
        "{}",
        "[1, 2]",
        '["one"]',
        '["one", "data:,", "more"]',
        "[" * 9_999,
    ):
        with pytest.raises(InvalidFile):
            make_upload_files(given, wrong)

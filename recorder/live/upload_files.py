"""Files that live replays upload: made of inputs, never read from this machine. Spec §4.6."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PureWindowsPath
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

_MOST_NAME_CHARACTERS = 255
_PLAIN = "text/plain"
_DATA = "data:"


class InvalidFile(Exception):
    """An input holds no contents of a file."""


@dataclass(frozen=True)
class UploadFile:
    """A file as the browser takes it."""

    name: str
    type: str
    content: bytes = field(repr=False)

    def to_browser(self) -> dict[str, str]:
        """Return the file as the browser's process takes it."""
        return {
            "name": self.name,
            "type": self.type,
            "content": base64.b64encode(self.content).decode(),
        }


def make_upload_files(given: Mapping[str, Any], value: str) -> list[UploadFile]:
    """Return the files of an upload, under the names that were recorded.

    Args:
        given: the event's `input`.
        value: the contents: a `data:` URL, or a text; of several files a JSON array of those, in their order.

    Raises:
        InvalidFile: if a URL cannot be read, or the array has not as many as the upload.
    """
    names = given.get("files") or ()
    if len(names) < 2:
        return [_make_upload_file(names[0] if names else "", value)]
    try:
        contents = msgspec.json.decode(value.encode(), type=list[str])
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise InvalidFile from error
    if len(contents) != len(names):
        raise InvalidFile
    return [_make_upload_file(name, content) for name, content in zip(names, contents, strict=True)]


def list_upload_contents(given: Mapping[str, Any], value: str) -> list[str]:
    """Return the contents of an upload's files as they were sent.

    Raises:
        InvalidFile: as `make_upload_files`.
    """
    return [value] if len(make_upload_files(given, value)) < 2 else msgspec.json.decode(value, type=list[str])


def _make_upload_file(recorded_name: Any, value: str) -> UploadFile:
    name = PureWindowsPath(str(recorded_name)).name.strip(".")[-_MOST_NAME_CHARACTERS:]
    if not value.startswith(_DATA):
        return UploadFile(name or "file", _PLAIN, value.encode())
    head, comma, data = value.removeprefix(_DATA).partition(",")
    if not comma:
        raise InvalidFile
    kind, *options = head.split(";")
    content = unquote_to_bytes(data)
    if options and options[-1].strip().lower() == "base64":
        try:
            content = base64.b64decode(content, validate=True)
        except binascii.Error as error:
            raise InvalidFile from error
    return UploadFile(name or "file", kind or _PLAIN, content)

"""Files that live replays upload: made of inputs, never read from this machine. Spec §4.6."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PureWindowsPath
from typing import Any
from urllib.parse import unquote_to_bytes

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


def read_file(given: Mapping[str, Any], value: str) -> UploadFile:
    """Return the file of an upload, under the name that was recorded.

    Args:
        given: the event's `input`.
        value: the contents: a `data:` URL, or a text.

    Raises:
        InvalidFile: if the URL cannot be read.
    """
    names = given.get("files") or ()
    name = PureWindowsPath(str(names[0] if names else "")).name.strip(".")[-_MOST_NAME_CHARACTERS:]
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

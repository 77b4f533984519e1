"""Demonstration files of MiniWoB++: one gzip JSON object each, decoded and checked. Design §2 (importers)."""

import gzip
import zlib
from pathlib import Path
from typing import Annotated, Any

import msgspec

from recorder.importers.upload import UnreadableRecording

SUFFIXES = (".json.gz", ".json")
# The largest known demonstration has some 40 MB; a small file that claims to hold far more is not one.
_MOST_BYTES = 1024 * 1024 * 1024

#: Pixels and milliseconds that can be meant; anything beyond is no demonstration.
Pixels = Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class Node(msgspec.Struct):
    """An element of a page: its box, its colours, its text and what lies in it.

    `classes` and `id` of SVG elements come as objects; `tag` names the kind of an input (`INPUT_text`), and
    the tag `t` stands for a text node.
    """

    tag: str
    left: Pixels = 0.0
    top: Pixels = 0.0
    width: Pixels = 0.0
    height: Pixels = 0.0
    id: str | dict[str, Any] | None = ""
    classes: str | dict[str, Any] | None = ""
    text: str | None = None
    value: str | bool | float | None = None
    bg: str | None = msgspec.field(name="bgColor", default=None)
    fg: str | None = msgspec.field(name="fgColor", default=None)
    focused: bool = False
    is_target: bool = msgspec.field(name="recordingTarget", default=False)
    children: list["Node"] | None = None


class Action(msgspec.Struct, frozen=True):
    """What the person did; `timing` 1 is before the page handled it, 3 after."""

    type: str
    x: Pixels | None = None
    y: Pixels | None = None
    key_code: int | None = msgspec.field(name="keyCode", default=None)
    char_code: int | None = msgspec.field(name="charCode", default=None)
    timing: int | None = None

    @property
    def identity(self) -> tuple[Any, ...]:
        """Equal for the two halves of one action."""
        return self.type, self.x, self.y, self.key_code, self.char_code


class State(msgspec.Struct):
    """The page at one moment, and the action seen at it."""

    time: Milliseconds
    dom: Node
    action: Action | None = None


class Demonstration(msgspec.Struct):
    """A whole file."""

    utterance: str
    raw_reward: int | float = msgspec.field(name="rawReward")
    states: list[State]
    reward: int | float | None = None


_decoder = msgspec.json.Decoder(Demonstration)


def read_file(path: Path) -> tuple[Demonstration, bytes]:
    """A demonstration and the bytes of its file's content.

    Raises:
        UnreadableRecording: if the file is cut off, is no gzip, no JSON, or not of this shape.
    """
    content = _content(path)
    try:
        return _decoder.decode(content), content
    except msgspec.ValidationError as error:
        raise UnreadableRecording(f"not a demonstration: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableRecording("not JSON, or cut off") from error
    except RecursionError as error:
        raise UnreadableRecording("nested too deep") from error


def _content(path: Path) -> bytes:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except EOFError as error:
        raise UnreadableRecording("the gzip data is cut off") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise UnreadableRecording("not gzip data, or damaged") from error
    except OSError as error:
        raise UnreadableRecording(f"cannot be opened ({type(error).__name__})") from error
    if len(content) > _MOST_BYTES:
        raise UnreadableRecording(f"holds more than {_MOST_BYTES} bytes")
    return content

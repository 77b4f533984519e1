"""The bytes of a log file, plain or gzip, piece by piece, and never more than a log can have."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from recorder.interchange.logs import UnreadableLog

#: The largest public logs have below one GiB.
MOST_BYTES = 4 * 1024**3
#: How many times its own size a gzip file may hold, once that is worth asking: logs have 10 to 60 times.
MOST_RATIO = 200
_ASKED_FROM = 64 * 1024**2
_PIECE = 65_536
_GZIP_MAGIC = b"\x1f\x8b"


def read_pieces(path: Path) -> Iterator[bytes]:
    """The content of a file, unpacked where it is gzip (whatever its name says).

    Raises:
        UnreadableLog: if it cannot be opened, is damaged, or holds too much.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(2) == _GZIP_MAGIC
            size = file.seek(0, 2)
            file.seek(0)
            most = max(_ASKED_FROM, size * MOST_RATIO) if packed else MOST_BYTES
            with gzip.GzipFile(fileobj=file) if packed else file as content:
                yield from _bounded(path, content, min(most, MOST_BYTES))
    except EOFError as error:
        raise UnreadableLog(path.name, None, "the gzip data is cut off") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise UnreadableLog(path.name, None, "the gzip data is damaged") from error
    except OSError as error:
        raise UnreadableLog(path.name, None, f"cannot be read ({type(error).__name__})") from error


def _bounded(path: Path, file: "BinaryIO | gzip.GzipFile", most: int) -> Iterator[bytes]:
    read = 0
    while piece := file.read(_PIECE):
        read += len(piece)
        if read > most:
            raise UnreadableLog(
                path.name, None, f"holds more than {most:,} bytes, which no log of its size does"
            )
        yield piece

"""Files that appear once they are whole."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replace_file_at_end(path: Path) -> Iterator[Path]:
    """Yield the path of a part, which becomes the file at the end of the block; an error removes it.

    The part has a name of its own, so that two writers of one file each write a whole one.
    """
    part = path.with_name(f".part-{secrets.token_hex(8)}")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)

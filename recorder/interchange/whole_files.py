"""Files that appear once they are whole."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replace_file_at_end(path: Path) -> Iterator[Path]:
    """Yield the path of a part, which becomes the file at the end of the block; an error removes it."""
    part = path.with_name(f"{path.name}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)

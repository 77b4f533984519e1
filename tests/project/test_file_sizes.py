"""Sizes of the product's files: none is so long that it must have several purposes."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
_MOST_LINES = 400
#: The first migration creates all tables.
_EXCEPTIONS = {"recorder/storage/migrations/versions/0001_schema.py"}


def test_no_file_of_the_product_has_more_than_400_lines() -> None:
    sizes = {
        path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines())
        for folder in ("api", "pipelines", "recorder")
        for path in (ROOT / folder).rglob("*.py")
    }
    assert len(sizes) > 100
    assert {name for name, lines in sizes.items() if lines > _MOST_LINES} == _EXCEPTIONS

"""The project's prose and sources, for the tests that hold them side by side."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {page.relative_to(ROOT).as_posix(): page.read_text() for page in sorted(DOCS.glob("*.md"))}
ALL = "\n".join(PAGES.values())
SOURCES = [path for part in ("api", "pipelines", "recorder") for path in sorted((ROOT / part).rglob("*.py"))]


def table(text: str, heading: str) -> list[list[str]]:
    """Return the rows of the first table below a heading or a sentence, without its head."""
    below = text.partition(heading)[2]
    lines = re.search(r"(?:^\|.*\n)+", below, re.MULTILINE)
    assert lines, heading
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[0].splitlines()[2:]]


def prose(text: str) -> str:
    """Return a page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def calls(*names: str) -> Iterator[ast.Call]:
    """Yield the calls of these functions or methods (`ValidationFailed.of`) in the sources."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in names:
                yield node


def text_of(node: ast.expr | None) -> str | None:
    """Return the value of a string constant; None of anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None

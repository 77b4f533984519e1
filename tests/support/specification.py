"""The rows of the specification as `tests/spec/specification.md` lists them, and the tests that it names."""

import importlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _pytest.mark.structures import ParameterSet

TESTS = Path(__file__).parents[1]
_REFERENCE = re.compile(r"(?P<file>[\w/]+\.py)::(?P<test>\w+)(?:\[(?P<case>.+)\])?")


@dataclass(frozen=True)
class SpecRow:
    """One row: what the specification says there, and what proves it."""

    section: str
    name: str
    says: str
    proof: str

    @property
    def key(self) -> str:
        """Section and name: what a check is entered under."""
        return f"{self.section} {self.name}"

    @property
    def part(self) -> str | None:
        """The later part that builds it; None for what is there."""
        return self.proof.removeprefix("later: ") if self.proof.startswith("later: ") else None


def read_rows(text: str) -> list[SpecRow]:
    """Return the rows of all tables, in their order."""
    rows = []
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        number = section.partition(" ")[0]
        for line in section.splitlines():
            if line.startswith("| ") and not line.startswith("| row |"):
                cells = [cell.strip() for cell in line.strip("|").split(" | ")]
                assert len(cells) == 3, line
                rows.append(SpecRow(number, *cells))
    return rows


ROWS = read_rows((TESTS / "spec" / "specification.md").read_text())


def has_test(reference: str) -> bool:
    """Return whether there is a test of this name below `tests/`, and a case of this id."""
    match = _REFERENCE.fullmatch(reference)
    if match is None or not (TESTS / match["file"]).is_file():
        return False
    module = importlib.import_module(f"tests.{match['file'].removesuffix('.py').replace('/', '.')}")
    test = getattr(module, match["test"], None)
    if test is None:
        return False
    return match["case"] is None or match["case"] in _cases(test)


def _cases(test: Any) -> set[str]:
    """Return the ids of the cases that a test is run with."""
    marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
    return {_case(value, mark.kwargs.get("ids")) for mark in marks for value in mark.args[1]}


def _case(value: Any, name: Any) -> str:
    if isinstance(value, ParameterSet):
        return str(value.id or value.values[0])
    return str(name(value)) if callable(name) else str(value)

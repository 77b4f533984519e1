"""Signatures: strings that a call could swap are passed by name."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_STRINGS = 2
_STRINGS = {"str", "str | None"}
#: Functions that take more strings by position, with the reason.
EXCEPTIONS = {
    # A cache hit per element of a snapshot costs 190 ns by position and 430 ns by name.
    "recorder/memory/steps/screens.py:_make_screen_token": "called once per element of a snapshot",
    "recorder/sealing/failures.py:__init__": "an error is unpickled by its arguments in order",
}


def positional_strings(code: str) -> Iterator[tuple[str, int]]:
    """Yield each function with the number of strings, optional or not, that a call may pass by position."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            parameters = [*node.args.posonlyargs, *node.args.args]
            annotations = (
                parameter.annotation for parameter in parameters if parameter.annotation is not None
            )
            yield node.name, sum(ast.unparse(annotation) in _STRINGS for annotation in annotations)


def test_no_function_takes_three_strings_by_position() -> None:
    values = {
        f"{path.relative_to(ROOT)}:{name}"
        for folder in ("recorder", "api", "pipelines")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name, count in positional_strings(path.read_text())
        if count > MOST_STRINGS
    }
    # An exception that is no longer needed is removed from the list.
    assert values == EXCEPTIONS.keys()


def test_strings_passed_by_position_are_counted() -> None:
    code = """
class Shelf:
    async def put(self, row: str, /, place: str, *, label: str) -> None: ...
def move(source: str, target: str, owner: str, count: int, note: str | None) -> str: ...
"""
    assert dict(positional_strings(code)) == {"put": 2, "move": 4}


def fields_of_tenants(code: str) -> Iterator[str]:
    """Yield the values (dataclasses, tuples) with a workspace and a mode as two fields; tables are none."""
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.ClassDef):
            continue
        decorators = {ast.unparse(decorator).partition("(")[0] for decorator in node.decorator_list}
        bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
        if decorators & {"dataclass", "dataclasses.dataclass"} or bases & {"NamedTuple", "Struct"}:
            fields = {ast.unparse(field) for field in node.body if isinstance(field, ast.AnnAssign)}
            if {"workspace_id: str", "mode: str"} <= fields:
                yield node.name


def test_workspace_and_mode_are_passed_as_one_value() -> None:
    values = []
    for folder in ("recorder", "api", "pipelines"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            code = path.read_text()
            assert "workspace_id: str, mode: str" not in code, path
            values += fields_of_tenants(code)
    assert values == ["Tenant"]


def test_workspace_and_mode_as_two_fields_are_found() -> None:
    code = """
@dataclass(frozen=True)
class Key:
    workspace_id: str
    mode: str
class Pair(NamedTuple):
    mode: str
    workspace_id: str
class Row(SQLModel, table=True):
    workspace_id: str
    mode: str
@dataclass
class Origin:
    workspace_id: str
    mode: str | None = None
"""
    assert list(fields_of_tenants(code)) == ["Key", "Pair"]

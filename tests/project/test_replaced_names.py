"""Names that tests replace: none is a private one of the product; what a test changes is a parameter."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Functions that set or remove an attribute; the name is the last string before the value.
_SETTERS = {"setattr", "delattr", "object"}


def is_private(name: str) -> bool:
    """Return whether a name, or the last part of a dotted one, is private; those of Python itself are not."""
    last = name.rpartition(".")[2]
    return last.startswith("_") and not last.endswith("__")


def replaced_private_names(code: str) -> Iterator[str]:
    """Yield the private names of other objects that some code sets.

    Attributes of `self` and `cls` are the code's own.
    """
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call):
            function = ast.unparse(node.func).rpartition(".")[2]
            if function in _SETTERS:
                texts = [part for part in node.args[:2] if isinstance(part, ast.Constant)]
                yield from (
                    part.value for part in texts if isinstance(part.value, str) and is_private(part.value)
                )
        elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            owner = ast.unparse(node.value)
            if owner not in ("self", "cls") and is_private(node.attr):
                yield f"{owner}.{node.attr}"


def test_no_test_replaces_a_private_name() -> None:
    values = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for name in replaced_private_names(path.read_text())
    }
    assert values == set()


def test_replaced_private_names_are_found() -> None:
    code = """
monkeypatch.setattr(module, "_LIMIT", 1)
monkeypatch.setattr("recorder.module._LIMIT", 1)
monkeypatch.setattr(recorder, "__file__", "there")
monkeypatch.setattr(time, "monotonic", now)
mock.patch.object(Lake, "_open", now)
module._PAUSE_S = 0.0
lake.tables._held += 1
del pool._process
self._pool = None
read = pool._process
"""
    assert list(replaced_private_names(code)) == [
        "_LIMIT",
        "recorder.module._LIMIT",
        "_open",
        "module._PAUSE_S",
        "lake.tables._held",
        "pool._process",
    ]

"""Names of classes and type aliases: no two of the product are equal, so that a name says which is meant."""

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Name of several classes → the reason why it stays.
EXCEPTIONS: dict[str, str] = {}


def shared_names(root: Path, folders: Iterable[str]) -> dict[str, list[str]]:
    """Return the names that several classes or aliases below these folders have, with their places."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            tree = ast.parse(path.read_text())
            named = [(node.name, node.lineno) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
            for name, line in [*named, *list_aliases(tree)]:
                places[name].append(f"{path.relative_to(root)}:{line}")
    return {name: where for name, where in places.items() if len(where) > 1}


def list_aliases(tree: ast.Module) -> list[tuple[str, int]]:
    """Return names and lines of the type aliases of a module; type variables are none."""
    return [
        (target.id, node.lineno)
        for node in tree.body
        if isinstance(node, ast.Assign) and not _is_type_variable(node.value)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id[0].isupper() and not target.id.isupper()
    ]


def _is_type_variable(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func) in ("TypeVar", "ParamSpec")


def test_no_two_classes_of_the_product_share_a_name() -> None:
    shared = shared_names(ROOT, ("recorder", "api", "pipelines"))
    named = [f"{name}: {' '.join(where)}" for name, where in shared.items() if name not in EXCEPTIONS]
    assert not named, "name each class by the word of its field\n" + "\n".join(named)
    assert EXCEPTIONS.keys() <= shared.keys(), "an exception that is no longer needed is removed"


def test_classes_of_one_name_are_found(tmp_path: Path) -> None:
    codes = {
        "recorder": "class Lane: ...\nKind = int\nItem = TypeVar('Item')",
        "api": "class Lane: ...\nclass Gate: ...\nKind = str\nItem = TypeVar('Item')",
    }
    for folder, code in codes.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "module.py").write_text(code)
    assert shared_names(tmp_path, ("recorder", "api")) == {
        "Lane": ["recorder/module.py:1", "api/module.py:1"],
        "Kind": ["recorder/module.py:2", "api/module.py:3"],
    }

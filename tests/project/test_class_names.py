"""Names of classes: two classes of the product never share one, so that a name says which is meant."""

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Name of several classes → the reason why it stays.
EXCEPTIONS: dict[str, str] = {}


def shared_names(root: Path, folders: Iterable[str]) -> dict[str, list[str]]:
    """Return the names that several classes below these folders have, with their places."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    places[node.name].append(f"{path.relative_to(root)}:{node.lineno}")
    return {name: where for name, where in places.items() if len(where) > 1}


def test_no_two_classes_of_the_product_share_a_name() -> None:
    shared = shared_names(ROOT, ("recorder", "api", "pipelines"))
    named = [f"{name}: {' '.join(where)}" for name, where in shared.items() if name not in EXCEPTIONS]
    assert not named, "name each class by the word of its field\n" + "\n".join(named)
    assert EXCEPTIONS.keys() <= shared.keys(), "an exception that is no longer needed is removed"


def test_classes_of_one_name_are_found(tmp_path: Path) -> None:
    for folder, code in {"recorder": "class Lane: ...", "api": "class Lane: ...\nclass Gate: ..."}.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "module.py").write_text(code)
    assert shared_names(tmp_path, ("recorder", "api")) == {
        "Lane": ["recorder/module.py:1", "api/module.py:1"]
    }

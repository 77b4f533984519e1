"""Every notebook runs from the top to the end against a real service."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_and_shows_what_it_promises(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)

    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(ROOT)}}).execute()

    pictures = [output for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    assert any("image/png" in output["data"] for output in pictures)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_kept_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)

    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)

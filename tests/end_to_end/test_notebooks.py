"""Every notebook runs from the top to the end against a real service, and is stored with what it shows."""

import re
from pathlib import Path

import nbformat
import pytest

from notebooks.run import run_notebook, settle

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# Folders, ports and ids of the run that was stored.
NOISE = re.compile(
    r"/home/|/root/|/work/|/tmp/(?!recorder-notebook)|127\.0\.0\.1:(?!8700)|_[0-9a-hjkmnp-tv-z]{26}\b"
)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_and_shows_what_it_promises(path: Path) -> None:
    notebook = run_notebook(path)
    settle(notebook)
    pictures = [output for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    assert any("image/png" in output["data"] for output in pictures)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stored_with_its_pictures_and_without_noise(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    texts = [output.get("text", "") for output in outputs]
    texts += [
        text
        for output in outputs
        for kind, text in output.get("data", {}).items()
        if kind.startswith("text/")
    ]
    assert [match[0] for text in texts if (match := NOISE.search(text))] == []
    assert path.stat().st_size < 400_000
    assert "make notebooks" in notebook.cells[0].source

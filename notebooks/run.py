"""Run the notebooks from the top to the end and store what they show: `make notebooks`."""

import re
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

_HERE = Path(__file__).parent
#: What differs from run to run, and what is put in its place. The pictures and tables stay as they are.
_REPLACED = [
    (re.compile(r"/[^\s'\"]*/recorder-notebook-\w+"), "/tmp/recorder-notebook"),  # noqa: S108
    (re.compile(r"(https?://127\.0\.0\.1):\d+"), r"\1:8700"),
    (re.compile(r"\b(ses|evt|frm|exp|wsp|key|req)_[0-9a-hjkmnp-tv-z]{26}\b"), r"\1_…"),
    (re.compile(r"\x1b\[[0-9;?]*[A-Za-z]"), ""),
]


def run_notebook(path: Path) -> Any:
    """Run a notebook in a fresh kernel, from the folder of the project, and return it with its outputs."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(_HERE.parent)}})
    client.execute()
    return notebook


def settle(notebook: Any) -> None:
    """Replace in the outputs what differs from run to run: folders, ports, ids, times of execution."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if "outputs" in cell:
            # Warnings of libraries, and progress that depends on the moment.
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        for output in cell.get("outputs", []):
            if "text" in output:
                output["text"] = _settled(output["text"])
            texts = output.get("data", {})
            for kind in texts:
                if kind.startswith("text/"):
                    texts[kind] = _settled(texts[kind])
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }


def _settled(text: str) -> str:
    for pattern, replacement in _REPLACED:
        text = pattern.sub(replacement, text)
    return text


def main() -> None:
    """Run the notebooks that are named, or all, and store them."""
    for path in [Path(name) for name in sys.argv[1:]] or sorted(_HERE.glob("*.ipynb")):
        notebook = run_notebook(path)
        settle(notebook)
        nbformat.write(notebook, path)
        print(f"{path.name}: {path.stat().st_size // 1024} KB")


if __name__ == "__main__":
    main()

"""`make mutation`: break the code in small ways, one at a time, and check that named tests fail.

`mutants.toml` lists the mutants. Results are appended to a file, so that several calls go on where the last
one ended; a mutant that survived, or whose entry changed, is run again.
"""

import hashlib
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import pytest
import typer
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]
_LIST = Path(__file__).with_name("mutants.toml")
_SHARE = 0.97
# A mutant may loop for ever, which is as good as a failure.
_SECONDS = 120
_IMPORTED_BEFORE = "ignore::pytest.PytestAssertRewriteWarning"
_LIBRARIES = (
    "alembic.command",
    "fastapi",
    "httpx",
    "hypothesis",
    "numpy",
    "orjson",
    "sqlmodel",
    "starlette.testclient",
)


@dataclass(frozen=True)
class Mutant:
    """A small change of the code, and the tests that must notice it."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Digest of the entry: a changed one is run again."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


def read_mutants() -> list[Mutant]:
    """Return the listed mutants; those of a group share its file and its tests."""
    groups: list[dict[str, Any]] = tomllib.loads(_LIST.read_text())["group"]
    return [
        Mutant(
            name=f"{group['name']}: {mutant['name']}",
            file=mutant.get("file", group["file"]),
            old=mutant["old"],
            new=mutant["new"],
            tests=tuple(mutant.get("tests", group["tests"])),
        )
        for group in groups
        for mutant in group["mutant"]
    ]


def find_stale(mutants: list[Mutant], root: Path) -> list[str]:
    """Return the names of mutants whose text is not exactly once in its file, or changes nothing."""
    return [
        mutant.name
        for mutant in mutants
        if (root / mutant.file).read_text().count(mutant.old) != 1 or mutant.old == mutant.new
    ]


def run(
    results: Annotated[Path, typer.Option(help="Appended to, and read to go on.")] = Path("mutation.jsonl"),
    only: Annotated[str, typer.Option(help="Run mutants whose names contain this.")] = "",
    seconds: Annotated[float, typer.Option(help="Begin no mutant after so long.")] = float("inf"),
) -> None:
    """Run the mutants that have no result yet, and print all of them."""
    console = Console()
    mutants = [mutant for mutant in read_mutants() if only in mutant.name]
    stale = find_stale(mutants, ROOT)
    if stale:
        console.print("Not exactly once in their file:", *stale, sep="\n  ")
        raise typer.Exit(2)
    until = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        tree = _copy_tree(Path(folder))
        known = _read_results(results)
        for mutant in mutants:
            if known.get(mutant.digest) != "killed" and time.monotonic() < until:
                began = time.monotonic()
                outcome = _run_mutant(mutant, tree, known, results)
                took = time.monotonic() - began
                known[mutant.digest] = outcome
                _append(results, mutant.digest, mutant.name, outcome)
                console.print(f"{outcome:9} {took:4.0f} s  {mutant.name}", highlight=False)
    outcomes = Counter(known.get(mutant.digest, "not run") for mutant in mutants)
    _print_survivors(console, mutants, known)
    killed, ran = outcomes["killed"], sum(outcomes.values()) - outcomes["not run"]
    console.print(f"{killed} of {ran} killed ({killed / max(ran, 1):.1%}); {outcomes['not run']} not run yet")
    if outcomes["broken"] or (ran and killed / ran < _SHARE):
        raise typer.Exit(1)


def _run_mutant(mutant: Mutant, tree: Path, known: dict[str, str], results: Path) -> str:
    """Run the tests of a mutant: `killed`, `survived`, or `broken` where they fail without it too."""
    clean = f"clean {' '.join(mutant.tests)} {_digest_of(mutant)}"
    if known.get(clean) != "passed":
        known[clean] = "passed" if _run_tests(mutant.tests, tree) else "failed"
        _append(results, clean, clean, known[clean])
    if known[clean] == "failed":
        return "broken"
    file = tree / mutant.file
    text = file.read_text()
    file.write_text(text.replace(mutant.old, mutant.new))
    try:
        return "survived" if _run_tests(mutant.tests, tree) else "killed"
    finally:
        file.write_text(text)


def _digest_of(mutant: Mutant) -> str:
    """Return the digest of the file as it is, so that a clean run of the tests counts for this code."""
    return hashlib.sha256((ROOT / mutant.file).read_bytes()).hexdigest()[:8]


def _run_tests(tests: tuple[str, ...], tree: Path) -> bool:
    """Return whether tests pass in a tree; an entry that begins with `-` is an option of pytest.

    They run in a fork of this process, which has imported libraries but nothing of the project: this saves
    two thirds of the time of a short test.
    """
    for library in _LIBRARIES:
        importlib.import_module(library)
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            _become_pytest(tests, tree, output.fileno())
        until = time.monotonic() + _SECONDS
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
            if time.monotonic() > until:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return False
            time.sleep(0.05)
        status = os.waitstatus_to_exitcode(ended[1])
        if status in (4, 5):  # wrong arguments, or no test at all
            output.seek(0)
            raise SystemExit(output.read().decode())
        return status == 0


def _become_pytest(tests: tuple[str, ...], tree: Path, output: int) -> NoReturn:
    """Run pytest in this process, and end it."""
    status = 3
    try:
        os.setpgid(0, 0)
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
        os.chdir(tree)
        sys.dont_write_bytecode = True
        sys.path[:] = [str(tree), *(entry for entry in sys.path if Path(entry or ROOT).resolve() != ROOT)]
        for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "recorder", "api")]:
            del sys.modules[name]
        # Libraries are imported before pytest could rewrite their assertions, which need no rewriting.
        options = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "-W", _IMPORTED_BEFORE]
        status = int(pytest.main([*options, *tests]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _copy_tree(folder: Path) -> Path:
    """Copy what the project consists of to a folder of its own."""
    tree = folder / "tree"
    left_out = shutil.ignore_patterns(".git", ".venv", "__pycache__", "recorder-data", ".*_cache", "*.jsonl")
    shutil.copytree(ROOT, tree, ignore=left_out)
    return tree


def _read_results(file: Path) -> dict[str, str]:
    if not file.exists():
        return {}
    lines = (json.loads(line) for line in file.read_text().splitlines())
    return {line["id"]: line["outcome"] for line in lines}


def _append(file: Path, identity: str, name: str, outcome: str) -> None:
    with file.open("a") as lines:
        lines.write(json.dumps({"id": identity, "name": name, "outcome": outcome}) + "\n")


def _print_survivors(console: Console, mutants: list[Mutant], known: dict[str, str]) -> None:
    table = Table("outcome", "mutant", "file", "tests")
    for mutant in mutants:
        if (outcome := known.get(mutant.digest)) in ("survived", "broken"):
            table.add_row(outcome, mutant.name, mutant.file, " ".join(mutant.tests))
    if table.row_count:
        console.print(table)


if __name__ == "__main__":
    typer.run(run)

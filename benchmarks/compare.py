"""`python -m benchmarks.compare COMMIT FIGURE…`: figures of this tree beside those of an earlier commit.

Each round measures the earlier commit, this tree, and the earlier commit again, so that both meet the same
machine and the earlier commit shows how much it differs from itself. A figure with a peer or a floor is
compared by its ratio.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

_ROOT = Path(__file__).parents[1]
#: A figure may differ by so much, whatever the spread of the earlier commit.
_ALLOWED = 0.05

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@dataclass(frozen=True)
class Comparison:
    """A figure in all rounds."""

    name: str
    #: Of each round: this tree ÷ the mean of the earlier commit's two runs.
    changes: Sequence[float]
    #: Of each round: the second run of the earlier commit ÷ its first.
    spread: Sequence[float]

    @property
    def is_unchanged(self) -> bool:
        """True if the median change is at most 5 %, or within the spread of the earlier commit."""
        change = statistics.median(self.changes)
        within = max(abs(ratio - 1) for ratio in self.spread)
        return abs(change - 1) <= max(_ALLOWED, within)


@app.command()
def main(
    commit: Annotated[str, typer.Argument(help="Earlier commit.")],
    names: Annotated[list[str], typer.Argument(help="Figures, as of `python -m benchmarks`.")],
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of three runs each.")] = 3,
    full: Annotated[bool, typer.Option("--full", help="Whole runs instead of quick ones.")] = False,
) -> None:
    """Compare figures with those of an earlier commit. The exit code is 1 if one has changed."""
    words = Console(stderr=True)
    runs: list[tuple[dict[str, float], ...]] = []
    with _checked_out(commit) as earlier:
        for number in range(rounds):
            measured = []
            for tree in (earlier, _ROOT, earlier):
                with words.status(f"Round {number + 1} of {rounds}: {', '.join(names)} …"):
                    measured.append(_measure(tree, names, is_quick=not full))
            runs.append(tuple(measured))
    comparisons = compare_runs(runs)
    _show(comparisons, Console(width=None if sys.stdout.isatty() else 120))
    if not all(each.is_unchanged for each in comparisons):
        raise typer.Exit(1)


def compare_runs(runs: Sequence[tuple[Mapping[str, float], ...]]) -> list[Comparison]:
    """Return the figures that all runs have.

    Args:
        runs: of each round the values by figure: of the earlier commit, of this tree, of the earlier commit.
    """
    common = set.intersection(*(set(values) for each in runs for values in each))
    return [
        Comparison(
            name,
            [now[name] / statistics.mean((first[name], second[name])) for first, now, second in runs],
            [second[name] / first[name] for first, _, second in runs],
        )
        for name in runs[0][0]
        if name in common
    ]


@contextmanager
def _checked_out(commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        tree = Path(folder, "earlier")
        git = ["git", "-C", str(_ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def _measure(tree: Path, names: Sequence[str], *, is_quick: bool) -> dict[str, float]:
    """Return the values of a tree's figures, by name; figures of 0 are left out."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, "-m", "benchmarks", *names, "--json", file.name]
        subprocess.run(
            [*command, "--quick"] if is_quick else command,
            check=True,
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        figures = json.loads(Path(file.name).read_bytes())["figures"]
    values = {each["name"]: statistics.median(each["ratios"] or each["ours"]) for each in figures}
    return {name: value for name, value in values.items() if value}


def _show(comparisons: Sequence[Comparison], console: Console) -> None:
    table = Table(title="median (least–most) of the rounds", title_justify="left")
    for column in ("figure", "this tree ÷ earlier", "earlier ÷ itself", "unchanged"):
        table.add_column(column)
    for each in comparisons:
        table.add_row(
            each.name,
            _span(each.changes),
            _span(each.spread),
            "yes" if each.is_unchanged else "[bold red]no[/]",
        )
    console.print(table)


def _span(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f}–{max(ratios):.3f})"


if __name__ == "__main__":
    app()

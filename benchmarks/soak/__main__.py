"""`python -m benchmarks.soak`: loads a deployment, and prints what grew in it."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.figure_reports import describe_machine
from benchmarks.seeds import new_key, new_settings
from benchmarks.soak.load import Load
from benchmarks.soak.samples import Sampler
from benchmarks.soak.verdicts import Verdict, judge
from recorder.client import Client
from recorder.supervisor import run_service

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def main(
    minutes: Annotated[float, typer.Option(help="Minutes of the load.", min=1)] = 30,
    sessions: Annotated[int, typer.Option(help="Sessions recorded in them.", min=10)] = 10_000,
) -> None:
    """Load a new deployment steadily; the exit code is 1 if a goal is missed or a request failed."""
    words = Console(stderr=True)
    words.print(" · ".join(f"{name} {value}" for name, value in describe_machine().items()), highlight=False)
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        data = Path(folder)
        settings = new_settings(data)
        key = new_key(settings)
        with run_service(settings, dagster=True) as service, Client(service.base_url, key) as client:
            load = Load(service, client, sessions=sessions, minutes=minutes)
            with load.receiving():
                load.warm_up()
                sampler = Sampler(service, data, lambda: load.counts["sessions"])
                sampler.take()
                with sampler.sampling():
                    load.run()
                sampler.take()
                load.count_failed_runs()
    verdicts = judge(sampler.samples)
    _show(verdicts, Console(width=140))
    words.print(" · ".join(f"{name} {count}" for name, count in sorted(load.counts.items())), markup=False)
    has_failed = any(name.startswith("failed") for name in load.counts)
    if has_failed or any(verdict.is_reached is False for verdict in verdicts):
        raise typer.Exit(1)


def _show(verdicts: Sequence[Verdict], console: Console) -> None:
    table = Table(title="first and last third of the soak", title_justify="left")
    for column in ("figure", "first", "last", "ratio", "goal", "reached"):
        table.add_column(column)
    for verdict in verdicts:
        table.add_row(
            verdict.name,
            f"{verdict.first:,.3g} {verdict.unit}",
            f"{verdict.last:,.3g} {verdict.unit}",
            f"{verdict.ratio:.2f}",
            "" if verdict.goal is None else f"ratio {verdict.goal}",
            {True: "yes", False: "[bold red]no[/]", None: ""}[verdict.is_reached],
        )
    console.print(table)


if __name__ == "__main__":
    app()

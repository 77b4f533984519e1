"""`python -m benchmarks [FIGURE…]`: measures, and prints a table."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from benchmarks import (
    backup,
    digests,
    drift,
    erasure,
    export_repeats,
    export_workers,
    fsync,
    gate,
    graph_flood,
    ingest,
    limiter,
    lists,
    live_steps,
    masking,
    memory_queries,
    memory_rebuild,
    miniwob,
    mlflow_peer,
    neighbours,
    process_mining,
    reads,
    replay_attack,
    replay_drain,
    replayability,
    resolve,
    seal_memory,
    sealing,
    sealing_lanes,
    slow_bodies,
    streams,
    tiny_exports,
    webhooks,
)
from benchmarks.exports import exports_figure, growth
from benchmarks.figure_reports import Figure, Skipped, describe_machine, show, write_json
from benchmarks.memory import clusterings, memory_figure
from benchmarks.seeds import POSTGRES
from tests.support.postgres_server import running_postgres

Engine = Literal["sqlite", "postgresql"]


class Name(StrEnum):
    """Names of the figures that can be measured alone."""

    INGEST = "ingest"
    FSYNC = "fsync"
    SEAL = "seal"
    SEAL_LANES = "seal-lanes"
    SEAL_MEMORY = "seal-memory"
    GRAPH_FLOOD = "graph-flood"
    MINIWOB = "miniwob"
    LIST = "list"
    GATE = "gate"
    LIMITER = "limiter"
    MASKING = "masking"
    NEIGHBOURS = "neighbours"
    SLOW_BODIES = "slow-bodies"
    MEMORY_QUERIES = "memory-queries"
    MEMORY_REBUILD = "memory-rebuild"
    WEBHOOKS = "webhooks"
    STREAMS = "streams"
    DRIFT = "drift"
    DIGESTS = "digests"
    MLFLOW = "mlflow"
    PROCESS_MINING = "process-mining"
    MEMORY = "memory"
    CLUSTERINGS = "clusterings"
    EXPORTS = "exports"
    EXPORTS_MEMORY = "exports-memory"
    EXPORT_WORKERS = "export-workers"
    EXPORT_REPEATS = "export-repeats"
    TINY_EXPORTS = "tiny-exports"
    READS = "reads"
    BACKUP = "backup"
    ERASURE = "erasure"
    RESOLVE = "resolve"
    REPLAY = "replay"
    REPLAY_ATTACK = "replay-attack"
    LIVE = "live"
    REPLAYABILITY = "replayability"


_MEASURES: dict[Name, Callable[..., list[Figure]]] = {
    Name.INGEST: ingest.measure,
    Name.FSYNC: fsync.measure,
    Name.SEAL: sealing.measure,
    Name.SEAL_LANES: sealing_lanes.measure,
    Name.SEAL_MEMORY: seal_memory.measure,
    Name.GRAPH_FLOOD: graph_flood.measure,
    Name.MINIWOB: miniwob.measure,
    Name.LIST: lists.measure,
    Name.GATE: gate.measure,
    Name.LIMITER: limiter.measure,
    Name.MASKING: masking.measure,
    Name.NEIGHBOURS: neighbours.measure,
    Name.SLOW_BODIES: slow_bodies.measure,
    Name.MEMORY_QUERIES: memory_queries.measure,
    Name.MEMORY_REBUILD: memory_rebuild.measure,
    Name.WEBHOOKS: webhooks.measure,
    Name.STREAMS: streams.measure,
    Name.DRIFT: drift.measure,
    Name.DIGESTS: digests.measure,
    Name.MLFLOW: mlflow_peer.measure,
    Name.PROCESS_MINING: process_mining.measure,
    Name.MEMORY: memory_figure.measure,
    Name.CLUSTERINGS: clusterings.measure,
    Name.EXPORTS: exports_figure.measure,
    Name.EXPORTS_MEMORY: growth.measure_large,
    Name.EXPORT_WORKERS: export_workers.measure,
    Name.EXPORT_REPEATS: export_repeats.measure,
    Name.TINY_EXPORTS: tiny_exports.measure,
    Name.READS: reads.measure,
    Name.BACKUP: backup.measure,
    Name.ERASURE: erasure.measure,
    Name.RESOLVE: resolve.measure,
    Name.REPLAY: replay_drain.measure,
    Name.REPLAY_ATTACK: replay_attack.measure,
    Name.LIVE: live_steps.measure,
    Name.REPLAYABILITY: replayability.measure,
}
#: They fetch a peer of half a gigabyte first, or take gigabytes of memory or many minutes: measured when they
#: are named.
_ON_DEMAND = (
    Name.MLFLOW,
    Name.PROCESS_MINING,
    Name.MEMORY,
    Name.MEMORY_REBUILD,
    Name.CLUSTERINGS,
    Name.EXPORTS,
    Name.EXPORTS_MEMORY,
    Name.SEAL_MEMORY,
    Name.ERASURE,
)


app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def main(
    names: Annotated[
        list[Name] | None, typer.Argument(help="Which figures; where none is named, all but the heavy ones.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Shorter runs: rougher figures in a few minutes.")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Write everything to this file too.")] = None,
    engine: Annotated[Engine, typer.Option(help="Database of the deployments that are measured.")] = "sqlite",
) -> None:
    """Measure this machine. The table shows which goals are reached; the exit code is 0 either way."""
    machine = {**describe_machine(), "engine": engine}
    words = Console(stderr=True)
    words.print(" · ".join(f"{name} {value}" for name, value in machine.items()), highlight=False)
    figures: list[Figure] = []
    with _serving_engine(engine):
        for name in names or [name for name in Name if name not in _ON_DEMAND]:
            try:
                with words.status(f"Measuring {name.value} …"):
                    figures += _MEASURES[name](quick=quick)
            except Skipped as reason:
                words.print(f"Skipped {name.value}: {reason}.")
    show(figures, Console(width=None if sys.stdout.isatty() else 140))
    if json is not None:
        write_json(figures, machine, json)


@contextmanager
def _serving_engine(engine: Engine) -> Iterator[None]:
    """Let new deployments have databases in a PostgreSQL cluster of their own, unless they have SQLite."""
    if engine == "sqlite":
        yield
        return
    with running_postgres(is_durable=True) as cluster:
        os.environ[POSTGRES] = cluster
        yield


if __name__ == "__main__":
    app()

"""Event logs beside PM4Py, the library of the field: the same contents, sooner; and files that both read.

Speed is that of nodes, edges with median times, variants, outcomes and session rows together, from rows with
string labels in random order; `count_directly_follows_graph` counts them, as it does for the views of the
service's graph. PM4Py makes variants and graph, of rows that are sorted already: it gets the easier task.
The floor is the least that polars itself could take: one sort of the same rows, one grouping for variants,
one for the graph.
"""

import json
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks.figure_reports import Figure, Skipped, at_least, at_most
from benchmarks.memory.planted import plant
from benchmarks.memory.pm4py_clustering import VERSION, find_pm4py
from benchmarks.seeds import new_key, new_settings
from benchmarks.servers import serving
from recorder import clock
from recorder.client import Client
from recorder.importers.trace_recordings import import_xes_log
from recorder.interchange.event_logs import directly_follows, event_log_rows, write_dfg
from recorder.interchange.session_traces import write_session_traces
from recorder.interchange.xes_reader import read_xes_traces
from recorder.interchange.xes_writer import write_xes
from recorder.memory.graph.directly_follows import LogAggregate, aggregate_log

_DATA = Path(__file__).parents[2] / "shared" / "data" / "xes"
_LARGE = "bpic2012.xes.gz"
_ROUND_TRIP, _QUICK_ROUND_TRIP = "03_repairExample.xes.gz", "running-example.xes"
_CASES = 100_000
_OUTCOMES = ("success", "error", None)


def measure(*, quick: bool = False) -> list[Figure]:
    """Return the speed beside PM4Py and polars, and what differs from PM4Py: nothing should.

    Raises:
        Skipped: if PM4Py can be neither found nor fetched, or the logs are not beside the project.
    """
    if not _DATA.is_dir():
        raise Skipped("the event logs (../shared/data/xes) are absent")
    rounds = 3 if quick else 7
    with find_pm4py() as python, peer_process(python) as peer, tempfile.TemporaryDirectory() as folder:
        large = event_log_rows(read_xes_traces(_DATA / _LARGE))
        return [
            *_speeds(peer, "bpic2012", large, Path(folder), rounds, goal=4),
            *_speeds(peer, "1 M events", planted_rows(_CASES), Path(folder), rounds, goal=7),
            *_contents(peer, Path(folder)),
            _round_trip(peer, Path(folder), _DATA / (_QUICK_ROUND_TRIP if quick else _ROUND_TRIP)),
        ]


class Peer:
    """PM4Py on the other side of a pipe."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def call(self, name: str, **given: Any) -> Any:
        """Return the answer of a function of `benchmarks/pm4py_process.py`."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([name, given]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("PM4Py ended; see its output above.")
        return json.loads(answer)


@contextmanager
def peer_process(python: str) -> Iterator[Peer]:
    """Yield a process of PM4Py that is started once."""
    script = Path(__file__).with_name("pm4py_process.py")
    command = [python, "-W", "ignore", str(script)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        yield Peer(process)


def planted_rows(cases: int) -> pl.DataFrame:
    """Return a log of so many made-up sessions, about ten events each."""
    made: dict[str, list[Any]] = {"case": [], "activity": [], "time": []}
    for session in plant(cases).sessions:
        made["case"] += [session.session_id] * len(session.steps)
        made["activity"] += [step.label for step in session.steps]
        made["time"] += [session.started_ms + step.t_in_ms for step in session.steps]
    return pl.DataFrame(made).with_columns(pl.col("time").cast(pl.Datetime("ms", "UTC")))


def polars_floor(rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the variants and the graph as polars alone computes them."""
    ordered = rows.sort("case", "time")
    variants = ordered.group_by("case", maintain_order=True).agg("activity").group_by("activity").len()
    follows = (
        ordered.with_columns(next_case=pl.col("case").shift(-1), target=pl.col("activity").shift(-1))
        .filter(pl.col("case") == pl.col("next_case"))
        .group_by("activity", "target")
        .len()
    )
    return variants, follows


def _speeds(
    peer: Peer, name: str, log: pl.DataFrame, folder: Path, rounds: int, *, goal: float
) -> list[Figure]:
    rows = log.sample(fraction=1, shuffle=True, seed=1)
    file = folder / "rows.csv"
    rows.with_columns(pl.col("time").dt.timestamp("us")).write_csv(file)
    peer.call("load", file=str(file))
    cases = rows.select("case").unique(maintain_order=True)
    outcomes = cases.with_columns(
        outcome=pl.Series([_OUTCOMES[n % len(_OUTCOMES)] for n in range(len(cases))], dtype=pl.String)
    )
    runs: dict[str, list[float]] = {"ours": [], "PM4Py": [], "PM4Py sorting": [], "polars": []}
    for taken in range(rounds + 1):
        seconds = {
            "ours": _timed(lambda: aggregate_log(rows, outcomes)),
            "PM4Py": peer.call("seconds", sort_first=False),
            "PM4Py sorting": peer.call("seconds", sort_first=True),
            "polars": _timed(lambda: polars_floor(rows)),
        }
        if taken:  # the first is to warm up
            for who, duration in seconds.items():
                runs[who].append(duration)
    speeds = {who: [len(rows) / duration / 1e6 for duration in taken] for who, taken in runs.items()}
    shape = {"events": len(rows), "cases": len(cases)}
    return [
        Figure(
            name=f"{name}: all aggregates of shuffled rows / variants + DFG of sorted rows",
            unit="M events/s",
            ours=speeds["ours"],
            peer=speeds["PM4Py"],
            peer_name=f"PM4Py {VERSION}",
            goal=at_least(goal),
            detail=shape,
        ),
        Figure(
            name=f"{name}: the same / PM4Py with the sort",
            unit="M events/s",
            ours=speeds["ours"],
            peer=speeds["PM4Py sorting"],
            peer_name=f"PM4Py {VERSION}",
            goal=at_least(goal),
        ),
        Figure(
            name=f"{name}: the same / a sort and two group-bys",
            unit="s",
            ours=runs["ours"],
            peer=runs["polars"],
            peer_name="polars alone",
            goal=at_most(3.5),
        ),
    ]


def _timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _contents(peer: Peer, folder: Path) -> list[Figure]:
    """Return the differences from PM4Py by log: variants, graphs, and its reading of files written here."""
    differing: Counter[str] = Counter()
    compared: Counter[str] = Counter()

    def compare(what: str, ours: Counter[Any], theirs: Counter[Any]) -> None:
        differing[what] += (ours - theirs).total() + (theirs - ours).total()
        compared[what] += ours.total()

    for path in sorted(_DATA.iterdir()):
        traces = list(read_xes_traces(path))
        log = aggregate_log(event_log_rows(traces), collapse=False)
        theirs = peer.call("contents", file=str(path))
        graph = _graph(directly_follows(log))
        compare(
            "variants", _variants(log), Counter({tuple(sequence): n for sequence, n in theirs["variants"]})
        )
        compare("DFG", graph, _graph(theirs))
        for name in ("graph.json", "graph.dfg"):
            write_dfg(folder / name, directly_follows(log))
            compare(f"{name} read there", graph, _graph(peer.call("graph", file=str(folder / name))))
        write_xes(folder / "out.xes.gz", traces, name=path.name)
        compare("XES read there", _rows(path), _peer_rows(peer, folder / "out.xes.gz"))
    return [
        Figure(
            name=f"{what}: entries unlike PM4Py's, all logs",
            unit="",
            ours=[differing[what]],
            goal=at_most(0),
            detail={"compared": compared[what]},
        )
        for what in compared
    ]


def _round_trip(peer: Peer, folder: Path, path: Path) -> Figure:
    """Import and export a log over HTTP, and compare what PM4Py reads of it."""
    settings = new_settings(folder / "data")
    key = new_key(settings)
    with serving(settings) as server, Client(server.url, key) as client:
        report = import_xes_log(path, url=server.url, key=key, workflow="log", progress=False)
        began = time.perf_counter()
        write_session_traces(client, "log", folder / "exported.xes")
        export_s = time.perf_counter() - began
    sent, received = _rows(path), _peer_rows(peer, folder / "exported.xes")
    return Figure(
        name="import → export over HTTP → PM4Py: events lost or changed",
        unit="events",
        ours=[(sent - received).total() + (received - sent).total()],
        goal=at_most(0),
        detail={
            "events": sent.total(),
            "sessions in a second": report.sessions / report.seconds,
            "sessions out a second": report.sessions / export_s,
        },
    )


def _variants(log: LogAggregate) -> Counter[Any]:
    return Counter({tuple(sequence): n for sequence, n in log.variants.select("sequence", "n").iter_rows()})


def _graph(graph: Any) -> Counter[Any]:
    """Return the crossings, beginnings and ends of a graph."""
    counted: Counter[Any] = Counter({(source, target): n for source, target, n in graph["dfg"]})
    counted.update({(None, label): n for label, n in graph["start_activities"].items()})
    counted.update({(label, None): n for label, n in graph["end_activities"].items()})
    return counted


def _rows(path: Path) -> Counter[Any]:
    """Return case, activity and instant in ms of every event of a log."""
    return Counter(
        (trace.name, event.activity, clock.to_ms(event.time))
        for trace in read_xes_traces(path)
        for event in trace.events
        if event.time is not None
    )


def _peer_rows(peer: Peer, path: Path) -> Counter[Any]:
    return Counter(tuple(row) for row in peer.call("rows", file=str(path)))

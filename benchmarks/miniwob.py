"""The whole road with 1,298 real demonstrations: import over HTTP, seal, export, and compare every row.

What was sent is read from the files again, by the importer's own reader; what came out is read from the files
of a hosted Parquet export. Both are compared event by event and frame by frame.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import polars as pl

from benchmarks.figure_reports import Figure, Skipped, at_most
from benchmarks.processes import MemoryWatch, watched_memory
from benchmarks.seeds import new_key, new_settings
from recorder.client import Client
from recorder.hashing import canonical_json
from recorder.importers.miniwob.demonstration import demonstration_files, demonstration_sources
from recorder.importers.upload import ImportedRecording, UnreadableRecording
from recorder.settings import make_child_environment
from recorder.supervisor import run_service

_DATA = Path(__file__).parents[2] / "shared" / "data" / "miniwob"
_QUICK_TASKS = 4
# Members of an event that are columns of a dataset; the others are its payload.
_COLUMNS = ("id", "t_ms", "type", "frame_id")
_TIMEOUT_S = 900.0

Rows = Counter[tuple[Any, ...]]


@dataclass(frozen=True)
class Road:
    """Duration of each phase, in seconds."""

    import_s: float
    #: From the end of the import until the last session was sealed.
    sealing_s: float
    export_s: float
    sessions: int
    skipped: int
    peaks_mb: dict[str, float]


def measure(*, quick: bool = False) -> list[Figure]:
    """Return the seconds of each stretch, peak memory of each process, and rows lost or double.

    Raises:
        Skipped: if the demonstrations are not beside the project.
    """
    if not _DATA.is_dir():
        raise Skipped("the demonstrations (../shared/data/miniwob) are absent")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        data = _some_tasks(Path(folder, "some")) if quick else _DATA
        got = Path(folder, "dataset")
        road = _travel(Path(folder, "data"), data, got)
        wrong = compare(data, got)
    return [*_figures(road), wrong]


def _some_tasks(folder: Path) -> Path:
    for task in sorted(_DATA.iterdir())[:_QUICK_TASKS]:
        shutil.copytree(task, folder / task.name)
    return folder


def _travel(data_dir: Path, demonstrations: Path, got: Path) -> Road:
    settings = new_settings(data_dir)
    key = new_key(settings)
    environment = make_child_environment(settings, {"RECORDER_KEY": key})
    with (
        run_service(settings, dagster=True) as service,
        Client(service.base_url, key) as client,
        watched_memory(service) as memory,
    ):
        began = time.monotonic()
        report = _import(demonstrations, service.base_url, environment, memory)
        imported = time.monotonic()
        _wait_all_sealed(client)
        sealed = time.monotonic()
        workflows = sorted({session["workflow"] for session in client.list_sessions()})
        request = client.create_export(workflows, frame_sampling={"mode": "all"})
        export = client.wait_export(request["id"], timeout_s=_TIMEOUT_S)
        exported = time.monotonic()
        _download(client.export_manifest(export["id"]), got)
        sources = {session["id"]: _source_of(session) for session in client.list_sessions()}
        (got / "sources.json").write_text(json.dumps(sources))
        return Road(
            import_s=imported - began,
            sealing_s=sealed - imported,
            export_s=exported - sealed,
            sessions=report["sessions"],
            skipped=len(report["failed"]),
            peaks_mb=memory.peaks_mb(),
        )


def _import(
    demonstrations: Path, url: str, environment: dict[str, str], memory: MemoryWatch
) -> dict[str, Any]:
    """Run `recorder import` as people do."""
    command = [sys.executable, "-m", "recorder.cli", "import", str(demonstrations), "--url", url, "--json"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        memory.add("recorder import", process.pid)
        output, _ = process.communicate(timeout=_TIMEOUT_S)
    report: dict[str, Any] = json.loads(output)
    return report


def _wait_all_sealed(client: Client) -> None:
    until = time.monotonic() + _TIMEOUT_S
    while next(client.list_sessions(status="stopped"), None) is not None:
        if time.monotonic() > until:
            raise TimeoutError("Sessions stay stopped.")
        time.sleep(0.2)


def _download(manifest: dict[str, Any], folder: Path) -> None:
    for shard in manifest["shards"]:
        file = folder / shard["path"]
        file.parent.mkdir(parents=True, exist_ok=True)
        with httpx.stream("GET", shard["url"], timeout=60, trust_env=False) as answer:
            answer.raise_for_status()
            with file.open("wb") as out:
                for piece in answer.iter_bytes():
                    out.write(piece)


def _source_of(session: dict[str, Any]) -> str:
    return f"{session['metadata']['task']}/{session['metadata']['source']}"


def compare(demonstrations: Path, got: Path) -> Figure:
    """Compare the content of a dataset with that of the files.

    Args:
        got: the dataset's files, and `sources.json`: which file each session came from.
    """
    sent_events, sent_frames = sent_rows(demonstrations)
    sources = json.loads((got / "sources.json").read_text())
    found_events = _found(got, "events", ["session_id", "t_ms", "type", "frame_id", "payload"], sources)
    found_frames = _found(got, "frames", ["session_id", "t_ms", "frame_id", "sha256"], sources)
    wrong = {
        "events lost": (sent_events - found_events).total(),
        "events double or strange": (found_events - sent_events).total(),
        "frames lost": (sent_frames - found_frames).total(),
        "frames double or strange": (found_frames - sent_frames).total(),
    }
    return Figure(
        name="miniwob: rows lost, double or changed",
        unit="rows",
        ours=[sum(wrong.values())],
        goal=at_most(0),
        detail={"events sent": sent_events.total(), "frames sent": sent_frames.total(), **wrong},
    )


def sent_rows(demonstrations: Path) -> tuple[Rows, Rows]:
    """Return every event and frame of the files, as the importer reads them."""
    events: Rows = Counter()
    frames: Rows = Counter()
    for name, recording in _recordings(demonstrations):
        for event in recording.events:
            rest = {member: value for member, value in event.items() if member not in _COLUMNS}
            payload = canonical_json(rest).decode()
            events[name, event["t_ms"], event["type"], event.get("frame_id"), payload] += 1
        for frame in recording.frames:
            sha256 = hashlib.sha256(frame.image).hexdigest()
            frames[name, frame.item["t_ms"], frame.item["id"], sha256] += 1
    return events, frames


def _recordings(demonstrations: Path) -> Iterator[tuple[str, ImportedRecording]]:
    for source in demonstration_sources(demonstration_files(demonstrations)):
        try:
            recording = source.read()
        except UnreadableRecording:
            continue
        yield f"{recording.metadata['task']}/{recording.metadata['source']}", recording


def _found(folder: Path, kind: str, columns: list[str], sources: dict[str, str]) -> Rows:
    """Return the rows of the dataset, with the file that each session came from instead of its id."""
    files = sorted(folder.rglob(f"{kind}-*.parquet"))
    rows: Rows = Counter()
    for file in files:
        for row in (
            pl.read_parquet(file, columns=columns, hive_partitioning=False).select(columns).iter_rows()
        ):
            rows[sources[row[0]], *row[1:]] += 1
    return rows


def _figures(road: Road) -> list[Figure]:
    peaks = {name: round(peak) for name, peak in sorted(road.peaks_mb.items())}
    return [
        Figure(
            name="miniwob: import",
            unit="sessions/s",
            ours=[road.sessions / road.import_s],
            detail={"sessions": road.sessions, "files skipped": road.skipped, "seconds": road.import_s},
        ),
        Figure(name="miniwob: end of import → all sealed", unit="s", ours=[road.sealing_s]),
        Figure(name="miniwob: export with all frames, hosted Parquet", unit="s", ours=[road.export_s]),
        Figure(
            name="miniwob: largest process",
            unit="MB",
            ours=[max(peaks.values())],
            detail={f"{name}, MB": peak for name, peak in peaks.items()},
        ),
    ]

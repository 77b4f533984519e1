"""Event logs for tests: made-up ones, and the real ones where the shared data is present."""

import gzip
from collections.abc import Iterable
from pathlib import Path

import pytest

REAL = Path(__file__).parents[2].parent / "shared" / "data" / "xes"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="../shared/data/xes is absent")

#: Cases with what was done in them, when (minutes of a day in March), and by whom.
CLAIMS = {
    "1": [
        ("register request", 0, "Pete"),
        ("check ticket", 5, "Mike"),
        ("decide", 9, "Sara"),
        ("pay", 30, "Ellen"),
    ],
    "2": [("register request", 2, "Mike"), ("check ticket", 2, "Mike"), ("check ticket", 7, "Mike")],
    "3": [("register request", 4, "Pete"), ("decide", 5, "Sara"), ("reject", 6, "Pete")],
}


def log_text(*traces: str, head: str = "", root: str = "log") -> str:
    """Return a log of these traces, as the tools of the field write it."""
    opening = '<?xml version="1.0" encoding="UTF-8"?>\n'
    return f'{opening}<{root} xes.version="1.0">\n{head}\n' + "\n".join(traces) + f"\n</{root}>\n"


def trace_text(name: str | None, *events: str, more: str = "") -> str:
    """Return a trace with its name, other attributes, and events."""
    named = "" if name is None else f'<string key="concept:name" value="{name}"/>'
    return f"<trace>{named}{more}\n" + "\n".join(events) + "</trace>"


def event_text(name: str | None, time: str | None = None, more: str = "") -> str:
    """Return an event with its name, instant, and other attributes."""
    named = "" if name is None else f'<string key="concept:name" value="{name}"/>'
    timed = "" if time is None else f'<date key="time:timestamp" value="{time}"/>'
    return f"<event>{named}{timed}{more}</event>"


def claims_text() -> str:
    """Return the log of `CLAIMS`."""
    return log_text(
        *(
            trace_text(
                case, *(_claim_event(*step) for step in steps), more=f'<int key="amount" value="{case}00"/>'
            )
            for case, steps in CLAIMS.items()
        )
    )


def _claim_event(name: str, minute: int, resource: str) -> str:
    return event_text(
        name,
        f"2026-03-02T10:{minute:02}:00.250+01:00",
        f'<string key="org:resource" value="{resource}"/><int key="costs" value="{minute}"/>',
    )


def write_log(folder: Path, text: str, name: str = "claims.xes") -> Path:
    """Write the text to a file, packed where its name says so; return the path."""
    path = folder / name
    content = text.encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def contents(traces: Iterable[object]) -> list[object]:
    """Return traces without their line numbers, by name."""
    return sorted(
        (trace.name, [(event.activity, event.time) for event in trace.events])  # type: ignore[attr-defined]
        for trace in traces
    )

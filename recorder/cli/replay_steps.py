"""Steps of a replay as a table of 80 columns, printed while the replay runs. Contract §9."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from recorder.memory.views.label_lines import one_line

if TYPE_CHECKING:
    from recorder.client import Client

#: Columns of a step in a question, and below a candidate.
_DESCRIBED = 60


class ReplaySteps:
    """Steps of one replayed session; each is printed once, as soon as its outcome is known."""

    def __init__(self, client: "Client", session_id: str) -> None:
        self._client, self._session_id = client, session_id
        #: Events of the session by id; None before they were needed.
        self._events: dict[str, dict[str, Any]] | None = None
        self._printed: set[int] = set()
        self._progress: int | None = None

    def print_ended(self, replay: Mapping[str, Any]) -> None:
        """Print the steps that have ended since the last call; those of a dry replay once it ends.

        Args:
            replay: the replay as it is now.
        """
        is_running = replay["finished_at"] is None
        step = replay["progress"]["step"]
        if is_running and (replay["sandbox"] == "dry" or step == self._progress):
            return
        self._progress = step
        for row in self._client.replay_steps(replay["id"]):
            # The row of the step under way says that it may have been sent.
            if row["step"] in self._printed or (is_running and row["step"] >= step):
                continue
            if not self._printed:
                typer.echo(f"{'step':>4}  {'action':<10} {'target':<41} {'outcome':<11} similar")
            self._printed.add(row["step"])
            self._print_step_row(row)

    def describe(self, number: int) -> str:
        """Return type and target of a step, by its number in the whole session."""
        from recorder.replays.recorded_session import RecordedSession, list_recorded_steps

        events = list(self._read_recorded_events().values())
        for step in list_recorded_steps(RecordedSession(self._session_id, events, [], [])):
            if step.step == number:
                return _describe_step_event(step.event)
        return ""

    def describe_event(self, event_id: str | None) -> str:
        """Return type and target of an event of the session; `-` for none."""
        event = None if event_id is None else self._read_recorded_events().get(event_id)
        return "-" if event is None else _describe_step_event(event)

    def _print_step_row(self, row: Mapping[str, Any]) -> None:
        event = self._read_recorded_events().get(row["event_id"], {"type": "-"})
        similarity = "-" if row["similarity"] is None else f"{row['similarity']:.2f}"
        kind = _fit_text_to_columns(event["type"], 10)
        target = _fit_text_to_columns(_name_replay_step_target(event), 41)
        typer.echo(f"{row['step']:>4}  {kind} {target} {row['outcome']:<11} {similarity}")

    def _read_recorded_events(self) -> dict[str, dict[str, Any]]:
        """Return the events of the recorded session by id; they are requested once."""
        if self._events is None:
            self._events = {event["id"]: event for event in self._client.list_events(self._session_id)}
        return self._events


def _describe_step_event(event: Mapping[str, Any]) -> str:
    return _fit_text_to_columns(f"{event['type']} {_name_replay_step_target(event)}", _DESCRIBED).rstrip()


def _name_replay_step_target(event: Mapping[str, Any]) -> str:
    """Return role and name of the target of an event; without them its address, as of a navigation."""
    target = event.get("target") or {}
    return " ".join(filter(None, (target.get("role"), target.get("name")))) or event.get("url") or "-"


def _fit_text_to_columns(text: str, width: int) -> str:
    """Return a recorded text on one line, without anything invisible, of exactly so many columns."""
    return cut_line_to_columns(one_line(text), width)


def cut_line_to_columns(line: str, width: int) -> str:
    """Return a line of exactly so many columns of a terminal."""
    from rich.cells import set_cell_size

    return set_cell_size(line, width)

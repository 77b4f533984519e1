"""`recorder replay` and `recorder recover`: replays step by step, and recoveries. Contract §8, §9."""

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recorder import limits
from recorder.cli.options import DEFAULT_URL, AsJson, KeyOption, Url, open_client_for_command, print_json
from recorder.cli.replay_steps import ReplaySteps, cut_line_to_columns
from recorder.memory.views.label_lines import one_line
from recorder.number_formats import format_count
from recorder.shell_commands import wrap_for_terminal

if TYPE_CHECKING:
    from recorder.client import Client

_WIDTH = 80
_DIVERGED = 3
#: Texts for `summary.evidence`.
_EVIDENCE = {
    "dom": "compared by snapshots",
    "graph": "compared by the memory graph alone",
    "events": "compared by recorded events alone",
}
#: Name of the input that holds the stored state of a browser.
_STATE_INPUT = "storage_state"
_ACTIONS = ("act", "skip", "retarget", "abort")

Live = Annotated[bool, typer.Option("--live", help="In the live sandbox: a browser acts on real pages.")]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        help="NAME prompts for the value; NAME=VARIABLE reads an environment variable.",
        show_default=False,
    ),
]
StoredState = Annotated[
    typer.FileText | None,
    typer.Option(
        help="File that Playwright's context.storage_state() wrote: cookies to begin with, for --live.",
        encoding="utf-8",
        errors="replace",
        show_default=False,
    ),
]
Policy = Annotated[
    str | None,
    typer.Option(help="""Members of the policy, as JSON: '{"heal": "off"}'.""", show_default=False),
]
Timeout = Annotated[float, typer.Option(min=1, help="Seconds to wait for the end.")]


def replay(
    session: Annotated[str, typer.Argument(help="A sealed session.")],
    key: KeyOption,
    url: Url = DEFAULT_URL,
    against: Annotated[
        str | None,
        typer.Option(help="A session, a path, or graph. \\[default: its own snapshots]", show_default=False),
    ] = None,
    begin: Annotated[
        str | None,
        typer.Option("--from", help="tag:NAME, frame:ID, event:ID or auto.", show_default=False),
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="tag:NAME, frame:ID or event:ID.", show_default=False)
    ] = None,
    guided: Annotated[bool, typer.Option("--guided", help="Ask before steps with consequences.")] = False,
    input: Inputs = None,
    storage_state: StoredState = None,
    policy: Policy = None,
    live: Live = False,
    timeout: Timeout = 600,
    as_json: AsJson = False,
) -> None:
    """Replay a sealed session and print its steps; exit with 3 if it diverges."""
    members: dict[str, Any] = {
        "sandbox": "live" if live else "dry",
        "mode": "guided" if guided else "full" if begin is None else "partial",
    }
    if begin is not None:
        members["anchor"] = {"auto": True} if begin == "auto" else _read_replay_anchor_option(begin, "--from")
    if until is not None:
        members["until"] = _read_replay_anchor_option(until, "--until")
    if against is not None:
        members["against"] = _read_replay_against_option(against)
    members |= _read_replay_options(input, storage_state, policy, live=live)
    with open_client_for_command(url, key) as client:
        made = client.create_replay(session, **members)
        steps = ReplaySteps(client, session)
        ended = _wait_for_replay(client, made["id"], steps, timeout_s=timeout, as_json=as_json)
        while ended["awaiting"] is not None:
            _ask_replay_decision(client, ended, steps)
            ended = _wait_for_replay(client, made["id"], steps, timeout_s=timeout, as_json=as_json)
        if as_json:
            print_json({**ended, "data": list(client.replay_steps(made["id"]))})
        else:
            _print_replay_end(ended)
    if ended["status"] != "completed":
        raise typer.Exit(_DIVERGED if ended["status"] == "diverged" else 1)


def recover(
    session: Annotated[str, typer.Argument(help="A sealed session that failed.")],
    key: KeyOption,
    url: Url = DEFAULT_URL,
    failure_tag: Annotated[
        str | None,
        typer.Option(help="Name of the tag of the failure. \\[default: any error tag]", show_default=False),
    ] = None,
    input: Inputs = None,
    storage_state: StoredState = None,
    policy: Policy = None,
    live: Live = False,
    timeout: Timeout = 600,
    as_json: AsJson = False,
) -> None:
    """Recover a failed session and print the candidates; exit with 1 if none leads to success."""
    settings = _read_replay_options(input, storage_state, policy, live=live)
    with open_client_for_command(url, key) as client:
        with _name_failure_tag_option():
            made = client.create_recovery(
                session, sandbox="live" if live else "dry", failure_tag=failure_tag, **settings
            )
        from recorder.progress_bars import open_waiting_line

        with open_waiting_line() as show_waiting:

            def ask(attempt: dict[str, Any]) -> None:
                show_waiting(None)
                _ask_replay_decision(client, attempt, ReplaySteps(client, attempt["session_id"]))

            ended = client.wait_recovery(
                made["id"],
                timeout_s=timeout,
                on_awaiting=ask,
                on_progress=lambda recovery: show_waiting(_describe_recovery_progress(recovery)),
            )
        attempt = None
        if ended["reason"] == "candidates_exhausted" and ended["replay_ids"] and not as_json:
            attempt = client.get_replay(ended["replay_ids"][-1])
        if as_json:
            print_json(ended)
        else:
            _print_recovery_candidates(ended, ReplaySteps(client, session))
    if attempt is not None:
        _print_failed_attempt(attempt)
    if ended["status"] != "succeeded":
        raise typer.Exit(1)


@contextmanager
def _name_failure_tag_option() -> Iterator[None]:
    """End the command with a refusal that names the option where the service names its member.

    Raises:
        typer.Exit: if the service refuses the request for its failure.
    """
    from recorder.client import ApiError

    try:
        yield
    except ApiError as error:
        message = re.sub(r"(?<!-)\bfailure_tag\b", "--failure-tag", str(error))
        if message == str(error):
            raise
        typer.echo(wrap_for_terminal(message), err=True)
        raise typer.Exit(1) from error


def _read_replay_options(
    inputs: list[str] | None, storage_state: typer.FileText | None, policy: str | None, *, live: bool
) -> dict[str, Any]:
    """Return the members `inputs` and `policy` of a request, those that have something."""
    values = dict(map(_read_replay_input_option, inputs or []))
    members: Any = {}
    if policy is not None:
        with suppress(ValueError):
            members = json.loads(policy)
        if not isinstance(members, dict) or not members:
            raise typer.BadParameter("takes a JSON object with members", param_hint="--policy")
    if storage_state is not None:
        if not live:
            raise typer.BadParameter(
                "only with --live: a dry replay opens no browser", param_hint="--storage-state"
            )
        values[_STATE_INPUT] = storage_state.read(limits.LARGE_INPUT_CHARACTERS + 1)
        members = {**members, "storage_state_ref": _STATE_INPUT}
    settings = {"inputs": values, "policy": members}
    return {name: value for name, value in settings.items() if value}


def _read_replay_anchor_option(text: str, option: str) -> dict[str, str]:
    kind, colon, name = text.partition(":")
    members = {"tag": "tag", "frame": "frame_id", "event": "event_id"}
    if not colon or not name or kind not in members:
        auto = " or auto" if option == "--from" else ""
        raise typer.BadParameter(f"takes tag:NAME, frame:ID, event:ID{auto}", param_hint=option)
    return {members[kind]: name}


def _read_replay_against_option(text: str) -> dict[str, Any]:
    if text == "graph":
        return {"graph": True}
    for prefix, member in (("ses_", "session_id"), ("pth_", "path_id")):
        if text.startswith(prefix):
            return {member: text}
    raise typer.BadParameter("takes the id of a session or path, or graph", param_hint="--against")


def _read_replay_input_option(text: str) -> tuple[str, str]:
    """Return name and value of an input: the value of a variable, or typed without echo."""
    name, is_variable, variable = text.partition("=")
    if not is_variable:
        value: str = typer.prompt(f"Value of {name}", hide_input=True, err=True)
        return name, value
    given = os.environ.get(variable)  # noqa: TID251 - no setting: the caller names the variable
    if given is None:
        raise typer.BadParameter("the environment has no variable of this name", param_hint="--input")
    return name, given


def _wait_for_replay(
    client: "Client", replay_id: str, steps: ReplaySteps, *, timeout_s: float, as_json: bool
) -> dict[str, Any]:
    """Wait until a replay has ended or awaits a decision; print its steps, unless it is printed as JSON."""
    from recorder.progress_bars import open_waiting_line

    with open_waiting_line() as show_waiting:

        def show(replay: dict[str, Any]) -> None:
            has_steps = replay["sandbox"] == "live" and replay["progress"]["step"]
            if replay["finished_at"] is None and replay["awaiting"] is None and not has_steps:
                show_waiting(f"{replay['id']} {replay['status']}")
            else:
                show_waiting(None)
            if not as_json:
                steps.print_ended(replay)

        return client.wait_replay(replay_id, timeout_s=timeout_s, on_progress=show)


def _describe_recovery_progress(recovery: dict[str, Any]) -> str:
    attempts = len(recovery["replay_ids"])
    state = f"attempt {attempts}" if attempts else "searches for candidates"
    return f"{recovery['id']} {state}"


def _ask_replay_decision(client: "Client", replay: dict[str, Any], steps: ReplaySteps) -> None:
    """Show the step that a guided replay awaits, and send the decision that is typed.

    Raises:
        typer.Abort: if the input has ended; the replay is aborted, as nothing can be typed any more.
    """
    from recorder.client import ApiError

    number = replay["awaiting"]["step"]
    divergence = replay["divergence"]
    if divergence is not None and divergence["step"] == number:
        for line in _format_replay_divergence_lines(divergence):
            typer.echo(line, err=True)
    typer.echo(f"Step {number}: {steps.describe(number)}", err=True)
    try:
        action = ""
        while action not in _ACTIONS:
            action = _ask_for_replay_answer(", ".join(_ACTIONS))
        selector = _ask_for_replay_answer("Selector") if action == "retarget" else None
    except EOFError:
        action, selector = "abort", None
        typer.echo("The input has ended: the replay is aborted.", err=True)
        has_ended = True
    else:
        has_ended = False
    try:
        client.decide_replay(replay["id"], number, action, selector=selector)
    except ApiError as error:
        if error.status != 409:
            raise
        typer.echo("The replay awaits no decision on this step any more.", err=True)
    if has_ended:
        raise typer.Abort


def _ask_for_replay_answer(question: str) -> str:
    """Return the line that is typed; `typer.prompt` would write a space to stdout, which has the steps.

    Raises:
        EOFError: if the input has ended.
    """
    typer.echo(f"{question}: ", nl=False, err=True)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.strip()


def _print_replay_end(replay: dict[str, Any]) -> None:
    counts = replay["summary"] or {}
    evidence = _EVIDENCE.get(counts.get("evidence") or "", "nothing compared")
    typer.echo(f"{replay['status']}: {format_count(replay['progress']['step'], 'step')}, {evidence}")
    if replay["status"] == "diverged":
        for line in _format_replay_divergence_lines(replay["divergence"]):
            typer.echo(line)
    if replay["error"] is not None:
        typer.echo(f"{replay['error']['type']}: {replay['error']['message']}", err=True)
    typer.echo(replay["id"], err=True)


def _format_replay_divergence_lines(divergence: dict[str, Any]) -> list[str]:
    """Return lines of at most 80 columns: the kind, both sides, differences and suggestions."""
    lines = [f"step {divergence['step']}: {divergence['kind']}"]
    for side in ("expected", "observed"):
        shown = divergence[side]
        named = " ".join(filter(None, (shown["role"], shown["name"]))) or shown["url"] or "-"
        lines.append(f"  {side:<11}{one_line(named)}")
    for side in ("missing", "unexpected"):
        lines += [f"  {side:<11}{one_line(f'{role} {name}')}" for role, name in divergence[side][:3]]
    lines += [
        f"  {'similar':<11}{item['score']:.2f} {one_line(item['selector'])}"
        for item in divergence["candidates"]
    ]
    return [cut_line_to_columns(line, _WIDTH).rstrip() for line in lines]


def _print_recovery_candidates(recovery: dict[str, Any], steps: ReplaySteps) -> None:
    """Print two lines for each candidate: its figures, and the step of the failed session."""
    if recovery["candidates"]:
        typer.echo(f"{'t_ms':>8}  score {'successes':>11} replayable repeated  attempt")
        typer.echo(f"{'':<8}  step")
    for candidate in recovery["candidates"]:
        counts = f"{candidate['successes']}/{candidate['hits']}"
        share = "-" if candidate["replayability"] is None else f"{candidate['replayability']:.2f}"
        t_ms = "-" if candidate["t_ms"] is None else str(candidate["t_ms"])
        typer.echo(
            f"{t_ms:>8}  {candidate['score']:>5.3f} {counts:>11} {share:>10} "
            f"{candidate['consequential_steps']:>8}  {candidate['replay_id'] or '-'}"
        )
        typer.echo(f"{'':<8}  {steps.describe_event(candidate['event_id'])}")
    reason = "" if recovery["reason"] is None else f": {recovery['reason']}"
    alone = ", compared by the memory graph alone" if recovery["evidence"] == "graph" else ""
    typer.echo(f"{recovery['status']}{reason}{alone}")
    typer.echo(recovery["id"], err=True)


def _print_failed_attempt(replay: dict[str, Any]) -> None:
    """Print why the last attempt of a recovery did not match."""
    typer.echo(f"last attempt {replay['id']}: {replay['status']}")
    if replay["divergence"] is not None:
        for line in _format_replay_divergence_lines(replay["divergence"]):
            typer.echo(line)
    if replay["error"] is not None:
        typer.echo(f"{replay['error']['type']}: {replay['error']['message']}", err=True)

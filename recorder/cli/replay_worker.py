"""`recorder replay-worker`: the process in which live replays are done. Contract §9."""

import signal
from typing import Annotated

import typer

from recorder.cli.options import DataDir
from recorder.shell_commands import wrap_for_terminal


def replay_worker(
    data: DataDir = None,
    places: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Replays at a time. \\[default: RECORDER_LIVE_PLACES or 2]"),
    ] = None,
) -> None:
    """Do live replays until SIGTERM or Ctrl-C; while one runs, Dagster starts no runs for them."""
    from recorder.live.browser import NoBrowser, find_chromium
    from recorder.live.worker import ReplayWorker
    from recorder.logs import configure_logs
    from recorder.net.outbound_guard import AddressGuard
    from recorder.runtime import Runtime
    from recorder.settings import Settings

    settings = Settings.from_env(data_dir=data, create=False)
    configure_logs(settings.log_level)
    AddressGuard.of_browser(settings)  # a setting that cannot be read ends the command here
    try:
        find_chromium(settings)
    except NoBrowser as error:
        typer.echo(wrap_for_terminal(str(error)), err=True)
        raise typer.Exit(1) from error
    runtime = Runtime.open(settings, create=False)
    worker = ReplayWorker(runtime, places or settings.browser.slots)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: worker.stop())
    try:
        worker.run(lambda: typer.echo("Waiting for live replays", err=True))
    finally:
        runtime.close()

"""`recorder webhooks` and `recorder deliver`: receive deliveries, and send them. Contract §6."""

import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recorder.cli.options import (
    DEFAULT_URL,
    AsJson,
    DataDir,
    Url,
    open_client_for_command,
    port_option,
    print_json,
)

if TYPE_CHECKING:
    from recorder.client.webhook_receiver import ReceivedDelivery

Pulse = Annotated[
    Path | None, typer.Option(help="File to touch every second while the loop goes on.", show_default=False)
]

app = typer.Typer(no_args_is_help=True, help="Receive deliveries on this terminal.")


@app.callback()
def _webhooks() -> None:
    """Keep `listen` a command of its own, though it is the only one."""


@app.command("listen")
def listen(
    key: Annotated[
        str | None, typer.Option(envvar="RECORDER_KEY", help="API key of scope admin.", show_envvar=True)
    ] = None,
    url: Url = DEFAULT_URL,
    event: Annotated[
        list[str], typer.Option(help="A type to listen for; repeat it. \\[default: all]", show_default=False)
    ] = [],  # noqa: B006
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, port_option("Port to listen on; 0 takes a free one.", name="--port")] = 0,
    address: Annotated[
        str | None, typer.Option(help="How the service reaches this receiver, if not by host and port.")
    ] = None,
    secret: Annotated[
        str | None,
        typer.Option(
            envvar="RECORDER_WEBHOOK_SECRET",
            show_envvar=True,
            help="Register nothing; verify with this webhook's secret.",
        ),
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="End after so many deliveries.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print verified deliveries as they come, until Ctrl-C; its webhook is removed at the end."""
    from recorder.client.webhook_receiver import DeliveryReceiver

    if key is None and secret is None:
        raise typer.BadParameter("give an API key to register with, or --secret", param_hint="--key")
    done = _DeliveryCountdown(count)
    print_one = _print_delivery_json if as_json else _print_pretty_delivery

    def take(received: "ReceivedDelivery") -> None:
        # A webhook that exists may send other types too.
        if secret is not None and event and received.payload and received.payload["type"] not in event:
            return
        try:
            done.note(print_one(received))
        # rich ends the thread where typer raises: the reader of stdout has gone.
        except (BrokenPipeError, SystemExit):
            done.end()

    try:
        listener = DeliveryReceiver(take, host=host, port=port)
    except OSError as error:
        from recorder.supervisor.child_commands import CannotListen

        raise CannotListen(host, port, "--port", error) from error
    here = address or f"http://{f'[{host}]' if ':' in host else host}:{listener.port}/"
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with listener.listening():
        if secret is not None:
            listener.trust(secret)
            typer.echo(f"Listening on {here}", err=True)
            done.wait()
            return
        with open_client_for_command(url, key or "") as client:
            types = event or [kind["type"] for kind in client.event_types()]
            made = client.create_webhook(here, types, description="recorder webhooks listen")
            try:
                listener.trust(made["secret"])
                typer.echo(f"Webhook {made['id']} sends to {here} until Ctrl-C.", err=True)
                done.wait()
            finally:
                client.delete_webhook(made["id"])
                typer.echo(f"Webhook {made['id']} is removed.", err=True)


def deliver_command(data: DataDir = None, pulse: Pulse = None) -> None:
    """Send webhooks until SIGTERM or Ctrl-C; `recorder up` runs one of these, and more may run beside it."""
    from recorder.logs import configure_logs
    from recorder.settings import Settings
    from recorder.webhooks.delivery_loop import run_delivery_loop

    settings = Settings.from_env(data_dir=data, create=False)
    configure_logs(settings.log_level)
    run_delivery_loop(settings, pulse)


class _DeliveryCountdown:
    """Countdown of deliveries, ended by Ctrl-C too."""

    def __init__(self, count: int | None) -> None:
        self._left = count
        self._done = threading.Event()

    def note(self, is_verified: bool) -> None:
        """Count a delivery; one that was not verified does not count."""
        if self._left is not None and is_verified:
            self._left -= 1
            if self._left <= 0:
                self._done.set()

    def end(self) -> None:
        """End the countdown: what was printed has no reader any more."""
        # Else the interpreter tries to write the rest once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        self._done.set()

    def wait(self) -> None:
        """Return after the last delivery, when stdout has no reader any more, or on Ctrl-C."""
        try:
            self._done.wait()
        except KeyboardInterrupt:
            return


def _print_delivery_json(received: "ReceivedDelivery") -> bool:
    if received.payload is None:
        return _print_invalid_signature_warning()
    print_json({"delivery_id": received.delivery_id, **received.payload})
    return True


def _print_pretty_delivery(received: "ReceivedDelivery") -> bool:
    from rich.console import Console
    from rich.json import JSON

    if received.payload is None:
        return _print_invalid_signature_warning()
    console = Console()
    head = f"{received.payload['created_at']}  {received.payload['type']}"
    ids = f"{received.payload['id']}  {received.delivery_id}  signature valid"
    console.print(head, style="bold", markup=False, highlight=False)
    console.print(ids, style="dim", markup=False, highlight=False)
    # ASCII: what people recorded must not steer this terminal.
    console.print(JSON.from_data(received.payload["data"], ensure_ascii=True))
    return True


def _print_invalid_signature_warning() -> bool:
    typer.echo("A delivery with an invalid signature was refused with 401.", err=True)
    return False

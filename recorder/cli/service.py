"""Commands for a deployment on this machine: up, status, doctor, demo, dagster-webserver, db. Contract §9."""

import os
import sys
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recorder.cli.options import AsJson, DataDir, open_deployment_for_command, port_option, print_json
from recorder.shell_commands import make_shell_command, shorten_path

if TYPE_CHECKING:
    from recorder.doctor.findings import Finding
    from recorder.settings import Settings


def up(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, port_option("Port of the API.", name="--port")] = 8700,
    data: DataDir = None,
    dagster: Annotated[
        bool, typer.Option(help="Also run Dagster: without it nothing is sealed or exported.")
    ] = True,
    dagster_port: Annotated[int, port_option("Port of Dagster's pages.", name="--dagster-port")] = 3000,
) -> None:
    """Serve until Ctrl-C: the API, the delivery loop and Dagster, watched and stopped together."""
    from recorder.supervisor import serve_deployment

    raise typer.Exit(serve_deployment(data, host=host, port=port, dagster=dagster, dagster_port=dagster_port))


def demo(
    data: Annotated[
        Path | None, typer.Option(exists=True, help="Folder of real recordings, instead of the bundled set.")
    ] = None,
    stay: Annotated[bool, typer.Option(help="Keep serving afterwards.")] = False,
) -> None:
    """Run all steps on this machine: record, seal, learn, export, load, replay, recover; stop at the end."""
    from recorder.supervisor.child_commands import find_checkout_for_children

    # The demonstration lives beside the service, not in the library.
    sys.path.insert(0, str(find_checkout_for_children("examples")))
    from importlib import import_module

    raise typer.Exit(import_module("examples.demo").run(recordings=data, stay=stay))


_LABEL_WIDTH = 13


def status(data: DataDir = None, as_json: AsJson = False) -> None:
    """Show what runs on a data folder, where it answers, and a link that logs a browser in to Dagster."""
    state = _read_status_members(_read_deployment_settings(data))
    if as_json:
        print_json(state)
        return
    _show_status_field("data folder", state["data"])
    if state["running"]:
        _show_status_field(
            "service", f"release {state['release']}, process {state['process']}, since {state['since']}"
        )
    else:
        _show_status_field("service", "stopped; start it with")
        _show_status_field("", make_shell_command("up", "--data", shorten_path(Path(state["data"]))))
    if state["running"] and state["api"] is None:
        _show_status_field("API", "starting")
    for label, part in (("API", "api"), ("Dagster", "dagster")):
        if state[part] is not None:
            words = "" if state[part]["answers"] else "   does not answer"
            _show_status_field(label, f"{state[part]['url']}{words}")
    if state["login_url"] is not None:
        _show_status_field("log in", state["login_url"])
        _show_status_field("", "opens Dagster's pages once, within 15 minutes")


def dagster_webserver(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, port_option("Port of Dagster's pages.", name="--port")] = 3000,
    data: DataDir = None,
    workspace: Annotated[
        Path | None, typer.Option(exists=True, help="Dagster's workspace file. \\[default: the checkout's]")
    ] = None,
) -> None:
    """Serve Dagster's pages with a login until Ctrl-C; `recorder up` starts one by itself."""
    from recorder.access.dagster_login import LoginLinks
    from recorder.supervisor.child_commands import (
        choose_child_port,
        find_checkout_for_children,
        make_child_server_url,
        make_service_child_environment,
    )

    settings = _read_deployment_settings(data)
    checkout = find_checkout_for_children("pipelines")
    port = choose_child_port(host, port, option="--port")
    url = make_child_server_url(host, port)
    typer.echo(f"Dagster  {url}", err=True)
    typer.echo(f"Log in   {LoginLinks(settings).make_link(url)}   (once, within 15 minutes)", err=True)
    variables = make_service_child_environment(settings, checkout)
    Path(variables["RECORDER_DAGSTER_DIR"]).mkdir(mode=0o700, parents=True, exist_ok=True)
    file = (workspace or checkout / "workspace.yaml").resolve()
    arguments = ["--host", host, "--port", str(port), "--workspace", str(file)]
    # Dagster resolves the modules of a workspace file from the current folder.
    os.chdir(checkout)
    os.execve(sys.executable, [sys.executable, "-m", "pipelines.webserver", *arguments], variables)  # noqa: S606


def _read_deployment_settings(data: Path | None) -> "Settings":
    """Return the settings of the deployment in a data folder.

    Raises:
        NoDeployment: if the folder holds none; nothing is created then.
    """
    from recorder.data_folder import NoDeployment
    from recorder.settings import Settings
    from recorder.storage.durable_files import keep_files_private

    settings = Settings.from_env(data_dir=data, create=False)
    # A database elsewhere is not queried: status must work while it does not answer.
    content = settings.data_dir / ("recorder.db" if settings.is_embedded else "run")
    if not (content.exists() or (settings.data_dir / "run" / "service.json").exists()):
        raise NoDeployment(settings.data_dir)
    keep_files_private()
    return settings


def _read_settings_to_examine(data: Path | None) -> "Settings":
    """Return the settings of the deployment that doctor examines.

    An API process alone leaves nothing in its data folder: with a database elsewhere that is queried.

    Raises:
        NoDeployment: if there is none; nothing is created then.
    """
    from recorder.data_folder import NoDeployment
    from recorder.errors import RecorderError
    from recorder.settings import Settings
    from recorder.storage.database import open_database
    from recorder.storage.durable_files import keep_files_private

    settings = Settings.from_env(data_dir=data, create=False)
    if settings.is_embedded:
        return _read_deployment_settings(data)
    keep_files_private()
    try:
        open_database(settings, create=False).close()
    except NoDeployment:
        raise
    except RecorderError:  # it does not answer, which is a finding
        if not settings.data_dir.is_dir():
            raise NoDeployment(settings.data_dir) from None
    return settings


def _read_status_members(settings: "Settings") -> dict[str, Any]:
    """Return what `--json` prints; `login_url` is a fresh link where Dagster's pages answer."""
    from recorder.access.dagster_login import LoginLinks
    from recorder.supervisor.run_records import DAGSTER_WEBSERVER, SERVICE, read_run_record

    service = read_run_record(settings.data_dir, SERVICE)
    pages = read_run_record(settings.data_dir, DAGSTER_WEBSERVER)
    members = service or {}
    dagster_url = pages["url"] if pages else members.get("dagster")
    dagster = _probe_status_address(dagster_url) if dagster_url else None
    answering = dagster["url"] if dagster and dagster["answers"] else None
    return {
        "data": str(settings.data_dir),
        "running": service is not None,
        **{name: members.get(name) for name in ("release", "process", "since")},
        # A service that starts has no address yet.
        "api": _probe_status_address(members["api"]) if "api" in members else None,
        "dagster": dagster,
        "login_url": LoginLinks(settings).make_link(answering) if answering else None,
    }


def _probe_status_address(url: str) -> dict[str, Any]:
    """Return an address and whether a server answers there."""
    import httpx

    try:
        answers = httpx.get(f"{url}/healthz", timeout=5, trust_env=False).status_code == 200
    except httpx.HTTPError:
        answers = False
    return {"url": url, "answers": answers}


def _show_status_field(label: str, text: str) -> None:
    """Print one line of `recorder status`: a label and its text."""
    typer.echo(f"{label:<{_LABEL_WIDTH}}{text}")


def doctor(
    data: DataDir = None,
    host: Annotated[str, typer.Option(help="Address on which `recorder up` listens.")] = "127.0.0.1",
    port: Annotated[int, port_option("Port of the API.", name="--port")] = 8700,
    dagster_port: Annotated[int, port_option("Port of Dagster's pages.", name="--dagster-port")] = 3000,
    as_json: AsJson = False,
) -> None:
    """Check settings, data folder, stores, database, service and contents; exit with 1 on a finding."""
    from recorder.doctor.examination import examine_deployment
    from recorder.doctor.machine import Ports

    ports = Ports(host=host, api=port, dagster=dagster_port)
    findings = []
    for finding in examine_deployment(_read_settings_to_examine(data), ports=ports):
        findings.append(finding)
        if not as_json:
            _show_doctor_finding(finding)
    if as_json:
        print_json([finding._asdict() for finding in findings])
    if any(finding.state != "ok" for finding in findings):
        raise typer.Exit(1)


def _show_doctor_finding(finding: "Finding") -> None:
    """Print a finding in lines of 80 characters; the next step is in lines of its own."""
    margin = " " * 27
    head = f"{finding.state:<9}{finding.check:<18}"
    typer.echo(fill(head + finding.message, 80, subsequent_indent=margin, break_on_hyphens=False))
    if finding.fix:
        typer.echo(fill(f"→ {finding.fix}", 80, initial_indent=margin, subsequent_indent=f"{margin}  "))


database_app = typer.Typer(no_args_is_help=True, help="The database of a deployment.")


@database_app.command("accept-secret")
def accept_secret(data: DataDir = None, as_json: AsJson = False) -> None:
    """Accept the present secret after the deployment's was lost or changed; stop the service first."""
    from contextlib import closing

    from recorder.data_folder import MissingSecret, NoDeployment, create_secret
    from recorder.settings import Settings, find_data_folder, has_database_elsewhere
    from recorder.storage.database import open_database
    from recorder.storage.deployment import accept_deployment_secret, check_deployment_record
    from recorder.supervisor.run_records import SERVICE, AlreadyRunning, read_run_record

    folder = find_data_folder(data)
    if (holder := read_run_record(folder, SERVICE)) is not None:
        raise AlreadyRunning(folder, SERVICE, holder)
    try:
        settings = Settings.from_env(data_dir=data, create=False)
    except (MissingSecret, NoDeployment) as error:
        if isinstance(error, NoDeployment) and not has_database_elsewhere():
            raise
        (folder / "secret").unlink(missing_ok=True)  # an empty file
        create_secret(folder)
        settings = Settings.from_env(data_dir=data, create=False)
    with closing(open_database(settings, create=False)) as database:
        check_deployment_record(settings, database)
        was_other = accept_deployment_secret(settings, database)
    if as_json:
        print_json({"changed": was_other})
        return
    typer.echo(
        "The secret is accepted. Keys and signed addresses of another one are invalid: create keys with "
        "`recorder keys create`, and rotate the secrets of webhooks."
        if was_other
        else "The secret is the deployment's.",
        err=True,
    )


@database_app.command("accept-stores")
def accept_stores(data: DataDir = None, as_json: AsJson = False) -> None:
    """Accept stores without their mark as new ones, after their content was lost or left elsewhere."""
    from recorder.storage.store_regions import check_store_regions, list_unmarked_stores

    with open_deployment_for_command(data) as runtime:
        before = list_unmarked_stores(runtime.settings)
        check_store_regions(runtime.settings, runtime.blobs, runtime.lake, marks_new=True)
        after = list_unmarked_stores(runtime.settings)
    accepted = [variable for variable in before if variable not in after]
    if as_json:
        print_json({"accepted": accepted})
        return
    typer.echo(
        f"Accepted as new, the stores of {', '.join(accepted)}. `recorder doctor` lists what they lack."
        if accepted
        else "Every store that answers has its mark.",
        err=True,
    )


@database_app.command("reslot")
def reslot(
    slots: Annotated[int, typer.Argument(min=1, max=1024, help="New number of slots.")],
    data: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Divide the workflows of each workspace into another number of sealing slots; stop the service first."""
    from recorder.sealing.lanes import change_sealing_slots
    from recorder.supervisor.run_records import SERVICE, AlreadyRunning, read_run_record

    with open_deployment_for_command(data, is_reslotting=True) as runtime:
        folder = runtime.settings.data_dir
        if (holder := read_run_record(folder, SERVICE)) is not None:
            raise AlreadyRunning(folder, SERVICE, holder)
        with runtime.database.transaction(write=True) as db:
            before = change_sealing_slots(db, slots)
    if as_json:
        print_json({"slots": slots, "before": before})
        return
    typer.echo(
        f"{slots} slots instead of {before}. Set RECORDER_SEAL_SLOTS to {slots} where it is set.", err=True
    )

"""Command lines of the child processes: arguments, environment, ports and readiness checks."""

import errno
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import recorder
from recorder.errors import Conflict, Invalid
from recorder.heartbeat import HeartbeatReader
from recorder.net.host_header import with_listening_host
from recorder.settings import Settings, make_child_environment
from recorder.storage.temporary_files import get_service_temporary_folder
from recorder.supervisor.liveness import accepts_socket_connections, answers_http, has_status_200, serves_grpc
from recorder.supervisor.processes import Command

_COLOURING = ("FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
_SOCKET_PATH_BYTES = 100  # the kernel takes 107
_LIST_S = 20.0
_API_GRACE_S = 3  # open streams are cut after this; requests end sooner
_KEEP_ALIVE_S = 75  # longer than balancers let a connection rest, so that the balancers close it


class NoCheckout(Invalid):
    """Only the library is installed."""

    def __init__(self, part: str) -> None:
        super().__init__(
            f"The package `{part}` is missing: this is the library alone, and the service runs from a "
            "checkout. Clone the project and run `make up` there."
        )


class CannotListen(Conflict):
    """A port is taken, or an address is not this machine's."""

    def __init__(self, host: str, port: int, option: str, error: OSError) -> None:
        if error.errno == errno.EADDRINUSE:
            why = f"another program does. Choose another port with {option}"
        elif error.errno == errno.EACCES:
            why = f"this user may not. Choose a port from 1024 on with {option}"
        else:
            why = "the address is not of this machine. Choose another one with --host"
        super().__init__(f"Cannot listen on {host}, port {port}: {why}.")


class SocketInUse(Conflict):
    """Another Dagster code server runs in the folder of Dagster's files."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"A Dagster code server of another deployment answers in {folder}. Choose a folder of its own "
            "with RECORDER_DAGSTER_DIR, or leave that unset."
        )


def find_checkout_for_children(part: str) -> Path:
    """Return the folder that holds `api`, `pipelines` and `dagster_home`: beside this package or the current.

    Raises:
        NoCheckout: if neither folder has the package `part`.
    """
    for folder in (Path(recorder.__file__).parents[1], Path.cwd()):
        if (folder / part / "__init__.py").is_file():
            return folder
    raise NoCheckout(part)


def choose_child_port(host: str, port: int, *, option: str) -> int:
    """Return the port itself, or a free one for 0.

    Raises:
        CannotListen: if the port cannot be bound now; the error names `option`, which changes it.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return int(probe.getsockname()[1])
    except OSError as error:
        raise CannotListen(host, port, option, error) from error


def make_service_child_environment(settings: Settings, checkout: Path) -> dict[str, str]:
    """Return the variables of every child: the same deployment, and the checkout on the import path."""
    fixed = {
        "DAGSTER_HOME": str(checkout / "dagster_home"),
        "DAGSTER_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
        # Log files hold no colours, whatever the operator's terminal shows.
        "NO_COLOR": "1",
        "TMPDIR": str(get_service_temporary_folder(settings.data_dir)),
        "MPLCONFIGDIR": str(settings.data_dir / "dagster" / "matplotlib"),
        "PYTHONUNBUFFERED": "1",
        # Without it Python would import a folder `api` of the current directory.
        "PYTHONSAFEPATH": "1",
    }
    variables = make_child_environment(settings, fixed)
    for name in _COLOURING:
        variables.pop(name, None)
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(checkout), variables.get("PYTHONPATH")]))
    variables.setdefault("RECORDER_DAGSTER_DIR", str(settings.data_dir / "dagster"))
    # By default glibc keeps up to eight heaps for each core, and each of them keeps its largest size.
    variables.setdefault("MALLOC_ARENA_MAX", "2")
    return variables


def api_command(
    settings: Settings, variables: dict[str, str], checkout: Path, host: str, port: int
) -> Command:
    """Return the command of the API: one process, which also serves the streams."""
    arguments = ["uvicorn", "--factory", "api.app:create_app", "--app-dir", str(checkout)]
    arguments += ["--host", host, "--port", str(port), "--no-access-log", "--log-level", "warning"]
    arguments += ["--timeout-graceful-shutdown", str(_API_GRACE_S)]
    arguments += [
        "--http",
        "api.gate.slow_clients:SlowClientProtocol",
        "--timeout-keep-alive",
        str(_KEEP_ALIVE_S),
    ]
    arguments += ["--ws", "api.streams.websocket_protocol:WatchedSocket"]
    if settings.trusted_proxies:
        arguments += ["--forwarded-allow-ips", ",".join(settings.trusted_proxies)]
    else:  # by default the server trusts loopback, and addresses in FORWARDED_ALLOW_IPS
        arguments.append("--no-proxy-headers")
    variables = {**variables, **with_listening_host(settings, host).as_env()}
    url = f"{make_child_server_url(host, port)}/readyz"
    alive = f"{make_child_server_url(host, port)}/healthz"
    timeout_s = compute_child_check_timeout_s(settings)
    return _make_child_command(
        "API",
        "api",
        arguments,
        settings,
        variables,
        is_ready=lambda: has_status_200(url),
        # A loopback address with too many connections is refused, and the API is alive.
        answers=lambda: answers_http(alive, timeout_s=timeout_s),
    )


def delivery_command(settings: Settings, variables: dict[str, str]) -> Command:
    """Return the command of the delivery loop, which sends webhooks."""
    pulse = settings.data_dir / "run" / "deliver.pulse"
    arguments = ["recorder.cli", "deliver", "--pulse", str(pulse)]
    answers = HeartbeatReader(pulse).has_beaten
    return _make_child_command("delivery loop", "deliver", arguments, settings, variables, answers=answers)


def dagster_commands(
    settings: Settings, variables: dict[str, str], checkout: Path, host: str, port: int
) -> list[Command]:
    """Return the commands of Dagster: the code server first, then webserver and daemon, which call it.

    `dagster dev` is not used: it runs two processes more, and ends if one of them ends.
    """
    folder = Path(variables["RECORDER_DAGSTER_DIR"])
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    code_socket = _make_child_socket_path(folder)
    workspace = folder / "workspace.yaml"
    workspace.write_text(
        f"load_from:\n  - grpc_server: {{socket: '{code_socket}', location_name: recorder}}\n"
    )
    code = ["dagster", "api", "grpc", "--socket", str(code_socket), "--module-name", "pipelines.definitions"]
    code += ["--working-directory", str(checkout), "--location-name", "recorder", "--log-level", "warning"]
    code += ["--log-format", "json"]
    pages = ["pipelines.webserver", "--host", host, "--port", str(port), "--workspace", str(workspace)]
    pulse = settings.data_dir / "run" / "dagster-daemon.pulse"
    daemon = ["pipelines.daemon", "--workspace", str(workspace), "--pulse", str(pulse)]
    url = f"{make_child_server_url(host, port)}/healthz"
    timeout_s = compute_child_check_timeout_s(settings)
    return [
        _make_child_command(
            "Dagster code server",
            "dagster-code",
            code,
            settings,
            variables,
            is_ready=lambda: accepts_socket_connections(code_socket),
            answers=lambda: serves_grpc(code_socket, timeout_s=timeout_s),
        ),
        _make_child_command(
            "Dagster webserver",
            "dagster-webserver",
            pages,
            settings,
            variables,
            is_ready=lambda: answers_http(url, timeout_s=5.0),
            answers=lambda: answers_http(url, timeout_s=timeout_s),
        ),
        _make_child_command(
            "Dagster daemon",
            "dagster-daemon",
            daemon,
            settings,
            variables,
            answers=HeartbeatReader(pulse).has_beaten,
        ),
    ]


def start_workspace_list_child(settings: Settings) -> subprocess.Popen[bytes]:
    """Start a process that prints the workspaces, so that the supervisor need not open the database.

    A process of its own reads them: the parts that open a database would take 140 MB of the supervisor's
    memory for as long as it runs.
    """
    fixed = {"PYTHONPATH": str(Path(recorder.__file__).parents[1]), "PYTHONSAFEPATH": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "recorder.cli", "workspaces", "list", "--json"],
        env=make_child_environment(settings, fixed),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def read_workspace_list_child(listing: subprocess.Popen[bytes]) -> list[str]:
    """Return the names that `start_workspace_list_child` finds; none where they cannot be read."""
    try:
        printed = listing.communicate(timeout=_LIST_S)[0]
        return [workspace["name"] for workspace in json.loads(printed)]
    except (subprocess.TimeoutExpired, ValueError):
        listing.kill()
        return []


def compute_child_check_timeout_s(settings: Settings) -> float:
    """Return how long one question waits: two go unanswered before a process counts as silent."""
    return 0.45 * settings.answer_within_s


def make_child_server_url(host: str, port: int) -> str:
    """Return the URL at which this machine reaches a server that listens on `host`."""
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{name}:{port}"


def _make_child_command(
    name: str,
    log: str,
    arguments: list[str],
    settings: Settings,
    variables: dict[str, str],
    *,
    answers: Callable[[], bool],
    is_ready: Callable[[], bool] = lambda: True,
) -> Command:
    return Command(
        name=name,
        arguments=[sys.executable, "-m", *arguments],
        environment=variables,
        log=settings.data_dir / "logs" / f"{log}.log",
        is_ready=is_ready,
        answers=answers,
    )


def _make_child_socket_path(folder: Path) -> Path:
    """Return the path for a socket that only this user reaches: callers of the code server can run code.

    Raises:
        SocketInUse: if a server answers there; its socket stays.
    """
    path = folder / "code.sock"
    if len(os.fsencode(path)) > _SOCKET_PATH_BYTES:
        return Path(tempfile.mkdtemp(prefix="recorder-")) / "code.sock"
    if accepts_socket_connections(path):
        raise SocketInUse(folder)
    path.unlink(missing_ok=True)
    return path

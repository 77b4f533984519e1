"""Services of deploy/compose.yaml, started by its commands and environment, without containers.

Run as a program in namespaces of its own (network, mounts): the checkout is at /opt/recorder and volumes are
below /srv, as in the image; host names of services lead to loopback. It prints a JSON object: the seconds
until the health check of each service succeeded.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import yaml

from recorder.settings import extend_program_environment

ROOT = Path("/opt/recorder")
VARIABLES = {
    "RECORDER_SECRET": "compose-secret",
    "POSTGRES_PASSWORD": "database",
    "STORE_PASSWORD": "storage1",
}
OURS = ("bucket", "api", "deliver", "code", "webserver", "daemon")
_PATIENCE_S = 150.0
_POSTGRES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


def read_compose(root: Path) -> dict[str, Any]:
    """Return the services of the file."""
    services: dict[str, Any] = yaml.safe_load((root / "deploy" / "compose.yaml").read_text())["services"]
    return services


def substitute(text: str) -> str:
    """Replace `${NAME}`, `${NAME:-default}` and `${NAME:?message}` as compose does."""

    def value_of(match: re.Match[str]) -> str:
        return VARIABLES.get(match[1], (match[2] or "").removeprefix(":-"))

    return re.sub(r"\$\{(\w+)(:[-?][^}]*)?\}", value_of, text)


def image_environment(root: Path) -> dict[str, str]:
    """Return the variables that the image sets."""
    lines = (root / "deploy" / "Dockerfile").read_text().splitlines()
    pairs = (line.removeprefix("ENV ").split("=", 1) for line in lines if line.startswith("ENV "))
    return {name: value for name, value in pairs}  # noqa: C416


def start_parts(services: dict[str, Any]) -> None:
    """Start PostgreSQL, Redis and a store that speaks S3, at the ports of their images.

    PostgreSQL has the user and database of its environment. The store is not the image's own, which may be
    absent, but takes its port; the service's health checks read and write it.
    """
    data = Path("/srv/postgres")
    data.mkdir()
    shutil.chown(data, "postgres")
    binaries = _POSTGRES[-1]
    as_server: dict[str, Any] = {"user": "postgres", "cwd": "/", "check": True, "stdout": subprocess.DEVNULL}
    chosen = {key: substitute(value) for key, value in services["postgres"]["environment"].items()}
    user, password = chosen["POSTGRES_USER"], data / "password"
    password.write_text(chosen["POSTGRES_PASSWORD"])
    shutil.chown(password, "postgres")
    initdb = [binaries / "initdb", "-A", "scram-sha-256", "-U", user, f"--pwfile={password}"]
    subprocess.run([*initdb, "-D", data / "data"], **as_server)
    options = "-c fsync=off -c unix_socket_directories="
    start = [binaries / "pg_ctl", "start", "-w", "-D", data / "data", "-l", data / "log", "-o", options]
    try:
        subprocess.run(start, **as_server)
    except subprocess.CalledProcessError:
        sys.stderr.write((data / "log").read_text())
        raise
    login = {"host": "127.0.0.1", "user": user, "password": chosen["POSTGRES_PASSWORD"]}
    with psycopg.connect(**login, dbname="postgres", autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{chosen["POSTGRES_DB"]}"'.encode())
    with psycopg.connect(**login, dbname=chosen["POSTGRES_DB"], autocommit=True) as connection:
        connection.execute((ROOT / "deploy" / "postgres.sql").read_bytes())
    subprocess.Popen(services["redis"]["command"], stdout=subprocess.DEVNULL)
    store = [sys.executable, "-m", "tests.support.aws_server", "9000", "/srv/store.log"]
    subprocess.Popen(store, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    # `pg_isready` asks by a socket in the image, which has one; here only addresses lead to the server.
    environment = extend_program_environment(
        {"PATH": f"{binaries}:/usr/local/bin:/usr/bin:/bin", "PGHOST": "127.0.0.1"}
    )
    for name in ("postgres", "redis"):
        wait_until_healthy(name, services[name]["healthcheck"]["test"][1:], environment)
    require_port(services["store"]["command"])


def wait_until_healthy(name: str, check: list[str], environment: dict[str, str]) -> None:
    """Wait until the health check of a part succeeds."""
    began = time.monotonic()
    while subprocess.run(check, env=environment, check=False, stdout=subprocess.DEVNULL).returncode:
        if time.monotonic() - began > _PATIENCE_S:
            sys.exit(f"the health check of {name} does not succeed")
        time.sleep(0.2)


def require_port(command: list[str]) -> None:
    """Wait until something answers at the port that the store's command names."""
    port = int(command[command.index("--address") + 1].removeprefix(":"))
    began = time.monotonic()
    while True:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        if time.monotonic() - began > _PATIENCE_S:
            sys.exit(f"nothing answers at the store's port {port}")
        time.sleep(0.2)


def start_service(name: str, service: dict[str, Any]) -> float:
    """Start a service, and wait until its health check succeeds; return the seconds that it took."""
    environment = {"HOME": "/srv"} | image_environment(ROOT)
    environment |= {key: substitute(value) for key, value in service["environment"].items()}
    volume = Path("/srv/volumes", name)
    volume.mkdir(parents=True)
    # Each service sees its own volume as /srv/recorder.
    mounted = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /srv/recorder && exec "$@"', str(volume)]
    command = [*mounted, *service["command"]]
    log = Path("/srv", f"{name}.log").open("wb")  # noqa: SIM115
    began = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
    if "healthcheck" not in service:
        if process.wait(timeout=_PATIENCE_S):
            fail(name)
        return time.monotonic() - began
    check = [*mounted, *service["healthcheck"]["test"][1:]]
    while time.monotonic() - began < _PATIENCE_S:
        if process.poll() is not None:
            fail(name)
        done = subprocess.run(
            check,
            cwd=ROOT,
            env=environment,
            check=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        if done.returncode == 0:
            return time.monotonic() - began
        time.sleep(0.5)
    fail(name)
    return 0.0


def fail(name: str) -> None:
    """End with the log of a service that did not become ready."""
    sys.exit(f"{name} did not become ready:\n{Path('/srv', f'{name}.log').read_text()[-4000:]}")


def require_order(services: dict[str, Any]) -> None:
    """Check that each service comes after those that the file lets it wait for."""
    started = {"postgres", "redis", "store"}
    for name in OURS:
        missing = set(services[name].get("depends_on", ())) - started
        if missing:
            sys.exit(f"{name} waits for {sorted(missing)}, which start later")
        started.add(name)


def main() -> None:
    """Start all services in order; print the seconds of each."""
    services = read_compose(ROOT)
    require_order(services)
    start_parts(services)
    seconds = {name: round(start_service(name, services[name]), 1) for name in OURS}
    print(json.dumps(seconds))
    sys.stdout.flush()
    # The network and process namespaces end everything that was started.
    os._exit(0)


if __name__ == "__main__":
    main()

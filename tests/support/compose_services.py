"""Services of deploy/compose.yaml, started by its commands and environment, without containers.

Run as a program in namespaces of its own (network, mounts): the checkout is at /opt/recorder and volumes are
below /srv, as in the image; host names of services lead to loopback. It prints a JSON object: the seconds
until the health check of each service succeeded.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psycopg
import yaml

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
    """Start PostgreSQL, Redis and a store that speaks S3, at the ports of their images."""
    data = Path("/srv/postgres")
    data.mkdir()
    shutil.chown(data, "postgres")
    binaries = _POSTGRES[-1]
    as_server: dict[str, Any] = {"user": "postgres", "cwd": "/", "check": True, "stdout": subprocess.DEVNULL}
    subprocess.run([binaries / "initdb", "-A", "trust", "-U", "recorder", "-D", data / "data"], **as_server)
    options = "-c fsync=off -c unix_socket_directories="
    start = [binaries / "pg_ctl", "start", "-w", "-D", data / "data", "-l", data / "log", "-o", options]
    try:
        subprocess.run(start, **as_server)
    except subprocess.CalledProcessError:
        sys.stderr.write((data / "log").read_text())
        raise
    with psycopg.connect("postgresql://recorder@127.0.0.1/postgres", autocommit=True) as connection:
        connection.execute("CREATE DATABASE recorder")
        connection.execute((ROOT / "deploy" / "postgres.sql").read_bytes())
    subprocess.Popen(services["redis"]["command"], stdout=subprocess.DEVNULL)
    store = [sys.executable, "-m", "tests.support.aws_server", "9000", "/srv/store.log"]
    subprocess.Popen(store, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


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


def main() -> None:
    """Start all services in order; print the seconds of each."""
    services = read_compose(ROOT)
    start_parts(services)
    seconds = {name: round(start_service(name, services[name]), 1) for name in OURS}
    print(json.dumps(seconds))
    sys.stdout.flush()
    # The network and process namespaces end everything that was started.
    os._exit(0)


if __name__ == "__main__":
    main()

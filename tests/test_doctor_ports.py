"""Doctor examines the ports on the addresses where the service would listen. Contract §9."""

import socket
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from recorder.doctor.machine import Ports, check_ports
from recorder.settings import Settings
from recorder.supervisor.run_records import SERVICE, RunRecord

HAS_IPV6 = Path("/proc/net/if_inet6").exists()


class Ipv6Server(ThreadingHTTPServer):
    """HTTP server on an IPv6 address."""

    address_family = socket.AF_INET6


class Api(BaseHTTPRequestHandler):
    """Answers that the API gives to probes."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Service-Version", "2026.5.0")
        self.end_headers()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return settings of a folder on which no service runs."""
    return Settings.from_env({}, data_dir=tmp_path)


@pytest.fixture
def ports() -> Iterator[Ports]:
    """Yield ports that are free on this machine."""
    with socket.socket() as first, socket.socket() as second:
        for probe in (first, second):
            probe.bind(("127.0.0.1", 0))
        chosen = Ports(api=first.getsockname()[1], dagster=second.getsockname()[1])
    yield chosen


def test_free_ports_and_those_of_a_running_service_are_right(settings: Settings, ports: Ports) -> None:
    assert [finding.state for finding in check_ports(settings, ports)] == ["ok", "ok"]
    with RunRecord.hold(settings.data_dir, SERVICE, api="http://127.0.0.1:8700"):
        (finding,) = check_ports(settings, ports)
    assert finding.state == "ok" and "http://127.0.0.1:8700" in finding.message


def test_a_port_of_another_program_is_reported(settings: Settings, ports: Ports) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", ports.api))
        other.listen()
        (finding, _) = check_ports(settings, ports)
    assert finding.state == "warning"
    assert finding.message == f"Cannot listen on 127.0.0.1, port {ports.api}: another program does."
    assert finding.fix == "Choose another port with --port."


def test_dagsters_port_is_examined_on_loopback_whatever_the_host_is(settings: Settings, ports: Ports) -> None:
    with socket.socket() as dagster:
        dagster.bind(("127.0.0.1", ports.dagster))
        dagster.listen()
        # No machine has this address.
        seen = list(check_ports(settings, replace(ports, host="192.0.2.1")))
    assert [(finding.state, finding.fix) for finding in seen] == [
        ("warning", "Choose another one with --host."),
        ("warning", "Choose another port with --dagster-port."),
    ]


@pytest.mark.parametrize(
    ("host", "server"),
    [
        ("127.0.0.1", ThreadingHTTPServer),
        ("0.0.0.0", ThreadingHTTPServer),
        pytest.param("::1", Ipv6Server, marks=pytest.mark.skipif(not HAS_IPV6, reason="there is no IPv6")),
    ],
)
def test_an_api_process_on_the_port_is_no_finding(
    settings: Settings, ports: Ports, host: str, server: type[ThreadingHTTPServer]
) -> None:
    ports = replace(ports, host=host)
    assert {finding.state for finding in check_ports(settings, ports)} == {"ok"}
    with server((host, ports.api), Api) as api:
        Thread(target=api.serve_forever, daemon=True).start()
        first, _ = check_ports(settings, ports)
        api.shutdown()
    assert first.state == "ok" and "An API process answers" in first.message

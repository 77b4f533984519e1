"""A hostile page in a real browser against a running deployment; run by tests/end_to_end/test_attack_page.py.

Decision 0031. The browser and the deployment are in a network that has only loopback.
"""

import http.server
import json
import select
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from pipelines.dataset_partitions import PARTITIONS
from recorder.access.dagster_login import LoginLinks
from recorder.settings import Settings, extend_program_environment
from recorder.supervisor import Service, run_service
from recorder.supervisor.child_commands import choose_child_port, make_service_child_environment
from tests.support.browser import Page, chromium

ROOT = Path(__file__).parents[3]
TEMPLATE = Path(__file__).with_name("attack_page.html")
#: The attacker's name; its resolver answers with 127.0.0.2, where the rebinding servers below are.
EVIL = "evil.example"
RESOLVER = f"--host-resolver-rules=MAP {EVIL} 127.0.0.2"

STATE = """{
  runsOrError { ... on Runs { results { runId } } }
  sensorsOrError(repositorySelector: {repositoryName: "__repository__", repositoryLocationName: "recorder"}) {
    ... on Sensors { results { name sensorState { id status } } }
  }
  assetOrError(assetKey: {path: ["sealed_sessions"]}) {
    ... on Asset { assetMaterializations { timestamp } }
  }
  assetNodeOrError(assetKey: {path: ["datasets"]}) { ... on AssetNode { partitionKeys } }
}"""
LAUNCH = (
    'mutation { launchRun(executionParams: {selector: {jobName: "check_arrivals", repositoryName: '
    '"__repository__", repositoryLocationName: "recorder"}}) { __typename } }'
)
STOP = 'mutation { stopSensor(id: "%s") { __typename } }'
#: What had an effect on Dagster's own server, from a page on another port or name.
OPEN_WAYS = {"form", "form_text", "form_multipart", "fetch_text", "fetch_disguised", "fetch_empty", "beacon"}
OPEN_WAYS |= {"image", "visit"}


@dataclass(frozen=True)
class State:
    """State that an attack would change."""

    runs: frozenset[str]
    sensors: dict[str, str]
    materializations: int
    partitions: frozenset[str]


class Instance:
    """Dagster's state, read as its operator."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def read(self) -> State:
        data = self._ask()
        return State(
            frozenset(run["runId"] for run in data["runsOrError"]["results"]),
            {sensor["name"]: sensor["sensorState"]["status"] for sensor in data["sensorsOrError"]["results"]},
            len(data["assetOrError"].get("assetMaterializations") or []),
            frozenset(data["assetNodeOrError"]["partitionKeys"]),
        )

    def sensor_id(self, name: str) -> str:
        sensor_ids = {
            sensor["name"]: sensor["sensorState"]["id"] for sensor in self._ask()["sensorsOrError"]["results"]
        }
        return str(sensor_ids[name])

    def _ask(self) -> dict[str, Any]:
        answer = self._client.post("/graphql", json={"query": STATE}).json()
        assert "errors" not in answer, answer
        return answer["data"]  # type: ignore[no-any-return]


class Attacker:
    """Serves the hostile page, and rebinds its name: afterwards the name leads to the victim."""

    def __init__(self, damage: list[str]) -> None:
        self._damage = damage
        self._stack = ExitStack()
        pages = http.server.ThreadingHTTPServer(("0.0.0.0", 0), self._handler())
        self._serve(pages)
        self.port: int = pages.server_address[1]

    def rebind(self, port: int) -> None:
        """Let the attacker's name lead to this port of the victim: all but the page itself goes there."""
        attacker = self

        class Rebinding(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                head = self.request.recv(65_536)
                is_page = head.startswith(b"GET /attack?")
                # One request for each connection, so that the next one may go elsewhere.
                head = head.replace(b"Connection: keep-alive", b"Connection: close")
                where = ("127.0.0.1", attacker.port if is_page else port)
                with socket.create_connection(where) as victim, suppress(OSError):
                    victim.sendall(head)
                    _pipe(self.request, victim)

        socketserver.ThreadingTCPServer.allow_reuse_address = True
        self._serve(socketserver.ThreadingTCPServer(("127.0.0.2", port), Rebinding))

    def page(self, target: str, label: str) -> str:
        """Return the path of the page that attacks a target."""
        return f"/attack?target={target}&label={label}"

    def close(self) -> None:
        self._stack.close()

    def _serve(self, server: socketserver.BaseServer) -> None:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self._stack.callback(server.server_close)
        self._stack.callback(server.shutdown)

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        damage = json.dumps(self._damage)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
                text = TEMPLATE.read_text().replace("{{damage}}", damage)
                for name, value in (("partitions", PARTITIONS.name or ""), *query.items()):
                    text = text.replace(f"{{{{{name}}}}}", value)
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


def _pipe(client: socket.socket, victim: socket.socket) -> None:
    """Pass bytes on in both directions until one side ends."""
    while True:
        for ready in select.select([client, victim], [], [])[0]:
            data = ready.recv(65_536)
            if not data:
                return
            (victim if ready is client else client).sendall(data)


@dataclass(frozen=True)
class Deployment:
    """A running service, and Dagster's own webserver on the same instance."""

    service: Service
    settings: Settings
    instance: Instance
    bare_url: str


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    settings = Settings.from_env(data_dir=tmp_path_factory.mktemp("deployment"))
    with (
        run_service(settings, dagster=True) as service,
        service.open_dagster() as client,
        bare_webserver(settings) as bare_url,
    ):
        yield Deployment(service, settings, Instance(client), bare_url)


@contextmanager
def bare_webserver(settings: Settings) -> Iterator[str]:
    """Yield Dagster's own webserver without a login."""
    port = choose_child_port("127.0.0.1", 0, option="--port")
    workspace = settings.data_dir / "dagster" / "workspace.yaml"
    arguments = ["-m", "dagster_webserver", "--port", str(port), "--workspace", str(workspace)]
    variables = extend_program_environment(make_service_child_environment(settings, ROOT))
    with (settings.data_dir / "bare.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, *arguments], env=variables, stdout=log, stderr=log)
    try:
        url, until = f"http://127.0.0.1:{port}", time.monotonic() + 60
        while time.monotonic() < until:
            assert process.poll() is None, (settings.data_dir / "bare.log").read_text()
            with suppress(httpx.TransportError):
                if httpx.get(f"{url}/server_info", trust_env=False).status_code == 200:
                    break
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def attacker(deployment: Deployment) -> Iterator[Attacker]:
    made = Attacker([LAUNCH, STOP % deployment.instance.sensor_id("stopped_sessions")])
    for url in (deployment.service.dagster_url, deployment.service.base_url, deployment.bare_url):
        made.rebind(int(str(url).rpartition(":")[2]))
    yield made
    made.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, deployment: Deployment) -> Iterator[Page]:
    # Frames of other sites are otherwise targets of their own, which the page's frame tree leaves out.
    in_process = "--disable-site-isolation-trials"
    with chromium(tmp_path_factory.mktemp("profile"), RESOLVER, in_process) as opened:
        yield opened


def attack(page: Page, attacker: Attacker, target: str, label: str) -> dict[str, dict[str, Any]]:
    """Open the hostile page on another port, under another name, and under a name that is rebound."""
    port = target.rpartition(":")[2]
    rebound = f"http://{EVIL}:{port}"
    visits = {
        "port": (f"http://127.0.0.1:{attacker.port}", target),
        "name": (f"http://{EVIL}:{attacker.port}", target),
        "rebound": (rebound, rebound),
    }
    attacks = {}
    for origin, (base, victim) in visits.items():
        page.visit(base + attacker.page(victim, f"{label}-{origin}"))
        page.wait_for("document.title == 'over'")
        attacks[origin] = page.evaluate("results") | {"frames": read_frames(page)}
        page.evaluate("leave()")
        page.wait_for("document.title != 'over' && document.readyState == 'complete'")
    return attacks


def read_frames(page: Page) -> str:
    """Return the addresses of the page's frames (a refused one has none of http), and readable text."""
    tree = page.call("Page.getFrameTree")["frameTree"]
    texts = "[...document.querySelectorAll('iframe')].map(one => one.contentDocument?.body?.innerHTML)"
    urls = [child["frame"]["url"].partition("?")[0] for child in tree.get("childFrames", [])]
    return json.dumps([urls, page.evaluate(texts)])


def ways_in(state: State, label: str) -> dict[str, set[str]]:
    """Return the attacks that had an effect, by the origin of the page."""
    succeeded: dict[str, set[str]] = {"port": set(), "name": set(), "rebound": set()}
    for key in state.partitions:
        if key.startswith(f"{label}-"):
            _, origin, way = key.split("-")
            succeeded[origin].add(way)
    return succeeded


def assert_nothing_came_of_it(
    before: State, after: State, succeeded: dict[str, dict[str, Any]], label: str
) -> None:
    assert after == before, label
    for origin, results in succeeded.items():
        assert results["socket"] == [], (label, origin)
        assert origin == "rebound" or "http:" not in results["frames"], (label, origin, results)
        assert "dagster" not in results["frames"].lower(), (label, origin, results)
        assert "dagster" not in str(results["read"]), (label, origin)


def test_a_hostile_page_has_no_effect(deployment: Deployment, attacker: Attacker, page: Page) -> None:
    target = deployment.service.dagster_url or ""
    before = deployment.instance.read()
    succeeded = attack(page, attacker, target, "stranger")
    assert_nothing_came_of_it(before, deployment.instance.read(), succeeded, "stranger")


def test_nor_has_it_in_the_browser_of_an_operator_who_is_logged_in(
    deployment: Deployment, attacker: Attacker, page: Page
) -> None:
    target = deployment.service.dagster_url or ""
    page.visit(LoginLinks(deployment.settings).make_link(target))
    page.wait_for("document.body.innerText.includes('Lineage')")
    before = deployment.instance.read()
    page.events.clear()
    succeeded = attack(page, attacker, target, "operator")
    assert_nothing_came_of_it(before, deployment.instance.read(), succeeded, "operator")
    # The requests of the page on another port carried the login: that alone does not protect.
    sent = [event for event in page.events if event["method"] == "Network.requestWillBeSentExtraInfo"]
    assert "recorder_dagster_" in json.dumps(sent)
    page.visit(f"{target}/assets/sealed_sessions")
    page.wait_for("document.body.innerText.includes('Never materialized')")


def test_the_interface_of_a_rebound_name_is_closed(
    deployment: Deployment, attacker: Attacker, page: Page
) -> None:
    port = deployment.service.base_url.rpartition(":")[2]
    page.visit(f"http://{EVIL}:{port}/healthz")
    paths = "['/healthz', '/openapi.json', '/v1/sessions']"
    statuses = page.evaluate(f"Promise.all({paths}.map(path => fetch(path).then(answer => answer.status)))")
    assert statuses == [200, 400, 400]


def test_the_same_page_changes_what_dagsters_own_server_serves(
    deployment: Deployment, attacker: Attacker, page: Page
) -> None:
    before = deployment.instance.read()
    succeeded = attack(page, attacker, deployment.bare_url, "bare")
    after = deployment.instance.read()
    ways = ways_in(after, "bare")
    assert ways["port"] >= OPEN_WAYS and ways["name"] >= OPEN_WAYS, ways
    assert ways["rebound"] >= OPEN_WAYS | {"fetch_json"}, ways
    assert len(after.runs - before.runs) == 3
    assert (before.sensors["stopped_sessions"], after.sensors["stopped_sessions"]) == ("RUNNING", "STOPPED")
    assert after.materializations == before.materializations + 3
    for results in succeeded.values():
        assert any("connection_ack" in line for line in results["socket"]), results
        assert "/runs" in results["frames"], results
    assert "dagster_version" in succeeded["rebound"]["read"]
    # The page's content; on a busy machine before the title of the application is there.
    frames = succeeded["rebound"]["frames"]
    assert "dagster" in frames or "next-route-announcer" in frames, frames

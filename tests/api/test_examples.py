"""The service's own pages: introduction, start page, and examples that run unchanged. Contract §9."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.app import create_app
from recorder import __version__
from recorder.supervisor.run_records import SERVICE, RunRecord
from tests.support.completed_work import EVENTS, completed_export, stopped_session
from tests.support.databases import create_file
from tests.support.factories import Caller, event, running_app
from tests.support.http_service import RunningService, serving
from tests.support.sealed_sessions import make_settings
from tests.support.sealing import seal_all
from tests.support.two_click_sessions import make_drain_run

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the data folder of this module's service."""
    return tmp_path_factory.mktemp("service")


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[RunningService]:
    """Yield a service with sealed sessions of `checkout` and a completed export."""
    url = create_file(folder)
    with running_app(folder, url) as service:
        caller: Caller = service.make_caller()
        for _ in range(2):
            stopped_session(caller, *EVENTS, workflow="checkout")
        seal_all(caller.service.runtime)
        completed_export(caller, workflow="checkout")
        await_decision(caller)
        failed = stopped_session(caller, *EVENTS, workflow="checkout")
        assert caller.post(f"/v1/sessions/{failed}/tags", {"name": "error"}).status_code == 201
        seal_all(caller.service.runtime)
    with serving(create_app(make_settings(folder, database_url=url))) as port:
        yield RunningService(f"http://127.0.0.1:{port}", caller.key.key)


def await_decision(caller: Caller) -> None:
    """Create a guided replay that waits for the decision on its first step."""
    pay = event(900, "click", target={"role": "button", "name": "Pay"})
    session_id = stopped_session(caller, pay, workflow="checkout")
    seal_all(caller.service.runtime)
    body = {"session_id": session_id, "sandbox": "dry", "mode": "guided"}
    replay_id = caller.post("/v1/replays", body).json()["id"]
    run = make_drain_run(caller.service.runtime, "examples")
    assert run.take() and run.work_on_due_replays()
    run.release()
    assert caller.get(f"/v1/replays/{replay_id}").json()["awaiting"] is not None


@pytest.fixture(scope="module")
def document(running: RunningService) -> dict[str, Any]:
    """Return the content of `/openapi.json`."""
    body: dict[str, Any] = httpx.get(f"{running.url}/openapi.json").json()
    return body


def scripts(document: dict[str, Any]) -> dict[str, str | None]:
    """Return the shell script in the description of each operation."""
    return {
        f"{method.upper()} {path}": next(
            iter(re.findall(r"```sh\n(.+?)\n```", operation["description"], re.DOTALL)), None
        )
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


def test_every_operation_has_an_example_that_runs_as_it_stands(
    running: RunningService, document: dict[str, Any], tmp_path: Path
) -> None:
    # An answer that is an error ends the script; nothing else is added to what the pages show.
    (tmp_path / ".curlrc").write_text("fail-with-body\n")
    variables = {
        "CURL_HOME": str(tmp_path),
        "RECORDER_URL": running.url,
        "RECORDER_KEY": running.key,
        "PATH": "/usr/bin:/bin",
    }
    failed = {}
    for operation, script in scripts(document).items():
        assert script is not None, operation
        # `head` closes a stream that has no end.
        strict = "set -eu" if "/stream" in operation else "set -eu -o pipefail"
        run = subprocess.run(
            ["bash", "-c", f"{strict}\n{script}"],
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            timeout=60,
        )
        if run.returncode or not (run.stdout or "-o " in script or "DELETE" in operation):
            failed[operation] = (script, run.stdout, run.stderr)
    assert failed == {}


def test_bodies_that_the_pages_fill_in_are_taken(running: RunningService, document: dict[str, Any]) -> None:
    with httpx.Client(
        base_url=running.url, headers={"Authorization": f"Bearer {running.key}"}, timeout=30
    ) as client:
        session = client.post("/v1/sessions", json={"workflow": "checkout", "start": True}).json()["id"]
        webhook = {"url": "http://127.0.0.1:9000/hook", "events": ["session.sealed"]}
        webhook_id = client.post("/v1/webhooks", json=webhook).json()["id"]
        tried = 0
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
                if "example" in content:
                    address = path.format(session_id=session, webhook_id=webhook_id, workflow="checkout")
                    answer = client.request(method.upper(), address, json=content["example"])
                    assert answer.is_success, (method, path, answer.text)
                    tried += 1
    assert tried >= 10


def test_the_introduction_tells_how_to_authenticate_and_what_comes_next(document: dict[str, Any]) -> None:
    text = document["info"]["description"]
    assert "Authorization: Bearer" in text and "recorder workspaces create" in text
    for address in re.findall(r"`(?:GET|POST) (/v1/[^`? ]+)", text):
        assert address in document["paths"], address
    for link in re.findall(r"\]\((/[^)]*)\)", text):
        assert link in ("/", "/openapi.json", "/readyz")


def test_the_start_page_is_html_for_browsers_and_json_for_others(running: RunningService) -> None:
    for accept in ("*/*", "application/json", "text/plain", ""):
        answer = httpx.get(running.url, headers={"Accept": accept})
        assert answer.status_code == 200 and answer.headers["content-type"] == "application/json"
        assert answer.json()["version"] == __version__ and answer.json()["links"]["dagster"] is None
    page = httpx.get(running.url, headers={"Accept": BROWSER})
    assert page.headers["content-type"] == "text/html; charset=utf-8" and __version__ in page.text
    # What it leads to is there, and nothing is fetched from elsewhere.
    links = re.findall(r'href="([^"]+)"', page.text)
    assert {"/docs", "/openapi.json", "/readyz"} <= set(links)
    assert all(httpx.get(running.url + link).status_code == 200 for link in links)
    assert "`" not in page.text and "<code>recorder status --data FOLDER</code>" in page.text
    assert "<script" not in page.text and "src=" not in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]


def test_the_start_page_leads_to_dagster_where_it_runs(running: RunningService, folder: Path) -> None:
    with RunRecord.hold(folder, SERVICE, api=running.url, dagster="http://127.0.0.1:3999"):
        assert httpx.get(running.url).json()["links"]["dagster"] == "http://127.0.0.1:3999"
        page = httpx.get(running.url, headers={"Accept": BROWSER}).text
        assert 'href="http://127.0.0.1:3999"' in page and "<code>recorder status --data FOLDER</code>" in page


def test_the_start_page_follows_the_host_checks(running: RunningService) -> None:
    refused = httpx.get(running.url, headers={"Host": "rebound.example"})
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_host")

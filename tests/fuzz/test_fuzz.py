"""Requests made up from OpenAPI, right and wrong, alone and in sequences, on the running service.

No answer is 5xx, none has a status or a content type that the description does not name, every body is as
described, and every answer has the headers and, where it is a problem, the request id. A tenth of the
requests are of kinds that no OpenAPI client makes (`odd_requests`). `make fuzz` sends 100,000 on each engine;
`make system` some hundred.
"""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from api.gate.endpoints import ENDPOINTS
from benchmarks.servers import Server, serving
from recorder.settings import make_child_environment
from tests.fuzz.odd_requests import HEAD_UNFINISHED, Target, check_silent, send_odd_requests
from tests.support.deployment_processes import ROOT
from tests.support.factories import frame, running_app
from tests.support.object_stores import ENVIRONMENT, running_store
from tests.support.sealed_sessions import make_settings
from tests.support.workspace_contents import make_tenant_contents

#: So many on each engine; 0 for a short pass.
CASES = int(os.environ.get("RECORDER_FUZZ_CASES", "0"))  # noqa: TID251
SEED = int(os.environ.get("RECORDER_FUZZ_SEED", "1"))  # noqa: TID251
# Of one run, for each operation; what it finds is shown once, so that several runs find more.
_EXAMPLES = 100
_KEYS = 30
# Every place of every operation once; and on the other engine a little of the rest, wrongly too. That every
# place is filled wrongly as well is left to the long run: it makes eight times as many.
_SHORT = {
    "sqlite": ("--phases", "coverage", "--mode", "positive", "--seed", "1"),
    "postgresql": ("--phases", "fuzzing,stateful", "--max-examples", "2", "--seed", "1"),
}


def make_known(folder: Path, database_url: str) -> dict[str, str]:
    """Fill the service; return the variables for the hooks, and the key."""
    with running_app(folder, database_url) as service:
        tenant = make_tenant_contents(service, "fuzz")
        ids = {kind: [value] for kind, value in tenant.ids.items()}
        ids["path"] = ids.pop("file")
        ids["session_id"] += [tenant.admin.make_session() for _ in range(20)]
        ids["session_id"] += [tenant.admin.make_session(status=item) for item in ("created", "stopped")]
    return {
        "RECORDER_FUZZ_IDS": json.dumps(ids),
        "RECORDER_FUZZ_BODIES": json.dumps(
            {
                "POST /v1/webhooks": {"url": "http://127.0.0.1:9/", "events": ["session.created"]},
                "POST /v1/exports": {
                    "workflow": tenant.ids["workflow"],
                    "format": "parquet",
                    "destination": {"kind": "signed_url"},
                },
                "POST /v1/sessions/{session_id}/frames": {"frames": [frame(1)]},
            }
        ),
        "RECORDER_FUZZ_KEY_ID": tenant.admin.key.key_id,
        "RECORDER_KEY": tenant.admin.key.key,
    }


def fuzz(server: Server, known: dict[str, str], folder: Path, *options: str) -> dict[str, Any]:
    """Run schemathesis once; return its report."""
    report = folder / "report.json"
    command = [sys.executable, "-m", "schemathesis.cli", "--no-color"]
    command += ["--config-file", str(Path(__file__).with_name("schemathesis.toml"))]
    command += [
        "run",
        f"{server.url}/openapi.json",
        "--header",
        f"Authorization: Bearer {known['RECORDER_KEY']}",
    ]
    command += ["--report", "json", "--report-json-path", str(report), *options]
    environment = make_child_environment(make_settings(folder), {**known, "PYTHONPATH": str(ROOT)})
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert report.exists(), run.stdout + run.stderr
    report_body: dict[str, Any] = json.loads(report.read_text())
    assert (report_body["failures"], report_body["errors"], run.returncode) == ([], [], 0), run.stdout
    return report_body


def make_target(server: Server, known: dict[str, str]) -> Target:
    """Return the targets of odd requests: all addresses, also those that OpenAPI does not show."""
    paths = [endpoint.path.replace(":path}", "}") for endpoint in ENDPOINTS]
    paths += [
        "/",
        "/healthz",
        "/readyz",
        "/openapi.json",
        "/docs",
        "/static-offline-docs/swagger-ui.css",
        "/metrics",
        "/nothing",
        "/v1/nothing",
    ]
    ids = json.loads(known["RECORDER_FUZZ_IDS"])
    # What has byte ranges comes more often, and its session is the one that has the frame.
    image = f"/v1/sessions/{ids['session_id'][0]}/frames/{{frame_id}}/image"
    paths = sorted(set(paths)) + 4 * [image, "/v1/exports/{export_id}/files/{path}"]
    return Target(server.url, make_keys(server, known["RECORDER_KEY"]), paths, ids)


def make_keys(server: Server, key: str) -> list[str]:
    """Return further keys of the workspace: odd requests come faster than the rate limit of one key."""
    body = {"label": "odd requests", "scope": "admin"}
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {key}"}) as client:
        return [client.post("/v1/keys", json=body).raise_for_status().json()["key"] for _ in range(_KEYS)]


def test_no_answer_is_5xx_or_undescribed(database_url: str, tmp_path: Path) -> None:
    known = make_known(tmp_path, database_url)
    with ExitStack() as stack:
        # Requests name clouds too; without these endpoints the service would call them.
        stores = [stack.enter_context(running_store(kind)) for kind in ("s3", "gcs", "azure_blob")]
        endpoints = {store.setting: store.url for store in stores}
        settings = make_settings(tmp_path, database_url=database_url, **endpoints)
        server = stack.enter_context(serving(settings, environment=ENVIRONMENT))
        target = make_target(server, known)
        if not CASES:
            odd = send_odd_requests(target, 1_200, seed=1)
            print(f"odd requests by status: {dict(odd)}", flush=True)
            assert {200, 400, 404, 405, 416, 422, HEAD_UNFINISHED} <= set(odd)
            check_silent(odd)
            short = _SHORT[database_url.partition(":")[0]]
            assert fuzz(server, known, tmp_path, *short)["test_cases"]["generated"] > 100
            return
        cases, seed = 0, SEED
        while cases < CASES:
            options = ("--max-examples", str(_EXAMPLES), "--seed", str(seed))
            made = fuzz(server, known, tmp_path, *options)["test_cases"]["generated"]
            odd = send_odd_requests(target, made // 10, seed)
            check_silent(odd)
            cases += made + odd.total()
            print(
                f"seed {seed}: {cases} cases so far, none failed; odd ones by status: {dict(odd)}", flush=True
            )
            seed += 1

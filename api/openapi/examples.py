"""Introduction and examples of the pages under `/docs`. A test runs every example unchanged.

Each example is a shell script that creates the records it needs. Some need a sealed or failed session of the
workflow `checkout`, or a completed export: a script cannot wait for them.
"""

import json
from typing import Any, Final

INTRODUCTION: Final = """
Records runs of a workflow, seals them into tables and a memory graph, and exports datasets.

**Authenticate.** Every request below `/v1` carries `Authorization: Bearer <API_KEY>`. The operator creates
the first key: `recorder workspaces create NAME` prints it once. Press *Authorize* and enter the key to try
requests on this page.

**From a session to an export.**

1. `POST /v1/sessions` with `{"workflow": "checkout", "start": true}` starts a recording.
2. `POST /v1/sessions/{session_id}/events` and `…/frames` send events and pictures, in batches.
3. `POST /v1/sessions/{session_id}/tags` marks moments: `success` or `error` decide the outcome.
4. `POST /v1/sessions/{session_id}/stop` stops the recording. Within seconds its status is `sealed`.
5. `GET /v1/memory/paths?workflow=checkout` shows the common paths of sealed sessions.
6. `POST /v1/exports` queues a dataset. Once `GET /v1/exports/{export_id}` returns `completed`, `manifest_url`
   lists its files.

**Run the examples.** Each operation has a shell script that runs unchanged. Those that read the memory
graph, a stream, a replay or a completed export need a sealed session of the workflow `checkout`; recoveries
need a failed one (tag `error`), and a decision needs a guided replay that waits. Set two variables first:

```sh
export RECORDER_URL=http://127.0.0.1:8700   # the address of this page
export RECORDER_KEY=nsk_local_…
```

**Errors** are `application/problem+json` with `code`, `detail` (how to fix it) and `request_id`; `errors`
lists the invalid fields. Optional members may be null. Lists take `limit` and `cursor`.

[Start page](/) · [this description as JSON](/openapi.json) · [state of the service](/readyz)
"""

_AUTH = 'auth="Authorization: Bearer $RECORDER_KEY"'


def _format_curl_command(path: str, *options: str) -> str:
    return " ".join(["curl -sS", '-H "$auth"', *options, f'"$RECORDER_URL{path}"'])


def _format_request(method: str, path: str, *, body: str = "") -> str:
    data = ["-H 'Content-Type: application/json'", f"-d '{body}'"] if body else []
    return _format_curl_command(path, *([] if method == "POST" and body else [f"-X {method}"]), *data)


def _format_shell_id_capture(prefix: str, command: str) -> str:
    return f"$({command} | grep -o '{prefix}_[0-9a-z]*' | head -n 1)"


_CREATED = '{"workflow": "checkout"}'
_STARTED = '{"workflow": "checkout", "start": true}'
_NEW_SESSION = (
    f"session={_format_shell_id_capture('ses', _format_request('POST', '/v1/sessions', body=_CREATED))}"
)
_RECORDING = (
    f"session={_format_shell_id_capture('ses', _format_request('POST', '/v1/sessions', body=_STARTED))}"
)
_ONE_PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
_EVENTS = (
    '{"events": [{"t_ms": 0, "type": "navigate", "url": "https://shop.example/cart"}, '
    '{"t_ms": 900, "type": "click", "target": {"role": "button", "name": "Pay"}}]}'
)
_FRAMES = f'{{"frames": [{{"t_ms": 0, "content_type": "image/png", "data": "{_ONE_PIXEL}"}}]}}'
_AT = "/v1/sessions/$session"
_WITH_FRAME = [
    _RECORDING,
    f"frame={_format_shell_id_capture('frm', _format_request('POST', f'{_AT}/frames', body=_FRAMES))}",
]
_SNAPSHOT = '{"v": 1, "format": "nodes", "html": ["html", {}, ["body", {}, "Cart"]]}'
_FRAME_WITH_SNAPSHOT = f'{_FRAMES.removesuffix("}]}")}, "dom": {_SNAPSHOT}}}]}}'
_WITH_SNAPSHOT = [
    _RECORDING,
    "frame="
    + _format_shell_id_capture("frm", _format_request("POST", f"{_AT}/frames", body=_FRAME_WITH_SNAPSHOT)),
]
_WITH_EVENTS = [_RECORDING, _format_request("POST", f"{_AT}/events", body=_EVENTS)]
_SEALED = [
    "session="
    + _format_shell_id_capture(
        "ses", _format_curl_command("/v1/sessions?workflow=checkout&status=sealed&limit=1")
    )
]
_EXPORT_BODY = '{"workflow": "checkout", "format": "parquet", "destination": {"kind": "signed_url"}}'
_QUEUED = [
    f"export={_format_shell_id_capture('exp', _format_request('POST', '/v1/exports', body=_EXPORT_BODY))}"
]
_COMPLETED = [
    f"export={_format_shell_id_capture('exp', _format_curl_command('/v1/exports?status=completed&limit=1'))}"
]
_DRY_REPLAY = (
    "curl -sS -H \"$auth\" -H 'Content-Type: application/json' "
    '-d "{\\"session_id\\": \\"$session\\", \\"sandbox\\": \\"dry\\"}" "$RECORDER_URL/v1/replays"'
)
_REPLAYED = [*_SEALED, f"replay={_format_shell_id_capture('rpl', _DRY_REPLAY)}"]
_FAILED = [
    "session="
    + _format_shell_id_capture(
        "ses", _format_curl_command("/v1/sessions?workflow=checkout&outcome=error&limit=1")
    )
]
_DRY_RECOVERY = _DRY_REPLAY.replace("/v1/replays", "/v1/recoveries")
_RECOVERED = [*_FAILED, f"recovery={_format_shell_id_capture('rcv', _DRY_RECOVERY)}"]
_WEBHOOK_BODY = '{"url": "http://127.0.0.1:9000/hook", "events": ["session.sealed"]}'
_WEBHOOK = [
    f"webhook={_format_shell_id_capture('whk', _format_request('POST', '/v1/webhooks', body=_WEBHOOK_BODY))}"
]
_HOOK = "/v1/webhooks/$webhook"
_DELIVERY = [
    *_WEBHOOK,
    f"delivery={_format_shell_id_capture('dlv', _format_request('POST', f'{_HOOK}/test'))}",
]
_ERASURE_BODY = '{"subject": "someone@example.com", "scope": "all"}'
_KEY_BODY = '{"label": "reports", "scope": "read"}'

#: By method and path: the commands that prepare a request, and the request.
_SCRIPTS: Final[dict[tuple[str, str], list[str]]] = {
    ("POST", "/v1/sessions"): [
        _format_request(
            "POST",
            "/v1/sessions",
            body='{"workflow": "checkout", "start": true, "actor": {"id": "ann", "kind": "human"}}',
        )
    ],
    ("GET", "/v1/sessions"): [_format_curl_command("/v1/sessions?workflow=checkout&since=30d&limit=5")],
    ("POST", "/v1/sessions:batch_stop"): [
        _RECORDING,
        'curl -sS -H "$auth" -H \'Content-Type: application/json\' -d "{\\"ids\\": [\\"$session\\"]}" '
        '"$RECORDER_URL/v1/sessions:batch_stop"',
    ],
    ("GET", "/v1/sessions/{session_id}"): [
        _NEW_SESSION,
        _format_curl_command(f"{_AT}?include=events,tags,frames_summary"),
    ],
    ("DELETE", "/v1/sessions/{session_id}"): [_NEW_SESSION, _format_request("DELETE", _AT)],
    ("POST", "/v1/sessions/{session_id}/start"): [_NEW_SESSION, _format_request("POST", f"{_AT}/start")],
    ("POST", "/v1/sessions/{session_id}/stop"): [_RECORDING, _format_request("POST", f"{_AT}/stop")],
    ("POST", "/v1/sessions/{session_id}/events"): _WITH_EVENTS,
    ("GET", "/v1/sessions/{session_id}/events"): [
        *_WITH_EVENTS,
        _format_curl_command(f"{_AT}/events?type=click&type=fill&from_t_ms=500"),
    ],
    ("GET", "/v1/sessions/{session_id}/events/stream"): [
        # The stream of a sealed session ends by itself; that of a recording one goes on.
        *_SEALED,
        _format_curl_command(f"{_AT}/events/stream?from=start", "--no-buffer"),
    ],
    ("POST", "/v1/sessions/{session_id}/frames"): [
        _RECORDING,
        _format_request("POST", f"{_AT}/frames", body=_FRAMES),
    ],
    ("GET", "/v1/sessions/{session_id}/frames"): [*_WITH_FRAME, _format_curl_command(f"{_AT}/frames")],
    ("GET", "/v1/sessions/{session_id}/frames/{frame_id}"): [
        *_WITH_FRAME,
        _format_curl_command(f"{_AT}/frames/$frame"),
    ],
    ("GET", "/v1/sessions/{session_id}/frames/{frame_id}/image"): [
        *_WITH_FRAME,
        _format_curl_command(f"{_AT}/frames/$frame/image", "-o frame.png"),
    ],
    ("GET", "/v1/sessions/{session_id}/frames/{frame_id}/dom"): [
        *_WITH_SNAPSHOT,
        _format_curl_command(f"{_AT}/frames/$frame/dom", "-o snapshot.json"),
        _format_curl_command(f"{_AT}/frames/$frame/dom", "-H 'Accept: text/html'"),
    ],
    ("POST", "/v1/sessions/{session_id}/tags"): [
        _RECORDING,
        _format_request("POST", f"{_AT}/tags", body='{"name": "success", "data": {"order": 4711}}'),
    ],
    ("GET", "/v1/sessions/{session_id}/tags"): [_NEW_SESSION, _format_curl_command(f"{_AT}/tags")],
    ("GET", "/v1/memory/paths"): [
        _format_curl_command("/v1/memory/paths?workflow=checkout&min_frequency=0.05")
    ],
    ("GET", "/v1/memory/outliers"): [
        _format_curl_command("/v1/memory/outliers?workflow=checkout&threshold=0.1")
    ],
    ("POST", "/v1/memory/similar"): [
        *_SEALED,
        "curl -sS -H \"$auth\" -H 'Content-Type: application/json' "
        '-d "{\\"session_id\\": \\"$session\\", \\"limit\\": 5}" "$RECORDER_URL/v1/memory/similar"',
    ],
    ("GET", "/v1/memory/recovery_points"): [
        _format_curl_command("/v1/memory/recovery_points?workflow=checkout")
    ],
    ("GET", "/v1/memory/graph"): [_format_curl_command("/v1/memory/graph?workflow=checkout&format=mermaid")],
    ("GET", "/v1/memory/diff"): [
        _format_curl_command("/v1/memory/diff?workflow=checkout&since=7d&against_since=14d&against_until=7d")
    ],
    ("POST", "/v1/exports"): [_format_request("POST", "/v1/exports", body=_EXPORT_BODY)],
    ("GET", "/v1/exports"): [_format_curl_command("/v1/exports?workflow=checkout&status=completed")],
    ("GET", "/v1/exports/{export_id}"): [*_QUEUED, _format_curl_command("/v1/exports/$export")],
    ("POST", "/v1/exports/{export_id}/cancel"): [
        *_QUEUED,
        _format_request("POST", "/v1/exports/$export/cancel"),
    ],
    ("GET", "/v1/exports/{export_id}/diff"): [
        *_COMPLETED,
        _format_curl_command("/v1/exports/$export/diff?against=$export"),
    ],
    ("GET", "/v1/exports/{export_id}/manifest"): [
        *_COMPLETED,
        _format_curl_command("/v1/exports/$export/manifest"),
    ],
    ("GET", "/v1/exports/{export_id}/files/{path}"): [
        *_COMPLETED,
        f"manifest=$({_format_curl_command('/v1/exports/$export/manifest')})",
        'file=$(echo "$manifest" | grep -o \'data/[^"?]*\' | head -n 1)',
        _format_curl_command("/v1/exports/$export/files/$file", "-o shard"),
    ],
    ("POST", "/v1/replays"): [*_SEALED, _DRY_REPLAY],
    ("GET", "/v1/replays"): [_format_curl_command("/v1/replays?workflow=checkout&status=diverged")],
    ("GET", "/v1/replays/{replay_id}"): [*_REPLAYED, _format_curl_command("/v1/replays/$replay")],
    ("GET", "/v1/replays/{replay_id}/steps"): [*_REPLAYED, _format_curl_command("/v1/replays/$replay/steps")],
    ("POST", "/v1/replays/{replay_id}/cancel"): [
        *_REPLAYED,
        _format_request("POST", "/v1/replays/$replay/cancel"),
    ],
    ("POST", "/v1/replays/{replay_id}/decision"): [
        "replay="
        + _format_shell_id_capture(
            "rpl", _format_curl_command("/v1/replays?status=running&workflow=checkout")
        ),
        _format_request("POST", "/v1/replays/$replay/decision", body='{"step": 1, "action": "act"}'),
    ],
    ("POST", "/v1/recoveries"): [*_FAILED, _DRY_RECOVERY],
    ("GET", "/v1/recoveries"): [_format_curl_command("/v1/recoveries?workflow=checkout&status=succeeded")],
    ("GET", "/v1/recoveries/{recovery_id}"): [*_RECOVERED, _format_curl_command("/v1/recoveries/$recovery")],
    ("POST", "/v1/recoveries/{recovery_id}/cancel"): [
        *_RECOVERED,
        _format_request("POST", "/v1/recoveries/$recovery/cancel"),
    ],
    ("GET", "/v1/workflows"): [_format_curl_command("/v1/workflows")],
    ("GET", "/v1/workflows/{workflow}"): [_NEW_SESSION, _format_curl_command("/v1/workflows/checkout")],
    ("PATCH", "/v1/workflows/{workflow}"): [
        _format_request("PATCH", "/v1/workflows/checkout", body='{"tags": ["shop"], "memory_graph": true}')
    ],
    ("POST", "/v1/webhooks"): [_format_request("POST", "/v1/webhooks", body=_WEBHOOK_BODY)],
    ("GET", "/v1/webhooks"): [_format_curl_command("/v1/webhooks")],
    ("GET", "/v1/webhooks/{webhook_id}"): [*_WEBHOOK, _format_curl_command(_HOOK)],
    ("PATCH", "/v1/webhooks/{webhook_id}"): [
        *_WEBHOOK,
        _format_request(
            "PATCH", _HOOK, body='{"events": ["session.sealed", "session.error"], "description": "orders"}'
        ),
    ],
    ("DELETE", "/v1/webhooks/{webhook_id}"): [*_WEBHOOK, _format_request("DELETE", _HOOK)],
    ("POST", "/v1/webhooks/{webhook_id}/secret"): [*_WEBHOOK, _format_request("POST", f"{_HOOK}/secret")],
    ("POST", "/v1/webhooks/{webhook_id}/test"): [*_WEBHOOK, _format_request("POST", f"{_HOOK}/test")],
    ("GET", "/v1/webhooks/{webhook_id}/deliveries"): [*_WEBHOOK, _format_curl_command(f"{_HOOK}/deliveries")],
    ("GET", "/v1/webhooks/{webhook_id}/deliveries/{delivery_id}"): [
        *_DELIVERY,
        _format_curl_command(f"{_HOOK}/deliveries/$delivery"),
    ],
    ("POST", "/v1/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver"): [
        *_DELIVERY,
        _format_request("POST", f"{_HOOK}/deliveries/$delivery/redeliver"),
    ],
    ("GET", "/v1/event_types"): [_format_curl_command("/v1/event_types")],
    ("POST", "/v1/keys"): [_format_request("POST", "/v1/keys", body=_KEY_BODY)],
    ("GET", "/v1/keys"): [_format_curl_command("/v1/keys")],
    ("DELETE", "/v1/keys/{key_id}"): [
        f"key={_format_shell_id_capture('key', _format_request('POST', '/v1/keys', body=_KEY_BODY))}",
        _format_request("DELETE", "/v1/keys/$key"),
    ],
    ("GET", "/v1/workspaces/current"): [_format_curl_command("/v1/workspaces/current")],
    ("PATCH", "/v1/workspaces/current"): [
        _format_request("PATCH", "/v1/workspaces/current", body='{"retention": {"frames_days": 90}}')
    ],
    ("GET", "/v1/limits"): [_format_curl_command("/v1/limits")],
    ("GET", "/v1/quota"): [_format_curl_command("/v1/quota")],
    ("GET", "/v1/audit"): [_format_curl_command("/v1/audit?since=1d&limit=5")],
    ("POST", "/v1/privacy/erasure"): [_format_request("POST", "/v1/privacy/erasure", body=_ERASURE_BODY)],
    ("GET", "/v1/privacy/erasure/{erasure_id}"): [
        "erasure="
        + _format_shell_id_capture("era", _format_request("POST", "/v1/privacy/erasure", body=_ERASURE_BODY)),
        _format_curl_command("/v1/privacy/erasure/$erasure"),
    ],
    ("GET", "/healthz"): ['curl -sS "$RECORDER_URL/healthz"'],
    ("GET", "/readyz"): ['curl -sS "$RECORDER_URL/readyz"'],
    ("GET", "/metrics"): ['curl -sS "$RECORDER_URL/metrics"'],
    ("GET", "/"): ['curl -sS "$RECORDER_URL/"'],
}

#: Bodies of requests, for pages that fill them in.
_BODIES: Final[dict[tuple[str, str], str]] = {
    ("POST", "/v1/sessions"): _STARTED,
    ("POST", "/v1/sessions/{session_id}/events"): _EVENTS,
    ("POST", "/v1/sessions/{session_id}/frames"): _FRAMES,
    ("POST", "/v1/sessions/{session_id}/tags"): '{"name": "success", "data": {"order": 4711}}',
    ("POST", "/v1/exports"): _EXPORT_BODY,
    ("PATCH", "/v1/workflows/{workflow}"): '{"tags": ["shop"], "memory_graph": true}',
    ("POST", "/v1/webhooks"): _WEBHOOK_BODY,
    ("PATCH", "/v1/webhooks/{webhook_id}"): '{"events": ["session.sealed", "session.error"]}',
    ("POST", "/v1/keys"): _KEY_BODY,
    ("PATCH", "/v1/workspaces/current"): '{"retention": {"frames_days": 90}}',
    ("POST", "/v1/privacy/erasure"): _ERASURE_BODY,
}


def example_script_of(method: str, path: str) -> str | None:
    """Return the example of an operation as a shell script; None where there is none."""
    commands = _SCRIPTS.get((method.upper(), path))
    if commands is None:
        return None
    needs_key = any("$auth" in command for command in commands)
    return "\n".join([*([_AUTH] if needs_key else []), *commands])


def add_openapi_examples(document: dict[str, Any]) -> None:
    """Add the introduction, and to each operation its example."""
    document["info"]["description"] = INTRODUCTION.strip()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            script = example_script_of(method, path)
            if script is None:
                continue
            operation["description"] = f"{operation['description']}\n\n```sh\n{script}\n```"
            operation["x-codeSamples"] = [{"lang": "Shell", "source": script}]
            body = _BODIES.get((method.upper(), path))
            if body is not None:
                operation["requestBody"]["content"]["application/json"]["example"] = json.loads(body)

"""Log of a served API: JSON lines alone, whatever a client sends. Hostile cases 55 and 56."""

import json
import socket
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from benchmarks.seeds import new_key, new_settings
from recorder.supervisor import run_service

# The server takes the first as a header and refuses the second by itself.
PASSING, REFUSED = b"\x9b2J\x9d0;owned\ttab", b"\x1b[31mred"


def send_raw(url: str, head: bytes) -> bytes:
    """Return the answer to a request that no client library would send."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
        connection.sendall(head + b"\r\nConnection: close\r\n\r\n")
        received = b""
        while chunk := connection.recv(65_536):
            received += chunk
    return received


def test_the_log_is_json_lines_without_keys_or_control_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECORDER_LOG_LEVEL", "debug")
    settings = new_settings(tmp_path)
    key = new_key(settings)
    with run_service(settings) as service:
        bearer = {"Authorization": f"Bearer {key}", "X-Request-Id": "mine-1"}
        answer = httpx.get(f"{service.base_url}/v1/sessions", headers=bearer)
        in_query = httpx.get(f"{service.base_url}/v1/sessions?key={key}&next=%0d%0aforged%1b[31m")
        for words in (PASSING, REFUSED):
            head = b"GET /v1/sessions HTTP/1.1\r\nHost: localhost\r\nUser-Agent: %b\r\nX-Request-Id: %b"
            send_raw(service.base_url, head % (words, words))
    text = (settings.data_dir / "logs" / "api.log").read_bytes().decode()
    lines = [json.loads(line) for line in text.splitlines()]
    assert (answer.status_code, answer.headers["x-client-request-id"]) == (200, "mine-1")
    assert in_query.status_code == 401
    assert key not in text and text.isascii() and "\x1b" not in text
    requests = [line for line in lines if line["logger"] == "recorder.access"]
    ours = {line["request_id"]: line for line in requests}
    assert ours[answer.headers["x-request-id"]]["route"] == "/v1/sessions"
    assert ours[in_query.headers["x-request-id"]]["status"] == 401
    assert [line["status"] for line in requests if line["route"] == "/v1/sessions"] == [200, 401, 401]
    assert "Invalid HTTP request received." in [line["event"] for line in lines]

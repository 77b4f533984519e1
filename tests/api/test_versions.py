"""`Service-Version` on requests, and routes that end: announced in one place, shown everywhere. Spec §9."""

from datetime import UTC, date, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest

from api.gate import versions
from api.gate.endpoints import ENDPOINTS
from api.gate.versions import RELEASES, Deprecation
from recorder import __version__
from tests.support.factories import Caller, assert_problem, running_app
from tests.support.hostile_cases import CANARY, Refused, judge

ENDING = Deprecation(date(2026, 5, 1), date(2026, 9, 1), "https://example.com/changes#tags")
FILES = "/v1/exports/{export_id}/files/{path:path}"


@pytest.mark.parametrize("release", RELEASES)
def test_every_release_of_the_history_is_accepted(caller: Caller, release: str) -> None:
    assert caller.get("/v1/sessions", **{"Service-Version": release}).status_code == 200


def test_the_release_that_answers_is_one_of_them() -> None:
    assert __version__ == RELEASES[-1]


@pytest.mark.parametrize(
    "release",
    ["2026.5", "2026.5.1", "2024.1.0", "latest", "", " ", "2026.05.0", "v2026.5.0", CANARY, "٢٠٢٦.5.0"],
)
def test_any_other_is_refused(caller: Caller, release: str) -> None:
    answer = caller.request("GET", "/v1/sessions", headers={"Service-Version": release.encode()})
    judge(answer, Refused(400, "unsupported_version"))


def test_two_releases_are_none(caller: Caller) -> None:
    headers = [
        ("Authorization", f"Bearer {caller.key.key}"),
        ("Service-Version", "2026.5.0"),
        ("Service-Version", "2026.4.1"),
    ]
    answer = caller.service.client.get("/v1/sessions", headers=headers)
    assert_problem(answer, 400, "unsupported_version")


def test_a_deprecated_route_says_so_in_every_answer(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(versions.DEPRECATIONS, ("GET", "/v1/sessions/{session_id}/tags"), ENDING)
    session_id = caller.make_session()
    for path, status in ((session_id, 200), ("ses_unknown", 404)):
        answer = caller.get(f"/v1/sessions/{path}/tags")
        assert answer.status_code == status
        assert answer.headers["deprecation"] == f"@{int(datetime(2026, 5, 1, tzinfo=UTC).timestamp())}"
        assert parsedate_to_datetime(answer.headers["sunset"]) == datetime(2026, 9, 1, tzinfo=UTC)
        assert answer.headers["sunset"].endswith(" GMT")
        assert answer.headers["link"].startswith(f'<{ENDING.link}>; rel="deprecation"')
    assert "deprecation" not in caller.post(f"/v1/sessions/{session_id}/tags", {"name": "seen"}).headers


@pytest.mark.parametrize("endpoint", [("GET", "/v1/sessions/{session_id}/tags"), ("GET", FILES)])
def test_openapi_shows_what_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endpoint: tuple[str, str]
) -> None:
    monkeypatch.setitem(versions.DEPRECATIONS, endpoint, ENDING)
    with running_app(tmp_path, f"sqlite:///{tmp_path / 'recorder.db'}") as service:
        paths = service.client.get("/openapi.json").json()["paths"]
    ending = [
        (method.upper(), path, operation["x-sunset"])
        for path, methods in paths.items()
        for method, operation in methods.items()
        if operation.get("deprecated")
    ]
    assert ending == [(endpoint[0], endpoint[1].replace(":path", ""), "2026-09-01")]


def test_what_ends_is_announced_ninety_days_ahead() -> None:
    with pytest.raises(ValueError, match="90 days"):
        Deprecation(date(2026, 5, 1), date(2026, 7, 29), "https://example.com/changes")
    assert Deprecation(date(2026, 5, 1), date(2026, 7, 30), "https://example.com/changes")


def test_what_ends_is_there() -> None:
    assert set(versions.DEPRECATIONS) <= {(endpoint.method, endpoint.path) for endpoint in ENDPOINTS}

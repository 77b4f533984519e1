"""Spec §8.1 and §8.3 against what `GET /v1/limits` answers; contract §7."""

from typing import Any

import pytest

from api.gate.endpoints import ENDPOINTS
from recorder import limits
from recorder.access.rate_tiers import TIERS
from recorder.setting_parsers import SessionSize
from tests.support.factories import Caller, Service, assert_problem
from tests.support.project_texts import PAGES, table

SESSION = "/v1/sessions/{session_id}"
#: The table of spec §8.1: surface, method, path, requests a key and a workspace, in how many seconds.
ROWS = [
    ("create_session", "POST", "/v1/sessions", 30, 200, 1),
    ("append_events", "POST", f"{SESSION}/events", 1_000, 5_000, 1),
    ("append_frames", "POST", f"{SESSION}/frames", 200, 1_000, 1),
    ("reads", "GET", "/v1/sessions", 200, 2_000, 1),
    ("reads", "GET", SESSION, 200, 2_000, 1),
    ("reads", "GET", f"{SESSION}/events", 200, 2_000, 1),
    ("reads", "GET", f"{SESSION}/frames", 200, 2_000, 1),
    ("reads", "GET", f"{SESSION}/frames/{{frame_id}}/image", 200, 2_000, 1),
    ("exports", "POST", "/v1/exports", 5, 30, 60),
    ("live_replays", "POST", "/v1/replays", 10, 50, 60),
    # Not in the specification's table; contract §1.
    ("other", "GET", "/v1/limits", 50, 500, 1),
    ("other", "POST", f"{SESSION}/tags", 50, 500, 1),
]


@pytest.fixture
def caller(service: Service) -> Caller:
    """Return a key of a new workspace as the specification describes it."""
    return service.make_caller(tier="default")


def read_limits(caller: Caller) -> dict[str, Any]:
    """Return the limits that the service shows."""
    answer = caller.get("/v1/limits")
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[1]} {row[2]}")
def test_spec_8_1(caller: Caller, row: tuple[str, str, str, int, int, int]) -> None:
    surface, method, path, key, workspace, window_s = row
    (entry,) = [
        rate_limit for rate_limit in read_limits(caller)["rate_limits"] if rate_limit["surface"] == surface
    ]
    assert {"method": method, "path": path} in entry["addresses"]
    factor = 2 if window_s == 1 else 1
    assert entry["per_key"] == {"limit": key, "window_s": window_s, "burst": factor * key}
    assert entry["per_workspace"] == {"limit": workspace, "window_s": window_s, "burst": factor * workspace}


def test_the_documentation_tells_the_same_rates() -> None:
    units = {"s": 1, "min": 60}
    for surface, _, key, workspace in table(PAGES["docs/limits.md"], "## Rates\n"):
        rates = TIERS["default"].rates[surface.strip("`")]  # type: ignore[index]
        for told_rate, rate in ((key, rates.per_key), (workspace, rates.per_workspace)):
            limit, _, unit = told_rate.replace(",", "").partition(" / ")
            assert (int(limit), units[unit]) == (rate.limit, rate.window_s), surface


def test_spec_8_1_streams_and_batches(caller: Caller) -> None:
    shown = read_limits(caller)
    assert shown["concurrent_streams"] == {"per_key": 50, "per_workspace": 500}
    assert shown["concurrent_requests"] == {"per_key": 32, "per_workspace": 128}
    assert shown["body_bytes"] == {
        "per_key": {"limit": 50_000_000, "window_s": 1, "burst": 100_000_000},
        "per_workspace": {"limit": 100_000_000, "window_s": 1, "burst": 200_000_000},
    }
    assert shown["body_bytes"]["per_key"]["burst"] >= max(endpoint.body_bytes for endpoint in ENDPOINTS)
    assert shown["batch"] == {"events": 100, "frames": 50, "batch_stop_ids": limits.BATCH_STOP_IDS}


def test_spec_8_3(caller: Caller) -> None:
    shown = read_limits(caller)
    assert shown["list"] == {"default": 100, "max": 500}
    assert shown["bytes"]["metadata"] == 16 * 1024
    assert shown["bytes"]["frame"] == limits.FRAME_BYTES


def test_contract_7_the_answer_has_these_members(caller: Caller) -> None:
    shown = read_limits(caller)
    assert set(shown) >= {"tier", "rate_limits", "concurrent_streams", "batch", "bytes", "list"}
    assert set(shown) >= {"body_bytes", "concurrent_requests", "whole_session_reads"}
    assert 0 < shown["open_connections"]["per_address"] <= limits.CONNECTIONS_PER_ADDRESS
    assert shown["session"] == {**SessionSize()._asdict(), "tags": 10_000}
    assert shown["workspace"] == {
        "workflows": 10_000,
        "open_exports": 1_000,
        "open_replays": 10_000,
        "open_erasures": 1_000,
        "keys": 1_000,
        "masking_replacements": 10_000,
    }
    for entry in shown["rate_limits"]:
        assert set(entry) == {"surface", "method", "path", "addresses", "per_key", "per_workspace"}
        assert entry["addresses"][0] == {"method": entry["method"], "path": entry["path"]}


def test_every_address_stands_on_one_surface(caller: Caller) -> None:
    entries = read_limits(caller)["rate_limits"]
    addresses = [(address["method"], address["path"]) for entry in entries for address in entry["addresses"]]
    # Replays and recoveries draw on two: live ones on their own.
    addresses.remove(("POST", "/v1/replays"))
    addresses.remove(("POST", "/v1/recoveries"))
    assert len(addresses) == len(set(addresses)) == len(ENDPOINTS)
    assert len({entry["surface"] for entry in entries}) == len(entries)


@pytest.mark.parametrize(
    ("tier", "key", "streams"), [("trial", 30, 50), ("team", 60, 100), ("scale", 300, 500)]
)
def test_limits_scale_with_the_tier(service: Service, tier: str, key: int, streams: int) -> None:
    shown = read_limits(service.make_caller(tier=tier))
    assert (shown["tier"], shown["concurrent_streams"]["per_key"]) == (tier, streams)
    assert shown["rate_limits"][0]["per_key"]["limit"] == key


def test_a_key_that_only_reads_may_read_its_limits(service: Service) -> None:
    assert service.make_caller(scope="read", tier="default").get("/v1/limits").status_code == 200


def test_limits_take_no_query(caller: Caller) -> None:
    assert_problem(caller.get("/v1/limits?tier=scale"), 422, "validation_failed")

"""Errors: each has a status, a code of the contract and words that say what to do. Contract §1 (errors)."""

import importlib
import importlib.util
import pkgutil
from collections.abc import Iterator

import pytest

import recorder
from api.errors import http_status_of
from recorder import errors
from recorder.errors import Problem, RecorderError
from tests.support.databases import part_is_missing

#: Codes of errors that end a run or a command and are never answered over HTTP.
INTERNAL = {
    "lake_ahead",
    "lease_lost",
    "export_busy",
    "replayability_missing",
    "destination_conflict",
    "rows_missing",
    "sample_too_large",
    "samples_scattered",
    "attempts_exhausted",
    "cancelled",
    "files_missing",
    "disk_full",
    "manifest_unreadable",
    "unknown_region",
    "worker_lost",
    "worker_release",
    "destination_not_shared",
    "address_expired",
    "dataset_changed",
    "file_damaged",
    "file_gone",
    "library_missing",
    "manifest_refused",
    "not_in_dataset",
    "state_refused",
    "unlisted_files",
    "wrong_region",
    "unknown_schema",
    "slots_differ",
    "secret_differs",
    "secret_missing",
    "store_content_missing",
    "restore_busy",
    "archive_not_apart",
    "items_failed",
    "lanes_open",
    "audit_does_not_fit",
    "backup_busy",
    "damaged_backup",
    "no_secret",
    "not_empty",
    "other_deployment",
    "other_engine",
    "parts_removed",
    "wrong_secret",
}
#: Contract §1.
CODES = {
    400: "invalid_host invalid_request invalid_json invalid_cursor invalid_event_id unsupported_version",
    401: "missing_authorization invalid_api_key",
    403: "insufficient_scope workspace_disabled invalid_signature url_expired",
    404: "not_found",
    406: "not_acceptable",
    408: "request_timeout",
    409: "invalid_state idempotency_in_progress event_conflict session_not_sealed",
    410: "resume_window_expired",
    413: "payload_too_large",
    415: "unsupported_media_type",
    416: "range_not_satisfiable",
    422: "validation_failed metadata_too_large batch_too_large empty_batch invalid_time invalid_range "
    "idempotency_key_reused invalid_url url_not_allowed invalid_image image_too_large invalid_destination "
    "destination_not_allowed too_many_ids limit_reached",
    429: "rate_limited too_many_streams quota_exceeded",
    500: "internal_error",
    503: "unavailable",
}


#: Modules that need a library which is no part of the service, and how to get it.
OPTIONAL = {"recorder.loading.torch_stream": ("torch", "torch is not installed (pip install torch==2.13.0).")}


def every_error() -> Iterator[type[RecorderError]]:
    """Return all error classes of the library, in any module."""
    for module in pkgutil.walk_packages(recorder.__path__, "recorder."):
        is_left_out = ".migrations" in module.name or ".importers" in module.name
        if not is_left_out and _can_be_imported(module.name):
            importlib.import_module(module.name)
    waiting: list[type[RecorderError]] = [RecorderError]
    while waiting:
        kind = waiting.pop()
        yield kind
        waiting.extend(kind.__subclasses__())


def _can_be_imported(module: str) -> bool:
    return module not in OPTIONAL or importlib.util.find_spec(OPTIONAL[module][0]) is not None


@pytest.mark.parametrize("module", OPTIONAL)
def test_the_errors_of_a_module_with_an_optional_library_are_checked_too(module: str) -> None:
    if not _can_be_imported(module):
        part_is_missing(OPTIONAL[module][1])
    assert importlib.import_module(module).__doc__


@pytest.mark.parametrize("kind", sorted(set(every_error()), key=lambda kind: kind.__name__))
def test_every_error_has_a_status_and_a_code_of_the_contract(kind: type[RecorderError]) -> None:
    status = http_status_of(kind.__new__(kind))
    assert kind.code in {*CODES[status].split(), *INTERNAL}, f"{kind.__name__} answers {status} {kind.code}"
    assert kind.title and kind.__doc__


def test_only_what_nobody_foresaw_is_an_internal_error() -> None:
    answered = {kind for kind in every_error() if kind.code not in INTERNAL}
    assert {kind for kind in answered if http_status_of(kind.__new__(kind)) == 500} == {RecorderError}


def test_problems_stand_beside_the_message() -> None:
    error = errors.ValidationFailed([Problem("body", "/a", "missing", "Send it.")])
    assert error.extra == {
        "errors": [{"in": "body", "pointer": "/a", "code": "missing", "message": "Send it."}]
    }
    assert str(error) == "1 problem: /a."


@pytest.mark.parametrize(
    ("error", "extra"),
    [
        (errors.NotFound("session"), {"resource": "session"}),
        (errors.InvalidState("sealed", needed="session must record"), {"current_status": "sealed"}),
        (errors.InvalidApiKey(), {}),
    ],
)
def test_an_error_carries_what_the_contract_adds(error: RecorderError, extra: dict[str, str]) -> None:
    assert error.extra == extra


@pytest.mark.parametrize(
    ("parts", "pointer"),
    [((), ""), (("events", 3, "t_ms"), "/events/3/t_ms"), (("a/b", "~"), "/a~1b/~0"), (("",), "/")],
)
def test_a_pointer_escapes_what_it_must(parts: tuple[str | int, ...], pointer: str) -> None:
    assert errors.json_pointer(*parts) == pointer


def test_a_missing_scope_names_the_keys_that_can_create_one_with_it() -> None:
    assert str(errors.InsufficientScope("write")).endswith("; an admin key can create one.")
    assert str(errors.InsufficientScope("replay:live")).endswith(
        "; an admin key that also has replay:live, or the operator (recorder keys create), can create one."
    )


def test_a_session_in_the_wrong_status_says_what_to_do() -> None:
    start = "Start it with POST /v1/sessions/{session_id}/start"
    for purpose in ("to take events and frames", "to be stopped"):
        created = str(errors.SessionNotRecording("created", purpose=purpose))
        assert start in created and '"start": true' in created
    assert "new session" in str(errors.SessionNotRecording("sealed", purpose="to take events and frames"))
    assert start in str(errors.SessionNotSealed("created"))
    assert "Stop it" in str(errors.SessionNotSealed("recording"))
    stopped = str(errors.SessionNotSealed("stopped"))
    assert "Wait until it is sealed" in stopped and "Stop it" not in stopped

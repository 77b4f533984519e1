"""Sentences of 422 answers: what a member takes, in words of JSON. Contract §1 (errors)."""

import json
import re
from typing import Any

import pytest

from recorder import limits
from recorder.models.text_patterns import TEXT_FORMS
from recorder.models.workspace import SCOPE_PATTERN
from tests.support.factories import Caller, Service, assert_problem

WORKFLOW = "Takes 2 to 64 characters: lower-case letters, digits and underscores, as in approve_invoice."


@pytest.mark.parametrize(
    ("path", "body", "pointer", "message"),
    [
        ("/v1/sessions", {"workflow": "Approve Invoice"}, "/workflow", WORKFLOW),
        ("/v1/sessions", {}, "/workflow", "This member is required."),
        (
            "/v1/replays",
            {"session_id": "ses_x"},
            "/sandbox",
            "This member is required: 'dry' or 'live'.",
        ),
        (
            "/v1/exports",
            {"workflow": "checkout", "format": "parquet", "destination": {"bucket": "my-data"}},
            "/destination/kind",
            "This member is required: 'signed_url', 'local', 's3', 'gcs' or 'azure_blob'.",
        ),
        (
            "/v1/exports",
            {"workflow": "checkout", "format": "parquet", "destination": {"kind": "s3", "bucket": "My_Data"}},
            "/destination/bucket",
            "Takes 3 to 63 characters: lower-case letters, digits, dots and hyphens, a letter or digit "
            "first and last, as in my-datasets.",
        ),
        ("/v1/sessions", {"workflow": "checkout", "actor": "ada"}, "/actor", "Takes an object."),
        ("/v1/sessions", {"workflow": "checkout", "start": "yes"}, "/start", "Takes true or false."),
        ("/v1/keys", {"label": "", "scope": "read"}, "/label", "Takes at least 1 character."),
        (
            "/v1/replays",
            {"session_id": "ses_x", "sandbox": "wet"},
            "/sandbox",
            "Takes 'dry' or 'live'.",
        ),
        (
            "/v1/replays",
            {"session_id": "ses_x", "sandbox": "dry", "policy": {"min_support": 2}},
            "/policy/min_support",
            "Takes a number of 1 or less.",
        ),
        (
            "/v1/replays",
            {"session_id": "ses_x", "sandbox": "dry", "policy": {"allow_methods": {"erp.example": ["GTE"]}}},
            "/policy/allow_methods/erp.example/0",
            "Takes 'GET', 'HEAD', 'OPTIONS', 'POST', 'PUT', 'PATCH' or 'DELETE'.",
        ),
    ],
)
def test_a_refused_value_gets_a_sentence_on_what_its_member_takes(
    caller: Caller, path: str, body: dict[str, Any], pointer: str, message: str
) -> None:
    problem = assert_problem(caller.post(path, body), 422, "validation_failed")
    assert [(error["pointer"], error["message"]) for error in problem["errors"]] == [(pointer, message)]


def test_every_pattern_has_words(service: Service) -> None:
    patterns = set(re.findall(r'"pattern": ?("(?:[^"\\]|\\.)*")', json.dumps(service.app.openapi())))
    # Idempotency keys, ids of clients and scopes are checked, with sentences of their own, elsewhere.
    elsewhere = {
        limits.IDEMPOTENCY_KEY_PATTERN,
        limits.CLIENT_EVENT_ID_PATTERN,
        limits.CLIENT_FRAME_ID_PATTERN,
    }
    headers = {"^req_[0-9a-z]{26}$", r"^bytes (\d+-\d+|\*)/\d+$"}
    named = {json.loads(pattern) for pattern in patterns} - elsewhere - headers - {SCOPE_PATTERN}
    assert len(named) > 8 and named - TEXT_FORMS.keys() == set()

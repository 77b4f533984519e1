"""Signatures of deliveries, as a receiver checks them. Spec §6.4, contract §6."""

import hashlib
import hmac
import json
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

import recorder
from recorder.webhooks.signing import service_signature, signature_headers, verify_signature

SECRET = "whsec_" + "A" * 43 + "="
OTHER = "whsec_" + "B" * 43 + "="
BODY = '{"id":"evt_1","data":{"name":"Zoë"}}'.encode()
NOW = 1_795_000_000
SIGNED = signature_headers("evt_1", BODY, [SECRET], NOW)["Service-Signature"]


def test_the_signature_is_what_the_specification_says() -> None:
    digest = hmac.new(SECRET.encode(), f"{NOW}.".encode() + BODY, hashlib.sha256).hexdigest()
    assert f"t={NOW},v1={digest}" == SIGNED


def test_during_a_rotation_both_secrets_sign_the_newest_first() -> None:
    headers = signature_headers("evt_1", BODY, [SECRET, OTHER], NOW)
    ours = [service_signature(BODY, secret, NOW) for secret in (SECRET, OTHER)]
    assert headers["Service-Signature"] == f"t={NOW},v1={ours[0]},v1={ours[1]}"
    assert all(
        verify_signature(BODY, headers["Service-Signature"], item, now=NOW) for item in (SECRET, OTHER)
    )


HEADERS = {
    "as sent": (SIGNED, True),
    "spaces after commas": (SIGNED.replace(",", ", "), True),
    "one of several fits": (SIGNED.replace("v1=", "v1=00,v1="), True),
    "unknown members": (f"{SIGNED},v2=abc,kid=1", True),
    "empty": ("", False),
    "no time": (SIGNED.partition(",")[2], False),
    "no signature": (f"t={NOW}", False),
    "empty signature": (f"t={NOW},v1=", False),
    "two times": (f"t={NOW},{SIGNED}", False),
    "another time": (SIGNED.replace(f"t={NOW}", f"t={NOW + 1}"), False),
    "a negative time": (SIGNED.replace("t=", "t=-"), False),
    "an endless time": (f"t={'9' * 5_000},v1=00", False),
    "a time in other digits": (SIGNED.replace("t=1", "t=١"), False),
    "upper case": (SIGNED.upper(), False),
    "cut short": (SIGNED[:-1], False),
    "beyond ASCII": (f"{SIGNED[:-1]}é", False),
    "of another scheme": (SIGNED.replace("v1=", "v0="), False),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_is_read_strictly(name: str) -> None:
    header, expected = HEADERS[name]
    assert verify_signature(BODY, header, SECRET, now=NOW) is expected


@pytest.mark.parametrize(
    ("secret", "body"), [(OTHER, BODY), (SECRET, BODY + b" "), (SECRET, b""), ("", BODY)]
)
def test_another_secret_or_body_does_not_fit(secret: str, body: bytes) -> None:
    assert not verify_signature(body, SIGNED, secret, now=NOW)


@pytest.mark.parametrize(
    ("seconds", "tolerance_s", "expected"),
    [
        (0, 300, True),
        (300, 300, True),
        (-300, 300, True),
        (301, 300, False),
        (-301, 300, False),
        (1, 0, False),
    ],
)
def test_an_old_signature_is_refused(seconds: int, tolerance_s: int, expected: bool) -> None:
    assert verify_signature(BODY, SIGNED, SECRET, tolerance_s, now=NOW + seconds) is expected


def test_the_present_is_the_default() -> None:
    fresh = signature_headers("evt_1", BODY, [SECRET], int(datetime.now(UTC).timestamp()))  # noqa: TID251
    assert verify_signature(BODY, fresh["Service-Signature"], SECRET)
    assert not verify_signature(BODY, SIGNED, SECRET)


def test_a_library_of_standard_webhooks_takes_the_other_headers() -> None:
    moment = int(datetime.now(UTC).timestamp())  # noqa: TID251
    headers = signature_headers("evt_1", BODY, [OTHER, SECRET], moment)
    assert Webhook(SECRET).verify(BODY, headers) == json.loads(BODY)
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(BODY + b" ", headers)


def test_a_receiver_needs_nothing_but_the_standard_library() -> None:
    program = "import recorder, sys; recorder.verify_signature; print(*sys.modules, sep='\\n')"
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    loaded = {name.partition(".")[0] for name in output.split()} - set(sys.stdlib_module_names)
    assert {name for name in loaded if not name.startswith("_")} <= {"recorder", "sitecustomize"}
    assert recorder.verify_signature is verify_signature

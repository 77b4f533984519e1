"""Rights that the service uses: assumed roles with their external id, impersonated accounts. Spec §4.3."""

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from recorder.errors import IdentityMissing, InvalidDestination, Unavailable
from recorder.exports.destinations.gcs import load_gcs_credentials
from recorder.exports.runner.run import run_export
from recorder.ids import new_id
from tests.exports.destinations.test_stores import require_right_objects
from tests.support.aws_server import ANYBODY, BUSY
from tests.support.export_runs import ask
from tests.support.object_stores import EmulatedS3
from tests.support.sealed_sessions import WORKSPACE, Recording, make_runtime, seal

_ROLE = "arn:aws:iam::123456789012:role/"


def test_an_export_is_written_with_the_customers_role_alone(s3: EmulatedS3, tmp_path: Path) -> None:
    runtime = make_runtime(tmp_path, **s3.chosen(is_listed=False))
    seal(runtime, [Recording()])
    wanted = s3.destination("by-role", role_arn=_ROLE + WORKSPACE, region="eu-west-1")
    row = run_export(runtime, ask(runtime, destination=wanted).id, owner="test")
    assert row.status == "completed", row.error
    noted = s3.requests()
    require_right_objects(s3, f"by-role/{row.id}")
    requests = [request for request in noted if request.get("RoleSessionName") == f"recorder-{row.id}"]
    ours = [request for request in requests if request["ExternalId"] == WORKSPACE]
    assert ours and all(request["RoleArn"] == _ROLE + WORKSPACE for request in requests)
    # At the request and at the run, once with a stranger's id, which was refused.
    assert len(requests) == len(ours) + 2
    signers = {request["signed_by"] for request in noted if row.id in request["request"]}
    assert signers and all(signer.startswith("ASIA") for signer in signers)


@pytest.mark.parametrize(
    ("role", "says"),
    [(ANYBODY, "any external id"), (new_id("wsp"), "cannot be assumed")],
    ids=["everybody", "somebody else"],
)
def test_a_role_that_trusts_everybody_or_somebody_else_is_refused(
    s3: EmulatedS3, tmp_path: Path, role: str, says: str
) -> None:
    runtime = make_runtime(tmp_path, **s3.chosen(is_listed=False))
    seal(runtime, [Recording()])
    with pytest.raises(InvalidDestination, match=says) as refused:
        ask(runtime, destination=s3.destination("refused", role_arn=_ROLE + role))
    assert refused.value.extra["errors"][0]["pointer"] == "/destination/role_arn"
    assert s3.objects("refused") == {}


def test_a_role_of_which_sts_does_not_say_whom_it_trusts_is_not_taken(s3: EmulatedS3, tmp_path: Path) -> None:
    runtime = make_runtime(tmp_path, **s3.chosen(is_listed=False))
    seal(runtime, [Recording()])
    with pytest.raises(Unavailable):
        ask(runtime, destination=s3.destination("busy", role_arn=f"{_ROLE}{BUSY}{WORKSPACE}"))
    assert s3.objects("busy") == {}


@pytest.mark.parametrize("members", [{}, {"role_arn": _ROLE + WORKSPACE}], ids=["bucket", "role"])
def test_a_service_without_credentials_says_so(
    s3: EmulatedS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, members: dict[str, str]
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "nothing"))
    runtime = make_runtime(tmp_path, **s3.chosen(is_listed=not members))
    seal(runtime, [Recording()])
    # Clients are kept by their region; no other test uses this one.
    wanted = s3.destination("nobody", region="eu-north-1", **members)
    with pytest.raises(IdentityMissing, match="no identity of its own for AWS") as raised:
        ask(runtime, destination=wanted)
    assert raised.value.retry_after_s == 3_600  # clients would repeat the request in vain before


def test_nothing_that_is_kept_or_sent_to_workers_holds_credentials(s3: EmulatedS3, tmp_path: Path) -> None:
    runtime = make_runtime(tmp_path, **s3.chosen(is_listed=False))
    seal(runtime, [Recording()])
    row = ask(runtime, destination=s3.destination("kept", role_arn=_ROLE + WORKSPACE))
    assert set(row.destination) == {"kind", "bucket", "prefix", "role_arn"}
    assert s3.url not in json.dumps(row.destination)


def test_a_service_account_is_acted_as_and_not_merely_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    credentials = {
        "type": "service_account",
        "client_email": "service@ours.iam.gserviceaccount.com",
        "private_key": key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode(),
        "token_uri": "http://127.0.0.1:9/token",
        "project_id": "ours",
    }
    (tmp_path / "own.json").write_text(json.dumps(credentials))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "own.json"))
    account = "writer@theirs.iam.gserviceaccount.com"
    requests: list[tuple[str, Any]] = []
    load_gcs_credentials(account).refresh(_answering(requests))
    assert f"/serviceAccounts/{account}:generateAccessToken" in requests[-1][0]
    assert requests[-1][1]["scope"] == ["https://www.googleapis.com/auth/devstorage.read_write"]


def _answering(requests: list[tuple[str, Any]]) -> Any:
    """Return a transport that answers as token services do."""

    class _Answer:
        status = 200

        def __init__(self, body: dict[str, Any]) -> None:
            self.headers: dict[str, str] = {}
            self.data = json.dumps(body).encode()

    def _send(url: str, *, body: bytes | None = None, **_: Any) -> _Answer:
        is_impersonating = "generateAccessToken" in url
        requests.append((url, json.loads(body or b"{}") if is_impersonating else None))
        if is_impersonating:
            return _Answer({"accessToken": "theirs", "expireTime": "2999-01-01T00:00:00Z"})
        return _Answer({"access_token": "ours", "expires_in": 3600})

    return _send

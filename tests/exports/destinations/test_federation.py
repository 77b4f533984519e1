"""Identity of a workload: tokens in a file, exchanged at endpoints on loopback and renewed. Spec §4.3."""

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from recorder.errors import Unavailable
from recorder.exports.destinations import aws, gcs
from recorder.exports.runner.run import run_export
from tests.exports.destinations.conftest import Opened
from tests.exports.destinations.test_stores import require_right_objects
from tests.support.aws_server import AUDIENCE, make_token
from tests.support.export_runs import ask
from tests.support.object_stores import EmulatedS3
from tests.support.sealed_sessions import WORKSPACE, Recording, make_runtime, seal
from tests.support.token_service import POOL, TokenService, running_token_service

_ROLE = "arn:aws:iam::123456789012:role/"
#: The role of the service itself.
_OWN_ROLE = f"{_ROLE}recorder"


Write = Callable[[str], None]


def writer_of(file: Path) -> Write:
    """Return a function that replaces the token of a file, as a platform does."""

    def write(token: str) -> None:
        written = file.with_suffix(".new")
        written.write_text(token)
        written.replace(file)

    return write


@contextmanager
def rotated(write: Write, audience: str) -> Iterator[None]:
    """Replace the token all the time while the block runs."""
    ended, numbers = threading.Event(), iter(range(1_000_000))

    def rotate() -> None:
        while not ended.wait(0.02):
            write(make_token(jti=str(next(numbers)), audience=audience))

    write(make_token(jti="first", audience=audience))
    platform = threading.Thread(target=rotate)
    platform.start()
    try:
        yield
    finally:
        ended.set()
        platform.join()


@pytest.fixture
def write_token(s3: EmulatedS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Give this process the identity of a workload on AWS and no other; return the writer of its token."""
    file = tmp_path / "token"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ROLE_ARN", _OWN_ROLE)
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(file))
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", s3.url)
    aws._make_aws_client.cache_clear()
    yield writer_of(file)
    aws._make_aws_client.cache_clear()


@pytest.mark.parametrize("role", [None, _ROLE + WORKSPACE], ids=["own rights", "the customer's role"])
def test_an_export_goes_on_while_its_token_and_credentials_are_renewed(
    role: str | None, s3: EmulatedS3, tmp_path: Path, write_token: Write
) -> None:
    prefix = "federated" if role is None else "federated-role"
    runtime = make_runtime(tmp_path, **s3.chosen(is_listed=role is None))
    seal(runtime, [Recording(frames=[0, 100]) for _ in range(4)])
    first = len(s3.requests())
    wanted = s3.destination(prefix) if role is None else s3.destination(prefix, role_arn=role)
    with rotated(write_token, AUDIENCE):
        row = run_export(runtime, ask(runtime, destination=wanted).id, owner="test")
    assert row.status == "completed", row.error
    noted = s3.requests()[first:]
    require_right_objects(s3, f"{prefix}/{row.id}")
    exchanged = [request for request in noted if "jti" in request]
    assert {request["aud"] for request in exchanged} == {AUDIENCE}
    assert len({request["jti"] for request in exchanged}) > 1
    signers = {request["signed_by"] for request in noted if row.id in request["request"]}
    assert signers and all(signer.startswith("ASIA") for signer in signers)
    if role is None:
        assert len(signers) > 1


@pytest.mark.parametrize(
    ("token", "code"),
    [
        (make_token(jti="theirs", audience="vault"), "InvalidIdentityToken"),
        (make_token(jti="old", seconds=-60), "ExpiredTokenException"),
    ],
    ids=["another audience", "expired"],
)
@pytest.mark.parametrize("role", [None, _ROLE + WORKSPACE], ids=["own rights", "the customer's role"])
def test_a_token_that_sts_refuses_is_no_fault_of_the_destination(
    role: str | None,
    token: str,
    code: str,
    s3: EmulatedS3,
    tmp_path: Path,
    write_token: Write,
    caplog: pytest.LogCaptureFixture,
) -> None:
    runtime = make_runtime(tmp_path, **s3.chosen(is_listed=role is None))
    seal(runtime, [Recording()])
    write_token(token)
    wanted = s3.destination("refused") if role is None else s3.destination("refused", role_arn=role)
    with caplog.at_level(logging.WARNING, "recorder.exports"), pytest.raises(Unavailable):
        ask(runtime, destination=wanted)
    assert f"STS refuses the web identity token of the service: {code}" in caplog.text
    assert s3.objects("refused") == {}


def test_a_run_whose_token_expires_is_carried_on_by_a_later_one(
    s3: EmulatedS3, tmp_path: Path, write_token: Write
) -> None:
    runtime = make_runtime(tmp_path, **s3.chosen())
    seal(runtime, [Recording()])
    write_token(make_token(jti="young"))
    row = ask(runtime, destination=s3.destination("expiring"))
    write_token(make_token(jti="old", seconds=-60))
    aws._make_aws_client.cache_clear()
    with pytest.raises(Unavailable):
        run_export(runtime, row.id, owner="test")
    write_token(make_token(jti="new"))
    done = run_export(runtime, row.id, owner="test")
    assert done.status == "completed", done.error
    require_right_objects(s3, f"expiring/{row.id}")


@pytest.fixture
def tokens(opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TokenService]:
    """Give this process a federated identity on Google, with its token in the file `google`."""
    with running_token_service() as service:
        configuration = {
            "type": "external_account",
            "audience": POOL,
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": service.url,
            "credential_source": {"file": str(tmp_path / "google")},
        }
        (tmp_path / "federated.json").write_text(json.dumps(configuration))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "federated.json"))
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", opened("gcs").url)
        gcs.open_gcs_client.cache_clear()
        yield service
        gcs.open_gcs_client.cache_clear()


def test_a_federated_identity_on_google_is_renewed_during_an_export(
    tokens: TokenService, opened: Opened, tmp_path: Path
) -> None:
    store = opened("gcs")
    runtime = make_runtime(tmp_path, export_buckets=(store.listed,))
    seal(runtime, [Recording(frames=[0, 100]) for _ in range(4)])
    with rotated(writer_of(tmp_path / "google"), POOL):
        row = run_export(runtime, ask(runtime, destination=store.destination("federated")).id, owner="test")
    assert row.status == "completed", row.error
    require_right_objects(store, f"federated/{row.id}")
    assert {exchange["audience"] for exchange in tokens.exchanges} == {POOL}
    assert len({exchange["claims"]["jti"] for exchange in tokens.exchanges}) > 1


@pytest.mark.parametrize(
    "token",
    [make_token(jti="theirs", audience=AUDIENCE), make_token(jti="old", audience=POOL, seconds=-60)],
    ids=["another audience", "expired"],
)
def test_a_token_that_google_refuses_is_no_fault_of_the_destination(
    token: str, tokens: TokenService, opened: Opened, tmp_path: Path
) -> None:
    store = opened("gcs")
    runtime = make_runtime(tmp_path, export_buckets=(store.listed,))
    seal(runtime, [Recording()])
    writer_of(tmp_path / "google")(token)
    with pytest.raises(Unavailable):
        ask(runtime, destination=store.destination("refused"))
    assert tokens.exchanges and store.objects("refused") == {}

"""Servers that clients of S3 and STS call: a customer's bucket is never at the address of our own stores."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import EndpointConnectionError
from botocore.httpsession import URLLib3Session

from recorder.exports.destinations import aws, resolve_export_location
from recorder.exports.destinations.base import PROBING
from recorder.ids import new_id
from recorder.models.export import ExportRow
from tests.support.sealed_sessions import WORKSPACE, make_settings

_STORE = "http://store.internal:9000"
_ROLE = "arn:aws:iam::123456789012:role/writer"
_VARIABLES = ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL_STS"]


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Yield the addresses that clients call, in order; no request leaves this process."""
    urls: list[str] = []

    def refuse(self: Any, request: Any) -> None:
        urls.append(request.url)
        raise EndpointConnectionError(endpoint_url=request.url)

    monkeypatch.setattr(URLLib3Session, "send", refuse)
    aws._make_aws_client.cache_clear()
    yield urls
    aws._make_aws_client.cache_clear()


@pytest.fixture(params=[*_VARIABLES, "a profile"])
def _own_store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name the operator's own store as botocore reads it."""
    if request.param in _VARIABLES:
        monkeypatch.setenv(request.param, _STORE)
        return
    profile = tmp_path / "profile"
    profile.write_text(f"[default]\nendpoint_url = {_STORE}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(profile))


def call(tmp_path: Path, service: str, destination: dict[str, Any], **settings: Any) -> None:
    """Let a client of an export's destination send one request."""
    row = ExportRow(id=new_id("exp"), workspace_id=WORKSPACE, destination=destination)
    target = resolve_export_location(row, make_settings(tmp_path, **settings))
    client = aws.open_aws_client(service, target, PROBING)
    with pytest.raises(EndpointConnectionError):
        client.get_caller_identity() if service == "sts" else client.list_objects_v2(Bucket="data")


def hosts(urls: list[str]) -> list[str]:
    """Return the host and the port of each address."""
    return [urlsplit(url).netloc for url in urls]


@pytest.mark.usefixtures("_own_store")
def test_a_customers_bucket_is_amazons(tmp_path: Path, called: list[str]) -> None:
    customers = {"kind": "s3", "bucket": "data", "region": "eu-central-1"}
    call(tmp_path, "s3", customers)
    call(tmp_path, "s3", customers, export_buckets=("s3://data",))
    call(tmp_path, "s3", customers | {"role_arn": _ROLE})  # STS comes first
    call(tmp_path, "sts", customers | {"role_arn": _ROLE})
    bucket, role = "data.s3.eu-central-1.amazonaws.com", "sts.eu-central-1.amazonaws.com"
    assert hosts(called) == [bucket, bucket, role, role]


def test_the_operator_sends_customers_exports_elsewhere_by_the_setting(
    tmp_path: Path, called: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", _STORE)
    for service in ("s3", "sts"):
        call(tmp_path, service, {"kind": "s3", "bucket": "data"}, s3_endpoint="http://minio.internal:9000")
    assert hosts(called) == ["minio.internal:9000"] * 2


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_hosted_files_stay_in_the_operators_own_store(
    tmp_path: Path, called: list[str], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, _STORE)
    hosted = {"kind": "signed_url", "expires_in": 60}
    call(tmp_path, "s3", hosted, export_url="s3://data/exports")
    call(tmp_path, "s3", hosted, export_url="s3://data/exports", s3_endpoint="http://minio.internal:9000")
    assert hosts(called) == ["store.internal:9000", "minio.internal:9000"]

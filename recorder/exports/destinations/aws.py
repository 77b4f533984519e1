"""Rights on AWS: the customer's role, assumed with the workspace's id as external id. Spec §4.3.

The external id keeps one customer from naming another's role (the confused deputy): a role that can be
assumed without the right one is refused.

Only files that the service hosts may go to the address of `AWS_ENDPOINT_URL` or of a profile, which an
operator sets for the deployment's own stores. A customer's bucket is Amazon's, or at `RECORDER_S3_ENDPOINT`.
"""

import logging
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from recorder.errors import IdentityMissing, InvalidDestination, Unavailable
from recorder.exports.destinations.base import ExportLocation, StoreTimeouts
from recorder.ids import new_id

log = logging.getLogger("recorder.exports")

_DEFAULT_REGION = "us-east-1"
_POINTER = "/destination/role_arn"
#: Error code of STS for a role that does not trust the caller; other codes leave the question open.
_REFUSAL = "AccessDenied"
#: Call by which botocore exchanges the token of the service's workload for its own credentials.
_OWN_IDENTITY = "AssumeRoleWithWebIdentity"


def open_aws_client(service: str, target: ExportLocation, patience: StoreTimeouts) -> Any:
    """Return a botocore client with the rights of the target, which are renewed before they expire."""
    session_name = f"recorder-{target.export_id}" if target.role_arn else ""
    workspace_id = target.workspace_id if target.role_arn else ""
    return _make_aws_client(
        service,
        region=target.region,
        endpoint=target.endpoint,
        is_hosted=target.is_hosted,
        role_arn=target.role_arn,
        external_id=workspace_id,
        session_name=session_name,
        patience=patience,
    )


def require_external_id(target: ExportLocation, patience: StoreTimeouts) -> None:
    """Check that the role can be assumed with the workspace's id, and not with another.

    Raises:
        InvalidDestination: if the role does not ask for the id, or refuses it.
        Unavailable: if STS does not answer, or with another error.
    """
    if not _can_assume_role(target, target.workspace_id, patience):
        text = "The role cannot be assumed with your workspace id as external id; check its trust policy."
        raise InvalidDestination(text, _POINTER)
    if _can_assume_role(target, new_id("wsp"), patience):
        text = (
            "The role can be assumed with any external id; its trust policy must ask for your workspace id."
        )
        raise InvalidDestination(text, _POINTER)


def raise_if_aws_identity_refused(error: Any) -> None:
    """Check that a client's error is not about the service's own identity, which no customer can mend.

    Raises:
        Unavailable: if STS refused the token of the service's workload.
    """
    if error.operation_name == _OWN_IDENTITY:
        code = error.response.get("Error", {}).get("Code")
        log.warning("STS refuses the web identity token of the service: %s; see docs/destinations.md", code)
        raise Unavailable("The export destination") from error


def make_missing_identity() -> IdentityMissing:
    """Return the error of a service without credentials for AWS, and log a warning for its operator."""
    log.warning("the service has no AWS credentials of its own; see docs/destinations.md")
    return IdentityMissing("AWS")


def _can_assume_role(target: ExportLocation, external_id: str, patience: StoreTimeouts) -> bool:
    """Return whether the service can assume the role of an export with this external id."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    try:
        client = _make_aws_client(
            "sts",
            region=target.region,
            endpoint=target.endpoint,
            is_hosted=target.is_hosted,
            role_arn=None,
            external_id="",
            session_name="",
            patience=patience,
        )
        client.assume_role(
            RoleArn=target.role_arn,
            RoleSessionName=f"recorder-{target.export_id}",
            ExternalId=external_id,
            DurationSeconds=900,
        )
    except ClientError as error:
        raise_if_aws_identity_refused(error)
        code = error.response.get("Error", {}).get("Code")
        if code == _REFUSAL:
            return False
        log.warning("STS does not answer whether the role of %s can be assumed: %s", target.export_id, code)
        raise Unavailable("The export destination") from error
    except NoCredentialsError as error:
        raise make_missing_identity() from error
    except (BotoCoreError, OSError) as error:
        raise Unavailable("The export destination") from error
    return True


# A client takes a tenth of a second to make, and hosted files are served by the request.
@lru_cache(maxsize=64)
def _make_aws_client(
    service: str,
    *,
    region: str | None,
    endpoint: str | None,
    is_hosted: bool,
    role_arn: str | None,
    external_id: str,
    session_name: str,
    patience: StoreTimeouts,
) -> Any:
    import botocore.session
    from botocore.config import Config
    from botocore.credentials import AssumeRoleCredentialFetcher
    from botocore.exceptions import NoCredentialsError

    config = Config(
        connect_timeout=patience.connect_s,
        read_timeout=patience.read_s,
        retries={"mode": "standard", "total_max_attempts": patience.attempts},
        s3={"addressing_style": "path"} if endpoint else {},
        ignore_configured_endpoint_urls=not is_hosted,
        user_agent_extra="workflow-recorder",
    )
    options = {"region_name": region or _DEFAULT_REGION, "endpoint_url": endpoint, "config": config}
    session = botocore.session.get_session()
    credentials = session.get_credentials()
    if credentials is None:
        raise NoCredentialsError
    if role_arn is None:
        return session.create_client(service, **options)
    fetcher = AssumeRoleCredentialFetcher(
        client_creator=partial(session.create_client, **options),
        source_credentials=credentials,
        role_arn=role_arn,
        extra_args={"ExternalId": external_id, "RoleSessionName": session_name},
    )
    assumed = botocore.session.get_session()
    assumed.register_component("credential_provider", _AssumedRole(fetcher.fetch_credentials))
    return assumed.create_client(service, **options)


class _AssumedRole:
    """Credential provider of a session: the credentials of the role, requested when first needed."""

    def __init__(self, refresh: Callable[[], dict[str, Any]]) -> None:
        self._refresh = refresh

    def load_credentials(self) -> Any:
        from botocore.credentials import DeferredRefreshableCredentials

        return DeferredRefreshableCredentials(method="assume-role", refresh_using=self._refresh)

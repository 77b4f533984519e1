"""Where an export's directory is: all that a worker in another process needs to open it. Contract §5."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Target:
    """What and where, without secrets: it may be pickled, shown and logged."""

    kind: Literal["local", "s3", "gcs", "azure_blob", "address"]
    workspace_id: str
    export_id: str
    #: Folder, key in the bucket, or fsspec address of the export's directory; no slash at its end.
    root: str
    #: Bucket or container.
    bucket: str = ""
    #: Storage account (Azure).
    account: str = ""
    region: str | None = None
    role_arn: str | None = None
    service_account: str | None = None
    #: The operator's address of the store; None is the cloud itself.
    endpoint: str | None = None
    #: Whether the operator chose or listed the place: then the service's own rights may be used there.
    is_trusted: bool = False

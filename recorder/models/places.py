"""Names of places in clouds, as destinations take them. Spec §4.3.

Buckets, accounts and regions become parts of host names and paths: what the clouds themselves would not take
is refused here, so that no name leads anywhere else.
"""

import re
from typing import Annotated

from pydantic import AfterValidator
from pydantic import Field as WireField

#: Leaves room in the 1,024 bytes of a key for the export's id and the longest path of a file.
_PREFIX_BYTES = 512
_IP_ADDRESS = re.compile(r"[0-9.]+")


def _bucket(value: str) -> str:
    if ".." in value or ".-" in value or "-." in value or _IP_ADDRESS.fullmatch(value):
        raise ValueError("is no name of a bucket")
    return value


def _container(value: str) -> str:
    if "--" in value:
        raise ValueError("is no name of a container")
    return value


def _prefix(value: str) -> str:
    """Check a prefix and take the slash from its end.

    Dots at the end of a segment are cut by some stores, and backslashes read as slashes by others.
    """
    prefix = value.removesuffix("/")
    if not value.isprintable() or "\\" in value or len(prefix.encode()) > _PREFIX_BYTES:
        raise ValueError(f"takes up to {_PREFIX_BYTES} bytes of printable characters, without backslashes")
    if any(not part or part.endswith((".", " ")) or part.startswith(" ") for part in prefix.split("/")):
        raise ValueError("takes names with single slashes between them, none at the start, no dots at an end")
    return prefix


S3Bucket = Annotated[str, WireField(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$"), AfterValidator(_bucket)]
GcsBucket = Annotated[
    str, WireField(pattern=r"^[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]$"), AfterValidator(_bucket)
]
KeyPrefix = Annotated[str, WireField(min_length=1), AfterValidator(_prefix)]
AwsRegion = Annotated[str, WireField(pattern=r"^[a-z]{2,4}(-[a-z]{2,12}){1,3}-[0-9]{1,2}$")]
RoleArn = Annotated[
    str,
    WireField(pattern=r"^arn:aws(-[a-z]{2,6}){0,3}:iam::[0-9]{12}:role/[A-Za-z0-9+=,.@_/-]{1,512}$"),
]
ServiceAccount = Annotated[
    str,
    WireField(
        pattern=r"^[a-z0-9][a-z0-9-]{0,62}@[a-z0-9][a-z0-9.-]{0,100}\.gserviceaccount\.com$",
    ),
]
AzureAccount = Annotated[str, WireField(pattern=r"^[a-z0-9]{3,24}$")]
AzureContainer = Annotated[
    str, WireField(pattern=r"^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$"), AfterValidator(_container)
]

"""Patterns of text members, and what each takes in words, which refusals show. Contract §1 (errors), §5."""

from typing import Final

from recorder import limits

ITEM_ID: Final = r"^(evt|frm)_[0-9A-Za-z]{1,40}$"
ORIGIN: Final = r"^https?://[^\s/?#@]+/?$"
S3_BUCKET: Final = r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$"
GCS_BUCKET: Final = r"^[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]$"
AWS_REGION: Final = r"^[a-z]{2,4}(-[a-z]{2,12}){1,3}-[0-9]{1,2}$"
ROLE_ARN: Final = r"^arn:aws(-[a-z]{2,6}){0,3}:iam::[0-9]{12}:role/[A-Za-z0-9+=,.@_/-]{1,512}$"
SERVICE_ACCOUNT: Final = r"^[a-z0-9][a-z0-9-]{0,62}@[a-z0-9][a-z0-9.-]{0,100}\.gserviceaccount\.com$"
AZURE_ACCOUNT: Final = r"^[a-z0-9]{3,24}$"
AZURE_CONTAINER: Final = r"^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$"
PRINTABLE_NAME: Final = r"^[^\x00-\x1f\x7f]+$"

#: Words for each pattern, which follow "Takes" in a refusal.
TEXT_FORMS: Final = {
    limits.WORKFLOW_PATTERN: (
        "2 to 64 characters: lower-case letters, digits and underscores, as in approve_invoice"
    ),
    limits.MASKING_NAME_PATTERN: (
        "up to 32 characters: lower-case letters, digits and underscores, the first one a letter"
    ),
    limits.EVENT_TYPE_PATTERN: (
        "up to 64 characters: lower-case letters, digits, underscores and dots, the first one a letter, "
        "as in ui.click"
    ),
    ITEM_ID: "the id of an event or a frame, as in evt_… or frm_…",
    ORIGIN: "http or https and a host, without path, as in https://erp.example",
    S3_BUCKET: (
        "3 to 63 characters: lower-case letters, digits, dots and hyphens, a letter or digit first and last, "
        "as in my-datasets"
    ),
    GCS_BUCKET: (
        "3 to 222 characters: lower-case letters, digits, dots, hyphens and underscores, a letter or digit "
        "first and last, as in my-datasets"
    ),
    AWS_REGION: "the name of a region, as in eu-central-1",
    ROLE_ARN: "the ARN of a role, as in arn:aws:iam::123456789012:role/exports",
    SERVICE_ACCOUNT: "the address of a service account, as in exports@my-project.iam.gserviceaccount.com",
    AZURE_ACCOUNT: "3 to 24 characters: lower-case letters and digits, as in mydatasets",
    AZURE_CONTAINER: (
        "3 to 63 characters: lower-case letters, digits and hyphens, a letter or digit first and last, as in "
        "my-datasets"
    ),
    PRINTABLE_NAME: "printable characters",
}

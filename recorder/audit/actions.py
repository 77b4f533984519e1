"""The names of what is recorded, `<resource>.<verb>`; docs/audit.md says who does each. Contract §7."""

from typing import Literal

Action = Literal[
    "key.create",
    "key.revoke",
    "webhook.create",
    "webhook.update",
    "webhook.delete",
    "webhook.rotate_secret",
    "webhook.test",
    "webhook.redeliver",
    "workspace.create",
    "workspace.update",
    "workflow.create",
    "workflow.update",
    "session.delete",
    "session.set_aside",
    "session.reseal",
    "export.create",
    "export.cancel",
    "recipe.create",
    "recipe.delete",
    "endpoint.call",
]

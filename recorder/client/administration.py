"""What running a workspace needs of the client: settings, keys, webhooks, usage, audit. Spec §4.4, §4.5."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any
from urllib.parse import quote

from recorder import clock
from recorder.client.transport import Call, Json, Requests


class Administration(Requests):
    """Workflows and the workspace, its keys and webhooks, its limits and its log."""

    def get_workflow(self, workflow: str) -> Json:
        """A workflow: its settings, its sessions and the size of its graph."""
        return self._get(_workflow(workflow))

    def list_workflows(self) -> Iterator[Json]:
        """Every workflow, newest first."""
        return self._pages("/v1/workflows")

    def update_workflow(self, workflow: str, **settings: Any) -> Json:
        """Change `memory_graph`, `tags`, `masking` or `outcome_rules`; the others stay."""
        return self._patch(_workflow(workflow), settings)

    def get_workspace(self) -> Json:
        """The workspace of the key and its settings."""
        return self._get("/v1/workspaces/current")

    def update_workspace(self, **settings: Any) -> Json:
        """Change `retention`, `masking` or `live_replay`; what is not named stays, inside them too."""
        return self._patch("/v1/workspaces/current", settings)

    def get_quota(self) -> Json:
        """What the month used, and what it may."""
        return self._get("/v1/quota")

    def get_limits(self) -> Json:
        """The limits that hold for the key's workspace: rates, streams, batches, bytes, pages."""
        return self._get("/v1/limits")

    def create_key(
        self, label: str, scope: str, *, mode: str | None = None, expires_at: datetime | None = None
    ) -> Json:
        """A new key, which may do no more than this one; the answer alone shows its value.

        It is not repeated after a broken connection: a second answer would show another key, or none.

        Args:
            scope: `read`, `write` or `admin`; `replay:live` may follow.
            mode: `live` or `test`; by default that of this key.
        """
        body: Json = {"label": label, "scope": scope}
        if mode is not None:
            body["mode"] = mode
        if expires_at is not None:
            body["expires_at"] = clock.to_iso(expires_at)
        return self._create_once("/v1/keys", body)

    def list_keys(self) -> Iterator[Json]:
        """The keys of the workspace that were not revoked, newest first, without their values."""
        return self._pages("/v1/keys")

    def revoke_key(self, key_id: str) -> None:
        """End a key; running processes refuse it within 5 seconds."""
        self._transport.send(Call("DELETE", f"/v1/keys/{quote(key_id, safe='')}"))

    def event_types(self) -> list[Json]:
        """The types that webhooks carry, each with the JSON Schema of its payload."""
        types: list[Json] = self._get("/v1/event_types")["data"]
        return types

    def create_webhook(self, url: str, events: Iterable[str], *, description: str | None = None) -> Json:
        """Have events of these types sent to a URL; the answer alone shows the secret that signs them.

        It is not repeated after a broken connection; list the webhooks then.
        """
        body: Json = {"url": url, "events": list(events)}
        if description is not None:
            body["description"] = description
        return self._create_once("/v1/webhooks", body)

    def update_webhook(self, webhook_id: str, **changes: Any) -> Json:
        """Change `url`, `events` or `description`; the others, the secret and the deliveries stay."""
        return self._patch(_webhook(webhook_id), changes)

    def list_webhooks(self) -> Iterator[Json]:
        """The webhooks of the workspace, newest first, without their secrets."""
        return self._pages("/v1/webhooks")

    def rotate_secret(self, webhook_id: str) -> Json:
        """A new secret of a webhook, shown in this answer alone; the old one signs for 24 hours more."""
        return self._create_once(f"{_webhook(webhook_id)}/secret", {})

    def redeliver(self, webhook_id: str, delivery_id: str) -> Json:
        """Send the payload of a delivery again; the record of the new one."""
        return self._create(f"{_webhook(webhook_id)}/deliveries/{quote(delivery_id, safe='')}/redeliver", {})

    def list_deliveries(self, webhook_id: str) -> Iterator[Json]:
        """Attempts to send events to a webhook, newest first."""
        return self._pages(f"{_webhook(webhook_id)}/deliveries")

    def delete_webhook(self, webhook_id: str) -> None:
        """Remove a webhook; what still waited to be sent is dropped."""
        self._transport.send(Call("DELETE", _webhook(webhook_id)))

    def audit(self, **filters: str) -> Iterator[Json]:
        """The workspace's audit log, oldest first; filters: since, until, action, actor, resource."""
        return self._pages("/v1/audit", filters)


def _workflow(workflow: str) -> str:
    return f"/v1/workflows/{quote(workflow, safe='')}"


def _webhook(webhook_id: str) -> str:
    return f"/v1/webhooks/{quote(webhook_id, safe='')}"

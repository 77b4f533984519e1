"""Client methods for administration: settings, keys, webhooks, usage, audit. Spec §4.4, §4.5."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any
from urllib.parse import quote

from recorder import clock
from recorder.client.transport import Json, Requests, TransportCall


class Administration(Requests):
    """Methods for workflows and the workspace, its keys, webhooks, limits and audit log."""

    def get_workflow(self, workflow: str) -> Json:
        """Return a workflow: its settings, its sessions and the size of its graph."""
        return self._get(_make_workflow_url_path(workflow))

    def list_workflows(self) -> Iterator[Json]:
        """Yield every workflow, newest first."""
        return self._iterate_pages("/v1/workflows")

    def update_workflow(self, workflow: str, **settings: Any) -> Json:
        """Change `memory_graph`, `tags`, `masking` or `outcome_rules`; the others stay."""
        return self._patch(_make_workflow_url_path(workflow), settings)

    def get_workspace(self) -> Json:
        """Return the workspace of the key with its settings."""
        return self._get("/v1/workspaces/current")

    def update_workspace(self, **settings: Any) -> Json:
        """Change `retention`, `masking` or `live_replay`; other members stay, also inside them."""
        return self._patch("/v1/workspaces/current", settings)

    def get_quota(self) -> Json:
        """Return the usage of this month and its limits."""
        return self._get("/v1/quota")

    def get_limits(self) -> Json:
        """Return the limits of the key's workspace: rates, streams, batches, bytes, pages."""
        return self._get("/v1/limits")

    def create_key(
        self, label: str, scope: str, *, mode: str | None = None, expires_at: datetime | None = None
    ) -> Json:
        """Create a key, which may do no more than this one; only this answer shows its value.

        The request is not repeated after a broken connection: it could create a second key.

        Args:
            label: purpose of the key.
            scope: `read`, `write` or `admin`; `replay:live` may follow.
            mode: `live` or `test`; by default that of this key.
            expires_at: end of its validity; None sets none.
        """
        body: Json = {"label": label, "scope": scope}
        if mode is not None:
            body["mode"] = mode
        if expires_at is not None:
            body["expires_at"] = clock.to_iso(expires_at)
        return self._create_without_retry("/v1/keys", body)

    def list_keys(self) -> Iterator[Json]:
        """Yield the keys of the workspace that were not revoked, newest first, without their values."""
        return self._iterate_pages("/v1/keys")

    def revoke_key(self, key_id: str) -> None:
        """Revoke a key; running processes refuse it within 5 seconds."""
        self._transport.send(TransportCall("DELETE", f"/v1/keys/{quote(key_id, safe='')}"))

    def event_types(self) -> list[Json]:
        """Return the event types of webhooks, each with the JSON Schema of its payload."""
        types: list[Json] = self._get("/v1/event_types")["data"]
        return types

    def create_webhook(self, url: str, events: Iterable[str], *, description: str | None = None) -> Json:
        """Create a webhook for events of these types; only this answer shows the secret that signs them.

        The request is not repeated after a broken connection; list the webhooks then.
        """
        body: Json = {"url": url, "events": list(events)}
        if description is not None:
            body["description"] = description
        return self._create_without_retry("/v1/webhooks", body)

    def update_webhook(self, webhook_id: str, **changes: Any) -> Json:
        """Change `url`, `events` or `description`; the others, the secret and the deliveries stay."""
        return self._patch(_make_webhook_url_path(webhook_id), changes)

    def list_webhooks(self) -> Iterator[Json]:
        """Yield the webhooks of the workspace, newest first, without their secrets."""
        return self._iterate_pages("/v1/webhooks")

    def get_webhook(self, webhook_id: str) -> Json:
        """Return a webhook, without its secret."""
        return self._get(_make_webhook_url_path(webhook_id))

    def send_test(self, webhook_id: str) -> Json:
        """Send a test event to a webhook; return the record of its delivery."""
        return self._create(f"{_make_webhook_url_path(webhook_id)}/test", {})

    def rotate_secret(self, webhook_id: str) -> Json:
        """Create a new secret, which only this answer shows; the old one signs for 24 hours more."""
        return self._create_without_retry(f"{_make_webhook_url_path(webhook_id)}/secret", {})

    def redeliver(self, webhook_id: str, delivery_id: str) -> Json:
        """Send the payload of a delivery again; return the record of the new one."""
        return self._create(
            f"{_make_webhook_url_path(webhook_id)}/deliveries/{quote(delivery_id, safe='')}/redeliver", {}
        )

    def get_delivery(self, webhook_id: str, delivery_id: str) -> Json:
        """Return an attempt to send an event to a webhook."""
        return self._get(f"{_make_webhook_url_path(webhook_id)}/deliveries/{quote(delivery_id, safe='')}")

    def list_deliveries(self, webhook_id: str) -> Iterator[Json]:
        """Yield attempts to send events to a webhook, newest first."""
        return self._iterate_pages(f"{_make_webhook_url_path(webhook_id)}/deliveries")

    def delete_webhook(self, webhook_id: str) -> None:
        """Delete a webhook and its waiting deliveries."""
        self._transport.send(TransportCall("DELETE", _make_webhook_url_path(webhook_id)))

    def audit(self, **filters: str) -> Iterator[Json]:
        """Yield the workspace's audit log, oldest first; filters: since, until, action, actor, resource."""
        return self._iterate_pages("/v1/audit", filters)

    def erase(self, subject: str) -> Json:
        """Request the erasure of all sessions whose actor or metadata name a person; return the erasure."""
        return self._create("/v1/privacy/erasure", {"subject": subject, "scope": "all"})

    def erasure(self, erasure_id: str) -> Json:
        """Return an erasure: its status, and the numbers of what was removed."""
        return self._get(f"/v1/privacy/erasure/{quote(erasure_id, safe='')}")


def _make_workflow_url_path(workflow: str) -> str:
    return f"/v1/workflows/{quote(workflow, safe='')}"


def _make_webhook_url_path(webhook_id: str) -> str:
    return f"/v1/webhooks/{quote(webhook_id, safe='')}"

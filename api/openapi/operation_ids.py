"""Operation ids of the OpenAPI document, independent of the names of functions."""

import re

from fastapi.routing import APIRoute
from fastapi.utils import generate_unique_id

# Clients are generated from these ids: they stay when a function is renamed.
_NAMES = {
    ("GET", "/"): "read_start_page",
    ("GET", "/healthz"): "healthz",
    ("GET", "/metrics"): "read_metrics",
    ("GET", "/readyz"): "readyz",
    ("GET", "/v1/audit"): "list_audit_entries",
    ("GET", "/v1/event_types"): "get_event_types",
    ("GET", "/v1/exports"): "list_exports",
    ("POST", "/v1/exports"): "create_export",
    ("GET", "/v1/exports/{export_id}"): "get_export",
    ("POST", "/v1/exports/{export_id}/cancel"): "cancel_export",
    ("GET", "/v1/exports/{export_id}/diff"): "compare_exports",
    ("GET", "/v1/exports/{export_id}/files/{path}"): "get_file",
    ("GET", "/v1/exports/{export_id}/manifest"): "get_manifest",
    ("POST", "/v1/privacy/erasure"): "request_erasure",
    ("GET", "/v1/privacy/erasure/{erasure_id}"): "get_erasure",
    ("GET", "/v1/keys"): "list_keys",
    ("POST", "/v1/keys"): "create_key",
    ("DELETE", "/v1/keys/{key_id}"): "revoke_key",
    ("GET", "/v1/limits"): "get_limits",
    ("GET", "/v1/memory/diff"): "compare_sessions",
    ("GET", "/v1/memory/graph"): "get_graph",
    ("GET", "/v1/memory/outliers"): "list_outliers",
    ("GET", "/v1/memory/paths"): "list_paths",
    ("GET", "/v1/memory/recovery_points"): "list_recovery_points",
    ("POST", "/v1/memory/similar"): "list_similar",
    ("GET", "/v1/quota"): "get_quota",
    ("GET", "/v1/sessions"): "list_sessions",
    ("POST", "/v1/sessions"): "create_session",
    ("DELETE", "/v1/sessions/{session_id}"): "delete_session",
    ("GET", "/v1/sessions/{session_id}"): "get_session",
    ("GET", "/v1/sessions/{session_id}/events"): "list_events",
    ("POST", "/v1/sessions/{session_id}/events"): "append_events",
    ("GET", "/v1/sessions/{session_id}/events/stream"): "stream_events",
    ("GET", "/v1/sessions/{session_id}/frames"): "list_frames",
    ("POST", "/v1/sessions/{session_id}/frames"): "append_frames",
    ("GET", "/v1/sessions/{session_id}/frames/{frame_id}"): "get_frame",
    ("GET", "/v1/sessions/{session_id}/frames/{frame_id}/dom"): "get_dom",
    ("GET", "/v1/sessions/{session_id}/frames/{frame_id}/image"): "get_image",
    ("POST", "/v1/sessions/{session_id}/start"): "start_session",
    ("POST", "/v1/sessions/{session_id}/stop"): "stop_session",
    ("GET", "/v1/sessions/{session_id}/tags"): "list_tags",
    ("POST", "/v1/sessions/{session_id}/tags"): "add_tag",
    ("POST", "/v1/sessions:batch_stop"): "batch_stop",
    ("GET", "/v1/webhooks"): "list_webhooks",
    ("POST", "/v1/webhooks"): "create_webhook",
    ("DELETE", "/v1/webhooks/{webhook_id}"): "delete_webhook",
    ("GET", "/v1/webhooks/{webhook_id}"): "get_webhook",
    ("PATCH", "/v1/webhooks/{webhook_id}"): "update_webhook",
    ("GET", "/v1/webhooks/{webhook_id}/deliveries"): "list_deliveries",
    ("GET", "/v1/webhooks/{webhook_id}/deliveries/{delivery_id}"): "get_delivery",
    ("POST", "/v1/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver"): "redeliver",
    ("POST", "/v1/webhooks/{webhook_id}/secret"): "rotate_secret",
    ("POST", "/v1/webhooks/{webhook_id}/test"): "send_test",
    ("POST", "/v1/replays"): "create_replay",
    ("GET", "/v1/replays"): "list_replays",
    ("GET", "/v1/replays/{replay_id}"): "get_replay",
    ("GET", "/v1/replays/{replay_id}/steps"): "list_replay_steps",
    ("POST", "/v1/replays/{replay_id}/cancel"): "cancel_replay",
    ("POST", "/v1/replays/{replay_id}/decision"): "decide_replay_step",
    ("POST", "/v1/recoveries"): "create_recovery",
    ("GET", "/v1/recoveries"): "list_recoveries",
    ("GET", "/v1/recoveries/{recovery_id}"): "get_recovery",
    ("POST", "/v1/recoveries/{recovery_id}/cancel"): "cancel_recovery",
    ("GET", "/v1/workflows"): "list_workflows",
    ("GET", "/v1/workflows/{workflow}"): "get_workflow",
    ("PATCH", "/v1/workflows/{workflow}"): "update_workflow",
    ("GET", "/v1/workspaces/current"): "get_workspace",
    ("PATCH", "/v1/workspaces/current"): "update_workspace",
}


def make_operation_id(route: APIRoute) -> str:
    """Return the operation id of a route: its name in the table, its path and its method.

    Raises:
        KeyError: if the table lacks the route.
    """
    if not route.include_in_schema:  # the pages below /docs
        return generate_unique_id(route)
    assert route.methods is not None  # set by FastAPI
    (method,) = route.methods
    name = _NAMES[method, route.path_format]
    return re.sub(r"\W", "_", f"{name}{route.path_format}_{method.lower()}")

"""Validation of requests, without reading or storing anything. Spec §4.3, contract §5."""

from datetime import datetime
from typing import Any

from recorder import clock, limits
from recorder.errors import InvalidRange, InvalidTime, Problem, TooManyIds, ValidationFailed
from recorder.hashing import compute_sha256
from recorder.ids import is_id, new_timed_id
from recorder.models.export import ExportRow
from recorder.models.export_request import (
    ExportCreate,
    ExportFilter,
    FrameSampling,
    SplitRule,
)
from recorder.request_context import current_request_id
from recorder.tenant import Tenant

_DATASET_NAME_CHARACTERS = 200


def validate_export_request(tenant: Tenant, body: ExportCreate) -> ExportRow:
    """Return the row of a request, not stored yet; relative times are resolved here, once.

    Raises:
        ValidationFailed, InvalidTime, InvalidRange, TooManyIds: if a filter or the sampling is wrong.
    """
    export_id, created_at = new_timed_id("exp")
    workflows = list(dict.fromkeys(body.workflow))
    spec = {
        "workflow": workflows,
        "filter": resolve_export_filter(body.filter or ExportFilter(), now=created_at),
        "frame_sampling": _resolve_sampling(body.frame_sampling or FrameSampling()),
        "split": _resolve_split(body.split or SplitRule(validation=0, test=0)),
    }
    row = ExportRow(
        id=export_id,
        workspace_id=tenant.workspace_id,
        mode=tenant.mode,
        status="queued",
        format=body.format,
        spec=spec,
        destination=body.destination.model_dump(exclude_none=True),
        tag=body.tag,
        dataset=make_dataset_name(body.tag, workflows),
        request_id=current_request_id(),
        created_at=created_at,
    )
    row.series_sha256 = compute_export_series(row)
    return row


def make_dataset_name(tag: str | None, workflows: list[str]) -> str:
    """Return the dataset that an export is a version of: its tag, else its workflows joined by `+`.

    A slug cannot hold `+`. Dagster takes it as a partition key, which must not hold `...`.
    """
    name = tag or "+".join(sorted(workflows))
    return name.replace("...", "…")[:_DATASET_NAME_CHARACTERS]


def resolve_export_filter(requested: ExportFilter, *, now: datetime) -> dict[str, Any]:
    """Return the stored form of a filter: absolute times, always with `until`.

    Raises:
        InvalidTime, InvalidRange, TooManyIds, ValidationFailed: if a member is wrong.
    """
    since = None if requested.since is None else _resolve_filter_time(requested.since, now=now, name="since")
    until = now if requested.until is None else _resolve_filter_time(requested.until, now=now, name="until")
    if until > now:
        detail = "until must not be in the future; leave it out to export everything up to now."
        raise InvalidRange("/filter/until", "now", where="body", detail=detail)
    if since is not None and since > now:
        raise InvalidRange("/filter/since", "now", where="body", detail="since must not be in the future.")
    if since is not None and since > until:
        raise InvalidRange("/filter/since", "/filter/until", where="body")
    low, high = requested.min_duration_ms, requested.max_duration_ms
    if low is not None and high is not None and low > high:
        raise InvalidRange("/filter/min_duration_ms", "/filter/max_duration_ms", where="body")
    resolved = {
        **requested.model_dump(by_alias=True, exclude_none=True),
        "since": since and clock.to_iso(since),
        "until": clock.to_iso(until),
        "exclude_session_ids": _validate_excluded_sessions(requested.exclude_session_ids),
    }
    return {name: value for name, value in resolved.items() if value is not None}


def _resolve_filter_time(text: str, *, now: datetime, name: str) -> datetime:
    try:
        return clock.resolve_time(text, now=now, name=name)
    except InvalidTime as error:
        raise InvalidTime(f"/filter/{name}", str(error), where="body") from error


def _validate_excluded_sessions(session_ids: list[str] | None) -> list[str] | None:
    pointer = "/filter/exclude_session_ids"
    if not session_ids:
        return None
    if len(session_ids) > limits.EXCLUDED_SESSIONS:
        advice = "narrow the export by since, until, tag or path instead"
        raise TooManyIds(pointer, limits.EXCLUDED_SESSIONS, advice=advice)
    problems = [
        Problem("body", f"{pointer}/{index}", "invalid_value", "This is no session id.")
        for index, session_id in enumerate(session_ids)
        if not is_id(session_id, "ses")
    ]
    if problems:
        raise ValidationFailed(problems)
    return list(dict.fromkeys(session_ids))


def _resolve_sampling(requested: FrameSampling) -> dict[str, Any]:
    """Return the stored form of the sampling; only mode `every_n_ms` keeps the interval."""
    if requested.mode != "every_n_ms":
        return requested.model_copy(update={"interval_ms": None}).model_dump()
    if requested.interval_ms is None:
        text = "every_n_ms takes an interval_ms of at least 1."
        raise ValidationFailed.of("/frame_sampling/interval_ms", "missing", message=text)
    return requested.model_dump()


def _resolve_split(requested: SplitRule) -> dict[str, Any]:
    """Check the shares of a requested split, and return it as the export stores it."""
    if requested.validation + requested.test > 1:
        text = "validation and test must not add up to more than 1."
        raise ValidationFailed.of("/split", "invalid_value", message=text)
    return requested.model_dump()


def compute_export_series(row: ExportRow) -> str:
    """Return the digest of the members that exports with common files share: the series.

    Filters may differ: an export after an exclusion or a deletion has most shards in common with its parent.
    """
    destination = {name: value for name, value in row.destination.items() if name != "expires_in"}
    return compute_sha256(
        {
            "workflow": sorted(row.spec["workflow"]),
            "format": row.format,
            "frame_sampling": row.spec["frame_sampling"],
            "split": row.spec["split"],
            "destination": destination,
        }
    )

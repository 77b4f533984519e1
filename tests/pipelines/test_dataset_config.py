"""The launchpad's form of an export says what the body of `POST /v1/exports` says, and back. Spec §4.3."""

from typing import Any, get_args

import dagster as dg
import pytest
from pydantic import BaseModel

from pipelines import dataset_config
from pipelines.dataset_config import DatasetConfig, DatasetNameMismatch, from_row, to_body
from recorder import clock
from recorder.ids import new_id
from recorder.models.export import ExportRow
from recorder.models.export_request import (
    AnyDestination,
    ExportCreate,
    ExportFilter,
    ExportFormat,
    FrameSampling,
    SamplingMode,
    SplitRule,
    SplitUnit,
)
from recorder.models.wire import ActorKind, Mode, Outcome

_BODY: dict[str, Any] = {
    "workflow": ["checkout"],
    "format": "parquet",
    "filter": {"until": "2026-05-02T00:00:00.000Z"},
    "frame_sampling": {"mode": "event_only", "keep_action_frames": False},
    "split": {"by": "session", "validation": 0.1, "test": 0.1},
    "destination": {"kind": "signed_url", "expires_in": 86_400},
}
_FILTER = {
    "outcome": "success",
    "since": "2026-05-01T00:00:00.000Z",
    "until": "2026-05-02T00:00:00.000Z",
    "actor.kind": "human",
    "min_duration_ms": 1,
    "max_duration_ms": 9_000,
    "tag": "gold",
    "path": "pth_0123456789abcdef",
    "exclude_session_ids": ["ses_01k00000000000000000000000"],
}
_VARIANTS: list[dict[str, Any]] = [
    {},
    {"workflow": ["login", "checkout"], "tag": "v1"},
    {"filter": _FILTER},
    *({"format": format} for format in get_args(ExportFormat)),
    *(
        {"frame_sampling": {"mode": mode, "interval_ms": 250, "keep_action_frames": True}}
        for mode in get_args(SamplingMode)
    ),
    *({"split": {"by": unit, "validation": 0.25, "test": 0.0}} for unit in get_args(SplitUnit)),
    {"destination": {"kind": "signed_url", "expires_in": 600}},
    {"destination": {"kind": "local", "path": "a/b"}},
    {"destination": {"kind": "s3", "bucket": "acme-sets"}},
    {
        "destination": {
            "kind": "s3",
            "bucket": "acme-sets",
            "prefix": "sets/daily",
            "region": "eu-central-1",
            "role_arn": "arn:aws:iam::123456789012:role/exports",
        }
    },
    {
        "destination": {
            "kind": "gcs",
            "bucket": "acme-sets",
            "prefix": "a",
            "service_account": "x@y.iam.gserviceaccount.com",
        }
    },
    {"destination": {"kind": "azure_blob", "account": "acmesets", "container": "sets", "prefix": "a"}},
]


def queued(body: dict[str, Any]) -> ExportRow:
    """The row that this body would leave, with the request resolved already."""
    asked = ExportCreate.model_validate(body)
    assert asked.filter is not None and asked.frame_sampling is not None and asked.split is not None
    return ExportRow(
        id=new_id("exp"),
        workspace_id=new_id("wsp"),
        mode="live",
        status="queued",
        format=asked.format,
        spec={
            "workflow": asked.workflow,
            "filter": asked.filter.model_dump(by_alias=True, exclude_none=True),
            "frame_sampling": asked.frame_sampling.model_dump(),
            "split": asked.split.model_dump(),
        },
        destination=asked.destination.model_dump(exclude_none=True),
        tag=asked.tag,
        dataset=asked.tag or "+".join(sorted(asked.workflow)),
        created_at=clock.now(),
    )


def through_dagster(config: DatasetConfig) -> DatasetConfig:
    """The config as a run gets it: written down as a run's, checked against the schema, and read."""
    written: Any = dg.RunConfig(ops={"datasets": config}).to_config_dict()  # type: ignore[no-untyped-call]
    seen: list[DatasetConfig] = []

    @dg.op(name="datasets")
    def _read(config: DatasetConfig) -> None:
        seen.append(config)

    @dg.job
    def _job() -> None:
        _read()

    assert _job.execute_in_process(run_config=written).success
    return seen[0]


@pytest.mark.parametrize("variant", _VARIANTS, ids=str)
def test_the_launchpad_says_what_the_body_said(variant: dict[str, Any]) -> None:
    row = queued(_BODY | variant)
    config = through_dagster(from_row(row))
    again = queued(to_body(config, partition=row.dataset).model_dump(by_alias=True, exclude_none=True))
    said = ("format", "spec", "destination", "tag", "dataset")
    # Ids of sessions stand in the export alone: a run's config is kept with each of its records.
    row.spec["filter"].pop("exclude_session_ids", None)
    assert {name: getattr(again, name) for name in said} == {name: getattr(row, name) for name in said}
    assert (config.export_id, config.workspace, config.mode.value) == (row.id, row.workspace_id, row.mode)


def members(model: type[BaseModel]) -> set[str]:
    """Names of a model's fields."""
    return set(model.model_fields)


def test_every_member_of_the_body_has_a_field_in_the_launchpad() -> None:
    assert members(ExportCreate) <= members(DatasetConfig)
    assert members(ExportFilter) == members(dataset_config.FilterConfig)
    assert members(FrameSampling) == members(dataset_config.SamplingConfig)
    assert members(SplitRule) == members(dataset_config.SplitConfig)


def test_every_destination_has_a_form_with_its_members() -> None:
    forms = get_args(DatasetConfig.model_fields["destination"].annotation)
    told = {form.model_fields["kind"].default: members(form) for form in forms}
    kinds = {
        get_args(one.model_fields["kind"].annotation)[0]: members(one) for one in get_args(AnyDestination)
    }
    assert told == kinds


@pytest.mark.parametrize(
    ("form", "values"),
    [
        (dataset_config.Outcome, Outcome),
        (dataset_config.ActorKind, ActorKind),
        (dataset_config.SamplingMode, SamplingMode),
        (dataset_config.Mode, Mode),
        (dataset_config.Format, ExportFormat),
        (dataset_config.SplitUnit, SplitUnit),
    ],
)
def test_every_choice_of_the_body_can_be_chosen(form: Any, values: Any) -> None:
    assert [choice.value for choice in form] == list(get_args(values))


def test_every_member_is_among_those_that_are_tried() -> None:
    tried = [(_BODY | variant)["destination"] for variant in _VARIANTS]
    for one in get_args(AnyDestination):
        (kind,) = get_args(one.model_fields["kind"].annotation)
        assert members(one) == {name for body in tried if body["kind"] == kind for name in body}
    assert set(_FILTER) == {field.alias or name for name, field in ExportFilter.model_fields.items()}


def test_an_export_of_the_release_before_which_knew_no_parts_is_carried_on() -> None:
    row = queued(_BODY)
    row.spec = {name: value for name, value in row.spec.items() if name != "split"}
    assert from_row(row).split == dataset_config.SplitConfig()


def test_a_tag_that_names_another_dataset_is_refused() -> None:
    config = DatasetConfig(workspace="acme", workflow=["checkout"], tag="v8")
    with pytest.raises(DatasetNameMismatch, match="'v8'"):
        to_body(config, partition="v7")


def test_no_field_of_the_launchpad_takes_a_secret() -> None:
    forms = [DatasetConfig, *get_args(DatasetConfig.model_fields["destination"].annotation)]
    names = {name for form in forms for name in members(form)}
    assert "role_arn" in names
    assert [name for name in names for word in ("secret", "password", "token", "key") if word in name] == []

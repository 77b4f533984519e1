"""The run configuration of `datasets` takes the members of `POST /v1/exports`, and no other. Spec §4.3."""

import re
from typing import Any, get_args

import dagster as dg
import pytest
import yaml  # type: ignore[import-untyped]
from pydantic import BaseModel

from pipelines.dataset_config import (
    CONFIG_SCHEMA,
    EXAMPLE,
    DatasetNameMismatch,
    make_dataset_config,
    make_export_body,
)
from recorder import clock
from recorder.ids import new_id
from recorder.models.export import ExportRow
from recorder.models.export_request import (
    AnyDestination,
    ExportCreate,
    ExportFilter,
    ExportFormat,
    SamplingMode,
    SplitUnit,
)

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
    "subpath": "pth_0123456789abcdef",
    "min_replayability": 0.5,
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
    """Return the row that this body would store, with the request resolved already."""
    body_model = ExportCreate.model_validate(body)
    assert (
        body_model.filter is not None
        and body_model.frame_sampling is not None
        and body_model.split is not None
    )
    return ExportRow(
        id=new_id("exp"),
        workspace_id=new_id("wsp"),
        mode="live",
        status="queued",
        format=body_model.format,
        spec={
            "workflow": body_model.workflow,
            "filter": body_model.filter.model_dump(by_alias=True, exclude_none=True),
            "frame_sampling": body_model.frame_sampling.model_dump(),
            "split": body_model.split.model_dump(),
        },
        destination=body_model.destination.model_dump(exclude_none=True),
        tag=body_model.tag,
        dataset=body_model.tag or "+".join(sorted(body_model.workflow)),
        created_at=clock.now(),
    )


def read_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration as a run gets it, checked against the schema."""
    seen: list[dict[str, Any]] = []

    @dg.op(name="datasets", config_schema=CONFIG_SCHEMA)
    def _read(context: dg.OpExecutionContext) -> None:
        seen.append(context.op_config)

    @dg.job
    def _job() -> None:
        _read()

    assert _job.execute_in_process(run_config={"ops": {"datasets": {"config": config}}}).success
    return seen[0]


@pytest.mark.parametrize("variant", _VARIANTS, ids=str)
def test_the_configuration_of_a_queued_export_gives_its_body_again(variant: dict[str, Any]) -> None:
    row = queued(_BODY | variant)
    config = read_config(make_dataset_config(row))
    again = queued(
        make_export_body(config, partition=row.dataset).model_dump(by_alias=True, exclude_none=True)
    )
    compared = ("format", "spec", "destination", "tag", "dataset")
    # The export alone has the ids of excluded sessions: a run's config is kept with each of its records.
    row.spec["filter"].pop("exclude_session_ids", None)
    assert {name: getattr(again, name) for name in compared} == {
        name: getattr(row, name) for name in compared
    }
    assert (config["export_id"], config["workspace"], config["mode"]) == (row.id, row.workspace_id, row.mode)


@pytest.mark.parametrize("variant", _VARIANTS, ids=str)
def test_the_body_of_the_route_is_a_configuration_as_it_is(variant: dict[str, Any]) -> None:
    body = _BODY | variant
    config = read_config(body)
    partition = body.get("tag") or "+".join(sorted(body["workflow"]))
    assert make_export_body(config, partition=partition) == ExportCreate.model_validate(body)


def test_one_workflow_need_not_be_a_list() -> None:
    body = make_export_body(read_config({"workflow": "checkout"}), partition="checkout")
    assert (body.workflow, body.format, body.destination.kind) == (["checkout"], "parquet", "signed_url")
    assert body.split is None


def test_the_example_of_the_description_is_valid() -> None:
    make_export_body(read_config(yaml.safe_load(EXAMPLE)), partition="checkout+login")


@pytest.mark.parametrize(
    "wrong",
    [
        {"workflows": ["checkout"]},
        {"filter": {"actor_kind": "human"}},
        {"destination": {"s3": {"bucket": "acme-sets"}}},
        {"destination": {"kind": "ftp"}},
        {"format": "csv"},
        {"frame_sampling": {"mode": "some"}},
    ],
    ids=str,
)
def test_a_wrong_name_is_refused_before_the_run(wrong: dict[str, Any]) -> None:
    with pytest.raises(dg.DagsterInvalidConfigError):
        read_config({"workflow": "checkout"} | wrong)


def test_a_wrong_value_is_named_and_not_repeated() -> None:
    config = read_config({"workflow": "checkout", "destination": {"kind": "s3", "bucket": "NOT_ONE"}})
    with pytest.raises(dg.Failure, match="bucket") as failure:
        make_export_body(config, partition="checkout")
    assert "NOT_ONE" not in str(failure.value.description)


def test_the_error_of_a_wrong_choice_names_the_values_that_fit() -> None:
    for wrong, values in (
        ({"format": "csv"}, "parquet | webdataset | jsonl | arrow"),
        ({"filter": {"outcome": "good"}}, "success | error | abandoned"),
    ):
        with pytest.raises(dg.DagsterInvalidConfigError, match=re.escape(values)):
            read_config({"workflow": "checkout"} | wrong)


def test_a_tag_that_names_another_dataset_is_refused() -> None:
    with pytest.raises(DatasetNameMismatch, match="'v8'"):
        make_export_body(read_config({"workflow": ["checkout"], "tag": "v8"}), partition="v7")


def members(model: type[BaseModel]) -> set[str]:
    """Return the names of a model's fields."""
    return set(model.model_fields)


def test_every_member_is_among_those_that_are_tried() -> None:
    tried = [(_BODY | variant)["destination"] for variant in _VARIANTS]
    for model in get_args(AnyDestination):
        (kind,) = get_args(model.model_fields["kind"].annotation)
        assert members(model) == {name for body in tried if body["kind"] == kind for name in body}
    assert set(_FILTER) == {field.alias or name for name, field in ExportFilter.model_fields.items()}


def test_no_member_of_the_configuration_takes_a_secret() -> None:
    destination: Any = CONFIG_SCHEMA["destination"].config_type
    names = {*CONFIG_SCHEMA, *destination.fields}
    assert "role_arn" in names
    assert [name for name in names for word in ("secret", "password", "token", "key") if word in name] == []

"""Checks of datasets: files against their manifest, rows against the lake. They can be run again by hand."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import dagster as dg
from pydantic import Field
from sqlmodel import col, func, select

from pipelines.resources import RecorderResource
from recorder.errors import RecorderError
from recorder.errors.panics import convert_panics
from recorder.exports.destinations import open_destination
from recorder.models.export import ExportRow
from recorder.number_formats import format_count
from recorder.runtime import Runtime
from recorder.settings import Settings

log = logging.getLogger("recorder.exports")

FILES_CHECK = "files_match_manifest"
LAKE_CHECK = "rows_match_lake"
EXPORT_TAG = "recorder/export_id"
_DATASETS = 10
#: Problems that the description of a failed check has; its metadata have all.
_PROBLEMS_DESCRIBED = 3


class DatasetChecksConfig(dg.Config):
    """Selection of the exports to check."""

    export_id: str | None = Field(
        default=None, description="One export; without it, the newest of each dataset."
    )
    datasets: int = Field(
        default=_DATASETS,
        ge=1,
        le=1000,
        description="How many datasets are checked, those with the newest exports first.",
    )


@dg.multi_asset_check(
    specs=[
        dg.AssetCheckSpec(
            FILES_CHECK,
            asset="datasets",
            description="Size, rows and SHA-256 of every file, and the row set, recomputed from the files.",
        ),
        dg.AssetCheckSpec(
            LAKE_CHECK,
            asset="datasets",
            description=(
                "Sessions chosen and rows counted again, from the lake at the pinned versions; rows of files "
                "that are drawn at random (all, of a small dataset) hashed and compared with those of the "
                "lake."
            ),
        ),
    ],
    can_subset=True,
)
def dataset_checks(
    context: dg.AssetCheckExecutionContext, config: DatasetChecksConfig, recorder: RecorderResource
) -> Iterator[dg.AssetCheckResult]:
    """Check the export of this run; run by hand, the newest export of each dataset."""
    runtime = recorder.runtime
    partition = context.partition_key if context.has_partition_key else None
    rows = _list_exports_to_check(
        runtime,
        config.export_id or _read_export_of_run(context),
        dataset=partition,
        limit=1 if partition is not None else config.datasets,
    )
    checks: dict[str, Callable[[ExportRow], dg.AssetCheckResult]] = {
        FILES_CHECK: lambda row: check_dataset_files(row, runtime.settings),
        LAKE_CHECK: lambda row: check_dataset_against_lake(runtime, row),
    }
    chosen = {key.name for key in context.selected_asset_check_keys}
    for name, check in checks.items():
        if name in chosen:
            results = [_check_export(name, check, row) for row in rows]
            yield _join_check_results(name, rows, results)


def _read_export_of_run(context: dg.AssetCheckExecutionContext) -> str | None:
    """Return the id of the export that this run wrote; None if it only checks.

    The tag is read again: a run from Dagster's pages has it once it has made its export.
    """
    run = context.instance.get_run_by_id(context.run.run_id)
    return run.tags.get(EXPORT_TAG) if run is not None else None


def _check_export(
    name: str, check: Callable[[ExportRow], dg.AssetCheckResult], row: ExportRow
) -> dg.AssetCheckResult:
    """Return the result of a check of one export; an error fails the check, and other exports are checked."""
    try:
        with convert_panics():
            return check(row)
    except Exception as error:
        log.exception("check %s of export %s", name, row.id)
        # The texts of other errors may have contents of recordings.
        reason = str(error) if isinstance(error, RecorderError) else f"{type(error).__name__}, see the log"
    problems = [f"The check ended with an error: {reason}"]
    return dg.AssetCheckResult(
        asset_key="datasets",
        check_name=name,
        passed=False,
        severity=dg.AssetCheckSeverity.ERROR,
        description=_describe_dataset_problems(problems),
        metadata={
            "dataset": row.dataset,
            "export_id": row.id,
            "problems": _format_dataset_problems(problems),
        },
    )


def check_dataset_files(row: ExportRow, settings: Settings) -> dg.AssetCheckResult:
    """Count and hash the files again and compare them with their manifest."""
    from recorder.exports.verify import verify_manifest  # with Arrow's datasets, which most runs do not read

    report = verify_manifest(open_destination(row, settings), manifest_sha256=row.manifest_sha256)
    return dg.AssetCheckResult(
        asset_key="datasets",
        check_name=FILES_CHECK,
        passed=report.is_valid and report.manifest_sha256 == row.manifest_sha256,
        severity=dg.AssetCheckSeverity.ERROR,
        description=_describe_dataset_problems(report.problems),
        metadata={
            "export_id": row.id,
            # Text: a plot of numbers would join those of different datasets.
            "counted": (
                f"{format_count(report.rows, 'row')} and {format_count(report.frames, 'frame')} "
                f"in {format_count(report.shards, 'file')}"
            ),
            "row_set_sha256": report.row_set_sha256,
            "problems": _format_dataset_problems(report.problems),
        },
    )


def check_dataset_against_lake(runtime: Runtime, row: ExportRow) -> dg.AssetCheckResult:
    """Choose, count and hash again what the lake has, and compare it with the files."""
    from recorder.exports.verify.lake_check import compare_export_with_lake

    report = compare_export_with_lake(runtime, row)
    return dg.AssetCheckResult(
        asset_key="datasets",
        check_name=LAKE_CHECK,
        passed=not report.problems,
        severity=dg.AssetCheckSeverity.ERROR,
        description=_describe_dataset_problems(report.problems),
        metadata={
            "export_id": row.id,
            "counted": format_count(report.sessions, "session"),
            "rows": dg.MetadataValue.json(report.rows),
            "hashed": (
                f"{report.rows_hashed:,} rows of {report.sessions_hashed:,} sessions, "
                f"in {report.files_hashed} of {format_count(report.files, 'file')}, "
                f"drawn with the seed {report.seed}"
            ),
            "problems": _format_dataset_problems(report.problems),
        },
    )


def _list_exports_to_check(
    runtime: Runtime, export_id: str | None, *, dataset: str | None, limit: int
) -> list[ExportRow]:
    """Return one completed export, or the newest of each dataset, newest first, as long as it has files.

    Raises:
        dg.Failure: if the export is unknown, not completed, or its files were deleted after their 30 days.
    """
    with runtime.database.transaction(write=False) as db:
        if export_id is not None:
            row = db.get(ExportRow, export_id)
            if row is None or row.status != "completed":
                raise dg.Failure(f"No export {export_id} is completed.", allow_retries=False)
            if row.expired_at is not None:
                raise dg.Failure(
                    f"The files of {row.id} were deleted after their 30 days: nothing is left to check.",
                    allow_retries=False,
                )
            return [row]
        rank = func.row_number().over(
            partition_by=(col(ExportRow.workspace_id), col(ExportRow.mode), col(ExportRow.dataset)),
            order_by=col(ExportRow.id).desc(),
        )
        completed = select(ExportRow.id, rank.label("rank")).where(
            ExportRow.status == "completed", col(ExportRow.expired_at).is_(None)
        )
        if dataset is not None:
            completed = completed.where(ExportRow.dataset == dataset)
        ranked = completed.subquery()
        newest = select(ranked.c.id).where(ranked.c.rank == 1).order_by(ranked.c.id.desc()).limit(limit)
        rows = db.exec(select(ExportRow).where(col(ExportRow.id).in_(newest)))
        return sorted(rows, key=lambda row: row.id, reverse=True)


def _join_check_results(
    name: str, rows: Sequence[ExportRow], results: Sequence[dg.AssetCheckResult]
) -> dg.AssetCheckResult:
    """Return one result for all exports that were checked."""
    if len(results) == 1:
        return results[0]
    records = [
        dg.TableRecord(
            {
                "dataset": row.dataset,
                "export_id": row.id,
                "result": "passed" if result.passed else "failed",
            }
        )
        for row, result in zip(rows, results, strict=True)
    ]
    problems = [
        f"{row.dataset}, {row.id}: {text}"
        for row, result in zip(rows, results, strict=True)
        for text in _read_dataset_check_problems(result)
    ]
    metadata: dict[str, Any] = {"exports": len(rows), "problems": _format_dataset_problems(problems)}
    if records:
        metadata["checked"] = dg.MetadataValue.table(records)
    return dg.AssetCheckResult(
        asset_key="datasets",
        check_name=name,
        passed=all(result.passed for result in results),
        severity=dg.AssetCheckSeverity.ERROR,
        description=_describe_dataset_problems(problems),
        metadata=metadata,
    )


def _read_dataset_check_problems(result: dg.AssetCheckResult) -> list[str]:
    if result.passed:
        return []
    lines = str(result.metadata["problems"].value).splitlines()
    return [line.removeprefix("- ") for line in lines]


def _describe_dataset_problems(problems: Sequence[str]) -> str | None:
    """Return the first problems, which the page of the check shows in place; None without problems."""
    return " ".join(problems[:_PROBLEMS_DESCRIBED]) or None


def _format_dataset_problems(problems: Sequence[str]) -> dg.MetadataValue[str]:
    if not problems:
        return dg.MetadataValue.text("none")  # the page shows Markdown only after a click
    return dg.MetadataValue.md("\n".join(f"- {text}" for text in problems))

"""What the Dagster UI shows of a dataset: figures, columns, first rows, a picture, the check of its files."""

import base64
import io
from typing import Any

import dagster as dg
import polars as pl

from recorder.exports.destinations import open_destination
from recorder.exports.schemas import EVENTS
from recorder.exports.serving import read_manifest
from recorder.exports.summary import DatasetSummary, summarize
from recorder.exports.verify import verify_manifest
from recorder.exports.wire import manifest_url
from recorder.models.export import ExportRow
from recorder.settings import Settings

CHECK = "files_match_manifest"
_COLOURS = {"success": "#2f7d4f", "error": "#b3403a", "abandoned": "#8a8577", "none": "#c9c5ba"}
_BLUE = "#35618e"


def describe(row: ExportRow, settings: Settings, *, with_rows: bool) -> dict[str, Any]:
    """Metadata of the materialization of a completed export.

    Args:
        with_rows: read the files for first rows and a picture; not where they are spoiled.
    """
    manifest = read_manifest(row, settings)
    events = [shard["path"] for shard in manifest["shards"] if shard["kind"] == "events" and with_rows]
    summary = summarize(open_destination(row, settings), events)
    figures = {
        "dagster/row_count": row.rows,
        "dagster/column_schema": _columns(),
        "export_id": row.id,
        "workflows": ", ".join(manifest["spec"]["workflow"]),
        "sessions": manifest["totals"]["sessions"],
        "frames": row.frames,
        "actions": row.actions,
        "shards": row.shards,
        "bytes": manifest["totals"]["bytes"],
        "row_set_sha256": row.row_set_sha256,
        "manifest_sha256": row.manifest_sha256,
        "manifest": dg.MetadataValue.url(manifest_url(row, settings) or ""),
        "spec": dg.MetadataValue.json(manifest["spec"]),
    }
    return figures if summary is None else figures | _shown(summary)


def check_files(row: ExportRow, settings: Settings) -> dg.AssetCheckResult:
    """Count and hash the files again and compare them with their manifest."""
    report = verify_manifest(open_destination(row, settings).address(""))
    return dg.AssetCheckResult(
        check_name=CHECK,
        passed=report.is_valid and report.manifest_sha256 == row.manifest_sha256,
        severity=dg.AssetCheckSeverity.ERROR,
        metadata={
            "export_id": row.id,
            "shards": report.shards,
            "rows": report.rows,
            "frames": report.frames,
            "row_set_sha256": report.row_set_sha256,
            "problems": dg.MetadataValue.md("\n".join(f"- {text}" for text in report.problems) or "none"),
        },
    )


def _shown(summary: DatasetSummary) -> dict[str, Any]:
    return {
        "preview": dg.MetadataValue.md(_markdown(summary.preview)),
        "picture": dg.MetadataValue.md(f"![what the dataset holds]({_picture(summary)})"),
    }


def _columns() -> dg.TableSchema:
    return dg.TableSchema(
        [
            dg.TableColumn(
                field.name, str(field.type), constraints=dg.TableColumnConstraints(nullable=field.nullable)
            )
            for field in EVENTS
        ]
    )


def _markdown(rows: pl.DataFrame) -> str:
    """A table that the UI renders; what a cell holds cannot break it."""
    lines = [" | ".join(rows.columns), " | ".join("---" for _ in rows.columns)]
    lines += [" | ".join(_cell(value) for value in row) for row in rows.iter_rows()]
    return "\n".join(f"| {line} |" for line in lines)


def _cell(value: object) -> str:
    return "" if value is None else str(value).replace("|", "\\|")


def _picture(summary: DatasetSummary) -> str:
    """A data address of a small PNG: outcomes, event types, lengths of sessions."""
    # Imported here: a sensor tick and the start of a run should not pay for it.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3), layout="constrained")
    outcomes, types, lengths = figure.subplots(1, 3)
    names = summary.outcomes["outcome"].to_list()
    colours = [_COLOURS.get(name, _BLUE) for name in names]
    _bars(outcomes, "Sessions by outcome", names, summary.outcomes["sessions"].to_list(), colours)
    names = summary.types["type"].to_list()
    _bars(types, "Events by type", names, summary.types["events"].to_list(), [_BLUE] * len(names))
    lengths.hist(summary.lengths_s.to_list(), bins=min(30, max(5, len(summary.lengths_s) // 4)), color=_BLUE)
    lengths.set_title("Length of sessions", fontsize=11)
    lengths.set_xlabel("seconds to the last event")
    lengths.set_ylabel("sessions")
    for axes in (outcomes, types, lengths):
        axes.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=96)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _bars(axes: Any, title: str, names: list[str], counts: list[int], colours: list[str]) -> None:
    """Bars with their figures beside them, so that no scale is needed."""
    bars = axes.barh(names, counts, color=colours)
    axes.bar_label(bars, fmt="{:,.0f}", padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.set_title(title, fontsize=11)

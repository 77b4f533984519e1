"""Metadata of a dataset's materialization, and progress in the log while its shards are written."""

import base64
import io
import json
import logging
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

import dagster as dg
import msgspec
import polars as pl

from recorder.datasets.formats import SPLITS
from recorder.datasets.manifest import Shard
from recorder.errors.panics import convert_panics
from recorder.exports.card import COLUMNS, escape_markdown_text
from recorder.exports.destinations import open_destination, resolve_export_location
from recorder.exports.executor import ShardExecutor
from recorder.exports.results.hosted_files import read_manifest
from recorder.exports.results.summary import DatasetSummary, summarize_dataset
from recorder.exports.writers import ShardTask, WrittenShard
from recorder.models.export import ExportRow
from recorder.settings import Settings

log = logging.getLogger("recorder.exports")

_SHARDS_SHOWN = 200
_COLOURS = {"success": "#2f7d4f", "error": "#b3403a", "abandoned": "#8a8577", "none": "#c9c5ba"}
_BLUE = "#35618e"
_FIRST_COLUMNS = ("workflow", "t_ms", "type", "target", "url", "title", "is_action", "outcome", "session_id")


def describe_completed_export(row: ExportRow, settings: Settings) -> dict[str, Any]:
    """Return the metadata of a completed export; its figures alone if its files cannot be read now."""
    try:
        with convert_panics():
            return make_dataset_metadata(row, settings)
    except Exception:
        log.exception("export %s is completed, but cannot be described", row.id)
        return {"export_id": row.id, "dagster/row_count": row.rows}


def make_dataset_metadata(row: ExportRow, settings: Settings) -> dict[str, Any]:
    """Return the metadata of a completed export's materialization.

    Preview and picture are read from the files, and left out where the files are damaged.
    """
    manifest = read_manifest(row, settings)
    totals = manifest["totals"]
    summary = _read_dataset_summary(row, settings, manifest)
    shown = {} if summary is None else _format_dataset_summary(summary)
    return {
        "how_to_load": dg.MetadataValue.md(_describe_dataset_loading(row, settings)),
        "dagster/row_count": row.rows,
        "sessions": totals["sessions"],
        "frames": row.frames,
        "size": _format_dataset_size(totals["bytes"]),
        **shown,
        "workflows": ", ".join(manifest["spec"]["workflow"]),
        "format": manifest["format"],
        "export_id": row.id,
        "actions": row.actions,
        "shards": row.shards,
        "shards_reused": sum(shard.get("reused_from") is not None for shard in manifest["shards"]),
        "files": _describe_dataset_files(manifest["shards"]),
        **_describe_dataset_columns(manifest["schema"]),
        "spec": dg.MetadataValue.json(manifest["spec"]),
        "parent": dg.MetadataValue.json(manifest.get("parent") or {}),
        "row_set_sha256": row.row_set_sha256,
        "manifest_sha256": row.manifest_sha256,
    }


def _describe_dataset_loading(row: ExportRow, settings: Settings) -> str:
    """Return the call that opens the export, as Markdown.

    A local export is opened by its folder, which needs no running service. Others are opened by an address of
    the API: text and no link, since it takes an API key, so that a browser would only get a 401. It is
    unsigned, since the metadata outlives any signature.
    """
    if row.destination["kind"] == "local":
        argument = json.dumps(resolve_export_location(row, settings).root, ensure_ascii=False)
    else:
        argument = f'"{settings.public_url}/v1/exports/{row.id}/manifest", key="YOUR_API_KEY"'
    return f"```python\nimport recorder\n\ndataset = recorder.open_export({argument})\n```"


def _format_dataset_size(size_bytes: int) -> str:
    """Return a size with its unit: `512 bytes`, `3.4 MB`."""
    if size_bytes < 1000:
        return f"{size_bytes} bytes"
    value = float(size_bytes)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 999.95:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:,.1f} TB"


def _read_dataset_summary(
    row: ExportRow, settings: Settings, manifest: dict[str, Any]
) -> DatasetSummary | None:
    listed = [shard for shard in manifest["shards"] if shard["kind"] != "frames"]
    try:
        with convert_panics():
            shards = msgspec.convert(listed, list[Shard])
            return summarize_dataset(open_destination(row, settings), shards, format=manifest["format"])
    except Exception as error:  # a damaged file can fail in any library; the checks say what is wrong
        log.warning("files of export %s cannot be summed up: %r", row.id, error)
        return None


def _format_dataset_summary(summary: DatasetSummary) -> dict[str, Any]:
    return {
        "preview": dg.MetadataValue.md(
            format_markdown_table(_order_dataset_preview_columns(summary.preview))
        ),
        "picture": dg.MetadataValue.md(f"![what the dataset holds]({_draw_dataset_picture(summary)})"),
    }


def _describe_dataset_columns(schema: dict[str, Any]) -> dict[str, dg.TableSchema]:
    """Return the columns of each kind of file; those of the first kind are the dataset's own."""
    tables = {
        kind: dg.TableSchema(
            [
                dg.TableColumn(
                    field["name"],
                    field["type"],
                    COLUMNS.get(field["name"]) or None,
                    constraints=dg.TableColumnConstraints(nullable=field["nullable"]),
                )
                for field in described["fields"]
            ]
        )
        for kind, described in schema.items()
    }
    first, *others = tables
    return {"dagster/column_schema": tables[first]} | {f"columns_of_{kind}": tables[kind] for kind in others}


_FILES = dg.TableSchema(
    columns=[
        *(dg.TableColumn(name) for name in ("path", "kind", "workflow")),
        *(dg.TableColumn(name, "int") for name in ("rows", "sessions", "size_bytes")),
        *(dg.TableColumn(name) for name in ("sha256", "reused_from")),
    ]
)


def _describe_dataset_files(shards: list[dict[str, Any]]) -> dg.TableMetadataValue:
    """Return a table of the files; the first ones if there are very many."""
    return dg.MetadataValue.table(
        [
            dg.TableRecord(
                {
                    **{name: shard[name] for name in _FILES_COLUMNS},
                    "reused_from": shard.get("reused_from") or "",
                }
            )
            for shard in shards[:_SHARDS_SHOWN]
        ],
        schema=_FILES,
    )


_FILES_COLUMNS = [column.name for column in _FILES.columns if column.name != "reused_from"]


def _order_dataset_preview_columns(rows: pl.DataFrame) -> pl.DataFrame:
    """Put the most useful columns of an event first; none is dropped."""
    first = [name for name in _FIRST_COLUMNS if name in rows.columns]
    return rows.select(*first, pl.exclude(first))


def format_markdown_table(rows: pl.DataFrame) -> str:
    """Return a Markdown table; the text of a cell cannot break it."""
    lines = [" | ".join(rows.columns), " | ".join("---" for _ in rows.columns)]
    lines += [" | ".join(_format_markdown_cell(value) for value in row) for row in rows.iter_rows()]
    return "\n".join(f"| {line} |" for line in lines)


def _format_markdown_cell(value: object) -> str:
    return "" if value is None else escape_markdown_text(str(value))


def _draw_dataset_picture(summary: DatasetSummary) -> str:
    """Return the data URL of a small PNG: outcomes, parts, event types, lengths of sessions."""
    # Imported here: a sensor tick and the start of a run should not pay for it.
    from matplotlib.figure import Figure

    # As wide as the page's dialog.
    figure = Figure(figsize=(11, 2.9), layout="constrained")
    outcomes, splits, types, lengths = figure.subplots(1, 4)
    names = summary.outcomes["outcome"].to_list()
    colours = [_COLOURS.get(name, _BLUE) for name in names]
    _draw_dataset_bars(
        outcomes, "Sessions by outcome", names, summary.outcomes["sessions"].to_list(), colours
    )
    parts = dict(summary.splits.select("split", "sessions").iter_rows())
    names = [name for name in SPLITS if name in parts]
    _draw_dataset_bars(
        splits, "Sessions by part", names, [parts[name] for name in names], [_BLUE] * len(names)
    )
    names = summary.types["type"].to_list()
    _draw_dataset_bars(
        types, "Events by type", names, summary.types["events"].to_list(), [_BLUE] * len(names)
    )
    lengths.hist(summary.lengths_s.to_list(), bins=min(30, max(5, len(summary.lengths_s) // 4)), color=_BLUE)
    lengths.set_title("Length of sessions", fontsize=11)
    lengths.set_xlabel("seconds to the last event")
    lengths.set_ylabel("sessions")
    for axes in (outcomes, splits, types, lengths):
        axes.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=96)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _draw_dataset_bars(
    axes: Any, title: str, names: list[str], counts: list[int], colours: list[str]
) -> None:
    """Draw bars with their figures beside them, so that no scale is needed."""
    bars = axes.barh(names, counts, color=colours)
    axes.bar_label(bars, fmt="{:,.0f}", padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.set_title(title, fontsize=11)


_EVERY_S = 5.0


class LoggedProgress:
    """Executor that logs the shards written so far, their size and rate, every few seconds."""

    def __init__(
        self, executor: ShardExecutor, say: Callable[[str], None], *, every_s: float = _EVERY_S
    ) -> None:
        self._executor = executor
        self._say = say
        self._every_s = every_s

    def run(self, tasks: Sequence[ShardTask]) -> Generator[WrittenShard, None, None]:
        """Write the shards and give each result as it comes."""
        total = sum(len(task.shards) for task in tasks)
        done = rows = size_bytes = 0
        began = logged = time.monotonic()
        if total:
            self._say(f"{total} shards to write")
        results = self._executor.run(tasks)
        try:
            for written in results:
                # First what is done with it: a shard counts once it is noted.
                yield written
                done, rows, size_bytes = done + 1, rows + written.rows, size_bytes + written.size_bytes
                now = time.monotonic()
                if done == total or now - logged >= self._every_s:
                    logged = now
                    pace = rows / max(now - began, 0.001)
                    self._say(
                        f"{done} of {total} shards written: {rows:,} rows, {size_bytes:,} bytes, "
                        f"{pace:,.0f} rows/s"
                    )
        finally:
            results.close()

"""Dataset card: README.md with figures, columns and one line per reading tool. Contract §5."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa

from recorder.datasets.formats import FORMATS, SPLITS, FileKind
from recorder.datasets.schemas import IMAGE, SCHEMAS, describe_dataset_schema
from recorder.exports.planning.lake_stats import LakeStats
from recorder.exports.planning.plan import Plan
from recorder.storage.lake import Lake
from recorder.storage.lake_reads import retry_lake_read
from recorder.tenant import Tenant

#: Description of each column on the card.
COLUMNS = {
    "__key__": "session and place of the frame within it",
    "actor_kind": "who worked: human, model or another kind; no id of an actor is exported",
    "bound_frame_id": "the frame that the client named, else the last one at or before the event",
    "content_type": "of the picture",
    "date": "day of sealing, UTC",
    "dhash": "perceptual hash of the picture, 64 bits",
    "event_id": "id of the event",
    "events.json": "the events that happened on the frame; may be empty",
    "frame_id": "of an event: as the client sent it; null where it named none",
    "frame_seq": "place of that frame within the session, from 0; null before the first frame",
    "has_action": "whether an actor acted on the frame",
    "height": "pixels",
    "image": "the picture; null once its bytes have expired",
    "is_action": "whether the event's type is an action of a user or an agent",
    "is_keyframe": "whether the screen changed materially",
    "jpg": "the picture of a JPEG frame",
    "json": "the frame; `image` is the name of the picture's file, null once its bytes have expired",
    "n_events": "events that happened on the frame",
    "outcome": "of the session, as it was tagged when the export was planned",
    "payload": "JSON text of the event's other members",
    "png": "the picture of a PNG frame",
    "seq": "position within the session, from 0",
    "session_id": "id of the session, which is one recorded run",
    "sha256": "of the picture's bytes",
    "split": "train, validation or test",
    "t_ms": "milliseconds since the start of the session",
    "ts": "instant, UTC",
    "type": "of the event",
    "webp": "the picture of a WebP frame",
    "width": "pixels",
    "workflow": "slug of the kind of work",
    "workspace": "id of the workspace that recorded the session",
}


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Figures over all sessions of a plan."""

    #: split, sessions, events, frames
    splits: list[tuple[str, int, int, int]]
    #: outcome or None, sessions; most frequent first, so are the next two
    outcomes: list[tuple[str | None, int]]
    #: kind of actor or None, sessions
    actor_kinds: list[tuple[str | None, int]]
    #: type, events; all events of the sessions, whether or not a frame holds them
    event_types: list[tuple[str, int]]
    #: From start to end, of all sessions together.
    duration_ms: int


def read_statistics(lake: Lake, tenant: Tenant, plan: Plan) -> Statistics:
    """Return the figures of a plan, from itself and from the newest lake: a purge removes older versions.

    Raises:
        Unavailable: if the lake does not answer.
    """
    sessions = plan.sessions
    stats = LakeStats(lake, tenant, {}, sessions)
    splits = sessions.group_by("split").agg(pl.len(), pl.col("rows").sum(), pl.col("frames").sum())
    return Statistics(
        splits=splits.sort("split").rows(),
        outcomes=_count_sessions_by_value(sessions, "outcome"),
        actor_kinds=_count_sessions_by_value(sessions, "actor_kind"),
        event_types=retry_lake_read(stats.event_types),
        duration_ms=retry_lake_read(stats.duration_ms),
    )


def _count_sessions_by_value(sessions: pl.DataFrame, column: str) -> list[tuple[str | None, int]]:
    counts = sessions.group_by(column).len()
    return counts.sort(["len", column], descending=[True, False]).rows()


def list_dataset_kinds(manifest: dict[str, Any]) -> list[FileKind]:
    """Return the kinds of which the dataset has files."""
    present = {shard["kind"] for shard in manifest["shards"]}
    return [kind for kind in FORMATS[manifest["format"]].kinds if kind in present]


def list_dataset_splits(manifest: dict[str, Any], kind: FileKind) -> list[str]:
    """Return the splits of which a kind has files; `train` alone where the request has no split."""
    present = {shard["split"] or "train" for shard in manifest["shards"] if shard["kind"] == kind}
    return [split for split in SPLITS if split in present]


def file_glob(manifest: dict[str, Any], kind: FileKind, split: str | None = None) -> str:
    """Return the glob of a kind's files, or of those that hold one split, relative to the card."""
    prefix = f"{kind}-{split}" if split and is_split(manifest) else kind
    return f"data/*/{prefix}-*.{FORMATS[manifest['format']].ending}"


def is_split(manifest: dict[str, Any]) -> bool:
    """Return whether the request divides rows into splits, each in files of its own."""
    rule = manifest["spec"]["split"]
    return bool(rule["validation"] or rule["test"])


def list_card_front_matter(manifest: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a card's YAML head; without its features a picture loads as a struct of bytes."""
    kinds = list_dataset_kinds(manifest)
    yield "---"
    if kinds:
        yield "configs:"
        for kind in kinds:
            yield f"- config_name: {kind}"
            yield f"  default: {str(kind == kinds[0]).lower()}"
            yield "  data_files:"
            for split in list_dataset_splits(manifest, kind):
                yield f"  - split: {split}"
                yield f"    path: {file_glob(manifest, kind, split)}"
        yield "dataset_info:"
        for kind in kinds:
            yield f"- config_name: {kind}"
            yield "  features:"
            fields = list(SCHEMAS[manifest["format"]][kind])
            if manifest["format"] == "jsonl":
                # Without a type its reader takes a day for an instant.
                fields = [field.with_type(pa.date32()) if field.name == "date" else field for field in fields]
            # The reader of archives adds the address of each.
            more = [pa.field("__url__", pa.string())] if kind == "samples" else []
            yield from _format_card_features([*fields, *more], "  ")
    yield "---"


def _format_card_features(fields: Iterable[pa.Field], margin: str) -> Iterator[str]:
    for field in fields:
        yield f"{margin}- name: {field.name}"
        if field.type == IMAGE or pa.types.is_binary(field.type):
            yield f"{margin}  dtype: image"
        elif pa.types.is_struct(field.type):
            yield f"{margin}  struct:"
            yield from _format_card_features(field.type, f"{margin}  ")
        elif pa.types.is_list(field.type):
            yield f"{margin}  list:"
            yield from _format_card_features(field.type.value_type, f"{margin}  ")
        else:
            yield f"{margin}  dtype: {'date32' if pa.types.is_date32(field.type) else field.type}"


_TYPES = 20
_KINDS: dict[FileKind, str] = {
    "events": "one row per event, by session and time",
    "frames": "one row per sampled screen frame, by session and time",
    "samples": "one sample per sampled screen frame: its row, its picture, the events that happened on it",
}
_MARKS = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_[]<>|#~&!$:@"})


def format_card_page(manifest: dict[str, Any], statistics: Statistics) -> Iterator[str]:
    """Yield the Markdown lines of a dataset card."""
    spec, totals = manifest["spec"], manifest["totals"]
    yield from (f"# {escape_markdown_text(manifest['tag'] or ' + '.join(spec['workflow']))}", "")
    workflows = escape_markdown_text(", ".join(spec["workflow"]))
    yield (
        f"Recordings of {workflows}: {totals['sessions']:,} sessions of "
        f"{_format_card_duration(statistics.duration_ms / 1000)} together, started before "
        f"{spec['filter']['until']}. Export `{manifest['export_id']}`, format `{manifest['format']}`."
    )
    yield from ("", *_list_card_files(manifest))
    yield from ("", "## Figures", "", *_list_card_figures(manifest, statistics))
    yield from ("", "## Parts", "", *_describe_splits(manifest))
    yield from ("", "## Personal data", "", *_describe_card_masking(manifest))
    yield from ("", "## Columns", "", *_list_card_columns(manifest))
    yield from ("", "## What was asked for", "", *_format_card_request(spec))


def _list_card_files(manifest: dict[str, Any]) -> Iterator[str]:
    kinds = list_dataset_kinds(manifest)
    for kind in kinds:
        yield f"- `{file_glob(manifest, kind)}`: {_KINDS[kind]}"
    yield "- `manifest.json`: every file with its size, rows and SHA-256; `recorder verify .` checks them"
    yield from ("", f"Row set `{manifest['row_set_sha256']}`.")
    if not kinds:
        yield from ("", "No session has a row that was asked for: there are no data files.")
        return
    yield from ("", "```python", *_list_reading_tools(manifest, kinds), "```")


def _list_reading_tools(manifest: dict[str, Any], kinds: list[FileKind]) -> Iterator[str]:
    """Yield a line for each tool that reads the format, to run in the folder of the card."""
    kind = kinds[0]
    files = file_glob(manifest, kind)
    match manifest["format"]:
        case "parquet":
            yield f'import polars; polars.scan_parquet("{files}")'
            yield f'import duckdb; duckdb.read_parquet("{files}")'
            yield f'import glob, pyarrow.dataset; pyarrow.dataset.dataset(sorted(glob.glob("{files}")))'
        case "jsonl":
            yield f'import polars; polars.scan_ndjson("{files}", infer_schema_length=None)'
            yield f'import duckdb; duckdb.read_json("{files}")'
        case "arrow":
            yield f'import polars; polars.scan_ipc("{files}")'
            yield f'import glob, pyarrow.dataset as d; d.dataset(sorted(glob.glob("{files}")), format="ipc")'
        case "webdataset":
            yield f'import glob, webdataset as w; w.WebDataset(glob.glob("{files}"), shardshuffle=False)'
    # `datasets` names its cache after the folder, and `.` has no name.
    split = list_dataset_splits(manifest, kind)[0]
    yield f'import os, datasets; datasets.load_dataset(os.getcwd(), "{kind}", split="{split}")'
    yield 'import recorder; recorder.open_export(".")'


def _format_card_duration(seconds: float) -> str:
    for unit, length in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.1f} seconds"


def _list_card_figures(manifest: dict[str, Any], statistics: Statistics) -> Iterator[str]:
    totals = manifest["totals"]
    is_samples = manifest["format"] == "webdataset"
    rows = "samples" if is_samples else "events"
    files = "file" if totals["shards"] == 1 else "files"
    yield (
        f"{totals['rows']:,} {rows}, {totals['frames']:,} frames, {totals['actions']:,} actions, "
        f"{totals['bytes']:,} bytes in {totals['shards']:,} {files}."
    )
    if is_samples:
        splits = [(split, sessions, frames) for split, sessions, _, frames in statistics.splits]
        yield from ("", *_format_markdown_table(("part", "sessions", "samples"), splits))
    else:
        yield from ("", *_format_markdown_table(("part", "sessions", "events", "frames"), statistics.splits))
    yield from ("", *_format_markdown_table(("outcome", "sessions"), _name_counts(statistics.outcomes)))
    yield from ("", *_format_markdown_table(("actor", "sessions"), _name_counts(statistics.actor_kinds)))
    types = statistics.event_types
    shown = [*_name_counts([*types[:_TYPES]]), *_count_other_types(types[_TYPES:])]
    yield from ("", *_format_markdown_table(("event type", "events"), shown))
    if is_samples:
        yield from ("", "Event types are of the whole sessions; an archive holds those on sampled frames.")


def _count_other_types(types: list[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    if types:
        yield f"{len(types)} other types", sum(count for _, count in types)


def _describe_splits(manifest: dict[str, Any]) -> Iterator[str]:
    rule = manifest["spec"]["split"]
    if not is_split(manifest):
        yield "Every row is of the part `train`; the request has no `split`."
        return
    validation, test = f"{rule['validation']:.4g}", f"{rule['test']:.4g}"
    yield (
        f"The column `split` deals every {rule['by']} to `train`, `validation` (a share of {validation}) or "
        f"`test` ({test}), by a hash of its id: the same part in every export with these shares, "
        "whatever else is in it. Shares are of the hash's range; of few they come out unevenly."
    )
    yield ""
    if rule["by"] == "actor":
        yield "No actor is in two parts. A session without an actor is dealt by its own id."
    else:
        yield "No session is in two parts. An actor may be: export with `split.by` = `actor` to prevent it."
    yield ""
    yield (
        "Each file holds one part, which its name gives. Hugging Face `datasets` loads the parts by their "
        'names, and all of them with `split="train+validation+test"`.'
    )


def _describe_card_masking(manifest: dict[str, Any]) -> Iterator[str]:
    yield (
        "Texts were masked when the recordings came in, by the rules that workspace and workflow had then; "
        "the export changes nothing. What no rule found stands in the rows as it was sent. No column "
        "holds the id of an actor or of a data subject."
    )
    if manifest["format"] == "jsonl":
        yield from ("", "JSONL holds no pictures.")
    else:
        yield from ("", "Pictures are as they were sent: the service does not blur them.")


def _list_card_columns(manifest: dict[str, Any]) -> Iterator[str]:
    for kind in list_dataset_kinds(manifest):
        rows = _describe_card_fields(describe_dataset_schema(kind, manifest["format"]), "")
        yield from (f"`{kind}`:", "", *_format_markdown_table(("column", "type", "null", ""), rows), "")


def _describe_card_fields(
    fields: Iterable[dict[str, Any]], prefix: str
) -> Iterator[tuple[str, str, str, str]]:
    for field in fields:
        name = f"{prefix}{field['name']}"
        yield name, field["type"], "yes" if field["nullable"] else "", COLUMNS.get(field["name"], "")
        if "fields" in field and field["name"] != "image":
            yield from _describe_card_fields(field["fields"], f"{name} › ")


def _format_card_request(spec: dict[str, Any]) -> Iterator[str]:
    filters = dict(spec["filter"])
    if "exclude_session_ids" in filters:
        filters["exclude_session_ids"] = f"{len(filters['exclude_session_ids'])} sessions"
    # In ASCII: no line can end the block, and no mark can reverse the direction of the text.
    yield from ("```json", json.dumps({**spec, "filter": filters}, indent=2), "```")


def _format_markdown_table(head: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(map(_format_markdown_cell, row))} |"


def _format_markdown_cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _name_counts(counts: list[tuple[str | None, int]]) -> list[tuple[str, int]]:
    """Return counts of values, with the value as Markdown text; `none` for a missing value."""
    return [("none" if name is None else escape_markdown_text(name), count) for name, count in counts]


def escape_markdown_text(text: str) -> str:
    """Return text that Markdown shows unchanged: one line, without marks or links."""
    return "".join(mark if mark.isprintable() else " " for mark in text).translate(_MARKS)


def dataset_card(manifest: dict[str, Any], statistics: Statistics) -> str:
    """Return the card of a dataset; text of clients, such as the tag, is escaped."""
    return "\n".join([*list_card_front_matter(manifest), "", *format_card_page(manifest, statistics), ""])

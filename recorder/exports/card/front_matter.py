"""The head of the card, in YAML: which files are which configuration, and of what types. Design §1.

Nothing that a client wrote stands in it: kinds, columns and types are ours.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from recorder.exports.formats import FORMATS
from recorder.exports.names import FileKind
from recorder.exports.schemas import IMAGE, SCHEMAS

#: Name of the split where files hold rows of several parts: it promises none, the column `split` has them.
_ALL = "full"


def kinds_of(manifest: dict[str, Any]) -> list[FileKind]:
    """The kinds of which the dataset has files."""
    found = {shard["kind"] for shard in manifest["shards"]}
    return [kind for kind in FORMATS[manifest["format"]].kinds if kind in found]


def split_name(manifest: dict[str, Any]) -> str:
    """Return the name under which Hugging Face `datasets` loads all rows: `train` if they are that part."""
    rule = manifest["spec"]["split"]
    return "train" if not rule["validation"] and not rule["test"] else _ALL


def pattern(manifest: dict[str, Any], kind: FileKind) -> str:
    """The paths of a kind's files, relative to the card."""
    return f"data/*/{kind}-*.{FORMATS[manifest['format']].ending}"


def front_matter(manifest: dict[str, Any]) -> Iterator[str]:
    """The lines of the head.

    Features are spelled out, since without them a picture loads as a struct of bytes.
    """
    kinds = kinds_of(manifest)
    yield "---"
    if kinds:
        yield "configs:"
        for kind in kinds:
            yield f"- config_name: {kind}"
            yield f"  default: {str(kind == kinds[0]).lower()}"
            yield "  data_files:"
            yield f"  - split: {split_name(manifest)}"
            yield f"    path: {pattern(manifest, kind)}"
        yield "dataset_info:"
        for kind in kinds:
            yield f"- config_name: {kind}"
            yield "  features:"
            fields = list(SCHEMAS[manifest["format"]][kind])
            if manifest["format"] == "jsonl":
                # Its reader takes a day for an instant where it is not told that it is a day.
                fields = [one.with_type(pa.date32()) if one.name == "date" else one for one in fields]
            # The reader of archives adds the address of each.
            more = [pa.field("__url__", pa.string())] if kind == "samples" else []
            yield from _features([*fields, *more], "  ")
    yield "---"


def _features(fields: Iterable[pa.Field], margin: str) -> Iterator[str]:
    for field in fields:
        yield f"{margin}- name: {field.name}"
        if field.type == IMAGE or pa.types.is_binary(field.type):
            yield f"{margin}  dtype: image"
        elif pa.types.is_struct(field.type):
            yield f"{margin}  struct:"
            yield from _features(field.type, f"{margin}  ")
        elif pa.types.is_list(field.type):
            yield f"{margin}  list:"
            yield from _features(field.type.value_type, f"{margin}  ")
        else:
            yield f"{margin}  dtype: {'date32' if pa.types.is_date32(field.type) else field.type}"

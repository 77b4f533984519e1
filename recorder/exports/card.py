"""The dataset card: README.md with the configs that Hugging Face `load_dataset` reads. Design §1."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from recorder.exports.schemas import SCHEMAS
from recorder.models.export import ShardKind

_KINDS: tuple[ShardKind, ...] = ("events", "frames")
_WORDS: dict[ShardKind, str] = {
    "events": "one row per event, by session and time",
    "frames": "one row per sampled screen frame with its picture, by session and time",
}


def dataset_card(manifest: dict[str, Any]) -> str:
    """The card of a dataset.

    Features are spelled out, since without them a picture loads as a struct of bytes.
    """
    kinds = [kind for kind in _KINDS if any(shard["kind"] == kind for shard in manifest["shards"])]
    return "\n".join([*_front_matter(kinds), "", *_text(manifest, kinds), ""])


def _front_matter(kinds: list[ShardKind]) -> Iterator[str]:
    yield "---"
    if kinds:
        yield "configs:"
        for kind in kinds:
            yield from (f"- config_name: {kind}", f"  default: {str(kind == kinds[0]).lower()}")
            yield from ("  data_files:", "  - split: train", f"    path: data/*/{kind}-*.parquet")
        yield "dataset_info:"
        for kind in kinds:
            yield from (f"- config_name: {kind}", "  features:")
            for field in SCHEMAS[kind]:
                yield from (f"  - name: {field.name}", f"    dtype: {_feature(field.type)}")
    yield "---"


def _feature(kind: pa.DataType) -> str:
    return "image" if pa.types.is_struct(kind) else str(kind)


def _text(manifest: dict[str, Any], kinds: list[ShardKind]) -> Iterator[str]:
    spec, totals = manifest["spec"], manifest["totals"]
    yield f"# {manifest['tag'] or ' + '.join(spec['workflow'])}"
    yield ""
    yield (
        f"{totals['sessions']} sessions, {totals['rows']} events ({totals['actions']} of them actions), "
        f"{totals['frames']} frames of the workflows {', '.join(spec['workflow'])}, recorded until "
        f"{spec['filter']['until']}. Export `{manifest['export_id']}`."
    )
    yield ""
    for kind in kinds:
        yield f"- `{kind}`: {_WORDS[kind]}"
    if kinds:
        yield from ("", "```python", "import polars as pl")
        yield f'pl.scan_parquet("data/*/{kinds[0]}-*.parquet", hive_partitioning=True)'
        yield from ("", "from datasets import load_dataset", f'load_dataset(".", "{kinds[0]}")', "```")
    yield from (
        "",
        f"`manifest.json` lists every file with its SHA-256; row set `{manifest['row_set_sha256']}`.",
    )

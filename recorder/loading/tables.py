"""Files of a dataset as tables: polars, pyarrow, Hugging Face `datasets`, WebDataset.

Whatever the format, equal rows come as equal values: what JSON spells as text is turned back.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads

from recorder.loading.errors import LibraryMissing, NotInDataset
from recorder.loading.rows import text_schema, typed_columns

_NO_TABLE = (
    "A WebDataset holds samples, which are no table: load them with .webdataset(), .hf() or .torch(), or "
    "export as parquet or arrow."
)


def scan(paths: list[Path], format: str, fields: dict[str, str], split: str | None) -> pl.LazyFrame:
    """The rows of some files, lazily, in the order of the files.

    Args:
        fields: type of each column, as the manifest names them.

    Raises:
        NotInDataset: if they are archives.
    """
    match format:
        case "parquet" if paths:
            rows = pl.scan_parquet(paths, hive_partitioning=False)
        case "arrow" if paths:
            rows = pl.scan_ipc(paths, hive_partitioning=False)
        case "jsonl" if paths:
            rows = pl.scan_ndjson(paths, schema=text_schema(fields)).with_columns(typed_columns(fields))
        case "webdataset":
            raise NotInDataset(_NO_TABLE)
        case _:
            rows = pl.LazyFrame(schema=_empty_schema(fields))
    return rows if split is None else rows.filter(pl.col("split") == split)


def arrow_dataset(
    paths: list[Path], format: str, fields: dict[str, str], split: str | None
) -> pads.Dataset | pa.RecordBatchReader:
    """The same as a pyarrow dataset; of JSONL as a reader of record batches, which is read once.

    Raises:
        NotInDataset: if they are archives.
    """
    if format in ("jsonl", "webdataset") or not paths:
        return _reader(scan(paths, format, fields, split))
    found = pads.dataset([str(path) for path in paths], format="ipc" if format == "arrow" else format)
    return found if split is None else found.filter(pads.field("split") == split)


def hugging_face(
    paths: list[Path],
    format: str,
    fields: list[dict[str, Any]],
    split: str | None,
    *,
    streaming: bool,
    cache_dir: Path | None,
) -> Any:
    """The same as a `datasets.Dataset`, or an `IterableDataset` where it streams; pictures are `Image`s.

    Args:
        fields: of a row, as the manifest describes them.

    Raises:
        LibraryMissing: if `datasets` is not installed.
        NotInDataset: if there are no files.
    """
    try:
        import datasets
    except ImportError as error:
        raise LibraryMissing("datasets") from error
    if not paths:
        raise NotInDataset("This dataset has no such rows, and Hugging Face datasets loads no empty ones.")
    features = {field["name"]: _feature(field, format) for field in fields}
    if format == "webdataset":
        features["__url__"] = datasets.Value("string")  # which its reader adds
    files = [str(path) for path in paths]
    rows = datasets.load_dataset(
        "json" if format == "jsonl" else format,
        data_files={"full": files},
        split="full",
        features=datasets.Features(features),
        streaming=streaming,
        cache_dir=str(cache_dir) if cache_dir else None,
    )
    if format == "jsonl" and "date" in features:
        # It was read as a day, since its readers guess; here it is the text that it is everywhere else.
        rows = rows.cast_column("date", datasets.Value("string"))
    if split is None:
        return rows
    if format == "webdataset":
        return rows.filter(lambda frame: frame["split"] == split, input_columns=["json"])
    return rows.filter(lambda parts: [part == split for part in parts], input_columns=["split"], batched=True)


def web_dataset(paths: list[Path], split: str | None, options: dict[str, Any]) -> Any:
    """Archives as a `webdataset.WebDataset`: bytes under `json`, `events.json` and `jpg`, `png` or `webp`.

    Raises:
        LibraryMissing: if `webdataset` is not installed.
    """
    try:
        import webdataset
    except ImportError as error:
        raise LibraryMissing("webdataset") from error
    pipeline = webdataset.WebDataset(
        [str(path) for path in paths], **({"shardshuffle": False, "empty_check": False} | options)
    )
    if split is None:
        return pipeline
    return pipeline.select(lambda sample: orjson.loads(sample["json"])["split"] == split)


def _reader(rows: pl.LazyFrame) -> pa.RecordBatchReader:
    schema = rows.limit(0).collect().to_arrow().schema

    def batches() -> Iterator[pa.RecordBatch]:
        for part in rows.collect_batches(maintain_order=True):
            yield from part.to_arrow().cast(schema).to_batches()

    return pa.RecordBatchReader.from_batches(schema, batches())


def _feature(field: dict[str, Any], format: str) -> Any:
    """What a field of the manifest is called there."""
    import datasets

    if field["type"] == "binary" or (field["name"] == "image" and format != "webdataset"):
        return datasets.Image()
    if field["type"] == "struct":
        return {member["name"]: _feature(member, format) for member in field["fields"]}
    if field["type"] == "list<struct>":
        return datasets.List({member["name"]: _feature(member, format) for member in field["fields"]})
    return datasets.Value("date32" if format == "jsonl" and field["name"] == "date" else field["type"])


def _empty_schema(fields: dict[str, str]) -> dict[str, pl.DataType]:
    typed = pl.DataFrame(schema=text_schema(fields)).with_columns(typed_columns(fields)).schema
    return dict(typed)

"""Files of a dataset as tables: polars, pyarrow, Hugging Face `datasets`, WebDataset.

Equal rows give equal values in every format: texts that JSON uses for instants and hashes are converted.
"""

from collections.abc import Iterator
from glob import escape
from os.path import expandvars
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import polars as pl
import pyarrow as pa

from recorder.datasets import arrow, jsonl, parquet
from recorder.datasets.errors import LibraryMissing, NotInDataset
from recorder.datasets.row_values import SPLIT

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset

#: Formats whose files are tables.
TABLE_FORMATS = {"parquet": parquet, "arrow": arrow, "jsonl": jsonl}
_NO_TABLE = (
    "A WebDataset holds samples, which are no table: load them with .webdataset(), .hf() or .torch(), or "
    "export as parquet or arrow."
)


def scan_dataset_tables(
    paths: list[Path], format: str, fields: dict[str, str], split: str | None = None
) -> pl.LazyFrame:
    """Return the rows of some files, lazily, in the order of the files.

    Args:
        paths: files to read.
        format: their format.
        fields: type of each column, as the manifest names them.
        split: the split to take; None takes all.

    Raises:
        NotInDataset: if the files are archives.
    """
    if format not in TABLE_FORMATS:
        raise NotInDataset(_NO_TABLE)
    rows = TABLE_FORMATS[format].scan(paths, fields) if paths else jsonl.make_empty_jsonl_rows(fields)
    return rows if split is None else rows.filter(pl.col(SPLIT) == split)


def open_tables_with_pyarrow(
    paths: list[Path], format: str, fields: dict[str, str], split: str | None
) -> "Dataset | pa.RecordBatchReader":
    """Return some files as a pyarrow dataset; JSONL as a reader of record batches, which is read once.

    Raises:
        NotInDataset: if the files are archives.
    """
    if format in ("jsonl", "webdataset") or not paths:
        return _open_dataset_batch_reader(scan_dataset_tables(paths, format, fields, split))
    import pyarrow.dataset as pads  # with pandas: a fifth of a second, in each process of a Dagster run

    files = pads.dataset([str(path) for path in paths], format="ipc" if format == "arrow" else format)
    return files if split is None else files.filter(pads.field(SPLIT) == split)


def load_hugging_face(
    paths: list[Path],
    format: str,
    fields: list[dict[str, Any]],
    split: str | None,
    *,
    streaming: bool,
    cache_dir: Path | None,
) -> Any:
    """Return some files as a `datasets.Dataset`, or an `IterableDataset` if streaming; pictures are `Image`s.

    Args:
        paths: files to read.
        format: their format.
        fields: fields of a row, as the manifest describes them.
        split: the split to take; None takes all.
        streaming: whether rows are read when they are used.
        cache_dir: folder for the copy that `datasets` makes.

    Raises:
        LibraryMissing: if `datasets` is not installed.
        NotInDataset: if there are no files, or the library takes their path for something else.
    """
    try:
        import datasets
    except ImportError as error:
        raise LibraryMissing("datasets") from error
    if not paths:
        raise NotInDataset("This dataset has no such rows, and Hugging Face datasets loads no empty ones.")
    for path in map(str, paths):
        # It reads "::" as a chain of addresses, and replaces variables of the environment.
        if "::" in path or expandvars(path) != path:
            raise NotInDataset(_format_path_refusal("Hugging Face datasets", path))
    features = {field["name"]: _make_hugging_face_feature(field, format) for field in fields}
    if format == "webdataset":
        features["__url__"] = datasets.Value("string")  # which its reader adds
    rows = datasets.load_dataset(
        "json" if format == "jsonl" else format,
        data_files={"full": [escape(str(path)) for path in paths]},
        split="full",
        features=datasets.Features(features),
        streaming=streaming,
        cache_dir=str(cache_dir) if cache_dir else None,
    )
    if format == "jsonl":
        rows = _restore_jsonl_values(rows, features)
    if split is None:
        return rows
    if format == "webdataset":
        return rows.filter(lambda frame: frame[SPLIT] == split, input_columns=["json"])
    return rows.filter(lambda parts: [part == split for part in parts], input_columns=[SPLIT], batched=True)


def _restore_jsonl_values(rows: Any, features: dict[str, Any]) -> Any:
    """Return rows of JSON lines with the values that the other formats have."""
    import datasets

    # The reader guesses a day; in all other formats the column is text.
    texts = {"date": datasets.Value("string")} if "date" in features else {}
    hashes = {"dhash": datasets.Value("uint64")} if "dhash" in features else {}
    restored = features | texts | hashes | {"ts": datasets.Value("timestamp[us, tz=UTC]")}
    tables = rows.with_format("arrow")
    return tables.map(_restore_jsonl_table, batched=True, features=datasets.Features(restored)).with_format(
        None
    )


def _restore_jsonl_table(table: pa.Table) -> pa.Table:
    columns = {"ts": table["ts"].cast(pa.timestamp("us", tz="UTC"))}
    if "date" in table.column_names:
        columns["date"] = table["date"].cast(pa.string())
    if "dhash" in table.column_names:
        hashes = [None if text is None else int(text, 16) for text in table["dhash"].to_pylist()]
        columns["dhash"] = pa.array(hashes, pa.uint64())
    for name, column in columns.items():
        table = table.set_column(table.column_names.index(name), name, column)
    return table


def open_files_with_webdataset(paths: list[Path], split: str | None, options: dict[str, Any]) -> Any:
    """Return archives as a `webdataset.WebDataset` whose samples are undecoded members.

    Raises:
        LibraryMissing: if `webdataset` is not installed.
        NotInDataset: if the library takes the path of a file for something else.
    """
    try:
        import webdataset
    except ImportError as error:
        raise LibraryMissing("webdataset") from error
    for path in map(str, paths):
        # It parses a path as an address, and opens the part before these characters.
        if "?" in path or "#" in path:
            raise NotInDataset(_format_path_refusal("webdataset", path))
    pipeline = webdataset.WebDataset(
        [str(path) for path in paths], **({"shardshuffle": False, "empty_check": False} | options)
    )
    if split is None:
        return pipeline
    return pipeline.select(lambda sample: orjson.loads(sample["json"])[SPLIT] == split)


def _format_path_refusal(library: str, path: str) -> str:
    return (
        f"{library} does not open the path {path}, because of the characters in the name of a folder. Rename "
        "the folder, or read the dataset with torch()."
    )


def _open_dataset_batch_reader(rows: pl.LazyFrame) -> pa.RecordBatchReader:
    schema = rows.limit(0).collect().to_arrow().schema

    def read_batches() -> Iterator[pa.RecordBatch]:
        for part in rows.collect_batches(maintain_order=True):
            yield from part.to_arrow().cast(schema).to_batches()

    return pa.RecordBatchReader.from_batches(schema, read_batches())


def _make_hugging_face_feature(field: dict[str, Any], format: str) -> Any:
    """Return the feature of Hugging Face `datasets` for a field of the manifest."""
    import datasets

    if field["type"] == "binary" or (field["name"] == "image" and format != "webdataset"):
        return datasets.Image()
    if field["type"] == "struct":
        return {member["name"]: _make_hugging_face_feature(member, format) for member in field["fields"]}
    if field["type"] == "list<struct>":
        return datasets.List(
            {member["name"]: _make_hugging_face_feature(member, format) for member in field["fields"]}
        )
    return datasets.Value("date32" if format == "jsonl" and field["name"] == "date" else field["type"])

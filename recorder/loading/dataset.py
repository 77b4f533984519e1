"""Opened export: its manifest, and its rows in the form that a tool reads. Spec §2.5."""

import tempfile
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import polars as pl

from recorder.datasets import tables
from recorder.datasets.errors import NotInDataset
from recorder.datasets.formats import FORMATS, MANIFEST, SPLITS
from recorder.datasets.manifest import Shard, format_manifest, parse_manifest_document
from recorder.datasets.sources import DatasetSource, open_dataset_source
from recorder.exports.verify import VerifyReport, verify_manifest
from recorder.exports.verify.manifest_check import report_unlisted_files
from recorder.loading.cache import Cache
from recorder.loading.download import download
from recorder.loading.row_reader import DatasetRow, RowFiles
from recorder.loading.training_stream import WINDOW, RowStream


def open_export(
    source: str | Path,
    *,
    key: str | None = None,
    cache: str | Path | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> "Dataset":
    """Open a finished export: read and check its manifest; its files are fetched when they are used.

    Args:
        source: path of a manifest or its folder, any address that fsspec knows (`s3://…`, `gs://…`, `az://…`),
            a signed `manifest_url`, or the address `…/v1/exports/{id}/manifest` with a key.
        key: API key; with it expired addresses are renewed for as long as the files exist.
        cache: folder for fetched files; by default `~/.cache/recorder`.
        storage_options: options of fsspec for a private store, such as credentials.

    Raises:
        TypeError: if the source is neither a text nor a Path.
        ManifestUnreadable: if there is no manifest.
        ManifestRefused: if this release does not know its version, or it leads outside its own folder.
        ApiError, Unreachable: if the service refuses or does not answer.
    """
    if not isinstance(source, str | PathLike):
        raise TypeError(
            "open_export takes the path of a manifest or of its folder, or the address of an export, "
            f"not a value of type {type(source).__name__}."
        )
    return Dataset(open_dataset_source(str(source), key=key, storage_options=storage_options), Cache(cache))


class Dataset:
    """An opened export. The argument `split` selects `train`, `validation` or `test`."""

    def __init__(self, source: DatasetSource, cache: Cache) -> None:
        """Read the manifest of a source; use `open_export`."""
        self._source, self._cache = source, cache
        self.manifest, self._shards = parse_manifest_document(source.read_manifest())

    def __repr__(self) -> str:
        return (
            f"Dataset({self.manifest['export_id']!r}, {self.format}, {self.sessions} sessions, "
            f"{self.rows} rows, {self.frames} frames)"
        )

    @property
    def format(self) -> str:
        """Format of the files: `parquet`, `jsonl`, `arrow` or `webdataset`."""
        return str(self.manifest["format"])

    @property
    def spec(self) -> dict[str, Any]:
        """Resolved request: workflow, filter, frame_sampling, split."""
        return dict(self.manifest["spec"])

    @property
    def sessions(self) -> int:
        """Number of sessions."""
        return int(self.manifest["totals"]["sessions"])

    @property
    def rows(self) -> int:
        """Number of events; of samples in a WebDataset."""
        return int(self.manifest["totals"]["rows"])

    @property
    def frames(self) -> int:
        """Number of sampled frames."""
        return int(self.manifest["totals"]["frames"])

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of rows: `events` and `frames`, or `samples`."""
        return tuple(FORMATS[self.manifest["format"]].kinds)

    def shards(self, kind: str | None = None) -> list[Shard]:
        """Return the files; of one kind, where one is given.

        Raises:
            NotInDataset: if the dataset has no such kind.
        """
        return list(self._shards) if kind is None else self._list_shards(self._require_kind(kind))

    def polars(self, kind: str | None = None, *, split: str | None = None) -> pl.LazyFrame:
        """Return the rows of a kind (default `events`) as a polars LazyFrame, in the order of the files.

        Raises:
            NotInDataset: if the dataset has no such kind, or has samples, which are no table.
        """
        kind = self._require_kind(kind)
        return tables.scan_dataset_tables(
            self._fetch_files(kind, split), self.format, self._read_field_types(kind), split
        )

    def arrow(self, kind: str | None = None, *, split: str | None = None) -> Any:
        """Return the rows as a pyarrow Dataset; of JSONL as a RecordBatchReader, which is read once.

        Raises:
            NotInDataset: if the dataset has no such kind, or has samples, which are no table.
        """
        kind = self._require_kind(kind)
        return tables.open_tables_with_pyarrow(
            self._fetch_files(kind, split), self.format, self._read_field_types(kind), split
        )

    def hf(
        self,
        kind: str | None = None,
        *,
        split: str | None = None,
        streaming: bool = False,
        cache_dir: str | Path | None = None,
    ) -> Any:
        """Return the rows as a Hugging Face `Dataset`, or an `IterableDataset` if streaming.

        Args:
            kind: kind of rows, default `events` or `samples`.
            split: the split to take; None takes all.
            streaming: whether rows are read when they are used.
            cache_dir: folder for the copy that `datasets` makes; by default its own.

        Raises:
            LibraryMissing: if `datasets` is not installed.
            NotInDataset: if the dataset has no such kind, or no rows of it.
        """
        kind = self._require_kind(kind)
        return tables.load_hugging_face(
            self._fetch_files(kind, split),
            self.format,
            self.manifest["schema"][kind]["fields"],
            split,
            streaming=streaming,
            cache_dir=Path(cache_dir) if cache_dir else None,
        )

    def webdataset(self, *, split: str | None = None, **options: Any) -> Any:
        """Return the samples as a `webdataset.WebDataset` pipeline of undecoded members.

        Args:
            split: the split to take; None takes all.
            options: arguments for `WebDataset`, such as `shardshuffle` or `nodesplitter`.

        Raises:
            LibraryMissing: if `webdataset` is not installed.
            NotInDataset: if the dataset has another format.
        """
        if self.format != "webdataset":
            raise NotInDataset(
                f"webdataset() takes an export of format webdataset, and this one has format {self.format}. "
                "Create another export, or read this one with polars(), arrow(), hf() or torch()."
            )
        paths = self._fetch_files("samples", split)
        return tables.open_files_with_webdataset(paths, split, options)

    def torch(
        self,
        kind: str | None = None,
        *,
        split: str | None = None,
        columns: list[str] | None = None,
        transform: Callable[[DatasetRow], Any] | None = None,
        shuffle: bool = False,
        seed: int = 0,
        window: int = WINDOW,
        rank: int | None = None,
        world_size: int | None = None,
        drop_uneven: bool = False,
    ) -> RowStream:
        """Return rows one by one for training: an `IterableDataset` if torch is installed, else an iterable.

        Every row is read once an epoch, by one worker of one rank. Rows are dicts; frames and samples have
        `image` (`{bytes, path}`, or null), samples have `events` too.

        Args:
            kind: kind of rows, default `events` or `samples`.
            split: the split to take; None takes all.
            columns: members that a row has; None for all.
            transform: function applied to each row in the workers, such as decoding a picture.
            shuffle: put the files in another order each epoch, and shuffle rows within windows.
            seed: seed of the shuffling.
            window: number of rows that are held and shuffled together.
            rank: number of this process among those that train together; by default that of
                torch.distributed, where it runs.
            world_size: number of these processes; by default as `rank`.
            drop_uneven: leave out the last rows, fewer than there are ranks, so that all get equally many.

        Raises:
            NotInDataset: if the dataset has no such kind.
        """
        kind = self._require_kind(kind)
        files = RowFiles.open(self._source, self._cache, kind, self._list_shards(kind, split), split)
        try:
            from recorder.loading.torch_stream import TorchRowStream, read_distributed_rank

            stream: type[RowStream] = TorchRowStream
            default_rank, default_size = read_distributed_rank()
        except ImportError:
            stream, default_rank, default_size = RowStream, 0, 1
        return stream(
            files,
            columns=columns,
            transform=transform,
            shuffle=shuffle,
            seed=seed,
            window=window,
            rank=default_rank if rank is None else rank,
            world_size=default_size if world_size is None else world_size,
            drop_uneven=drop_uneven,
        )

    def verify(self, *, on_progress: Callable[[int, int], None] | None = None) -> VerifyReport:
        """Compare the files with the manifest; files that are elsewhere are fetched for it.

        Args:
            on_progress: called with the bytes checked so far and the bytes in all.
        """
        if self._source.folder is not None:
            return verify_manifest(self._source.folder, on_progress=on_progress)
        self._cache.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(prefix=".verify-", dir=self._cache.folder) as folder:
            for shard in self._shards:
                link = Path(folder) / shard.path
                link.parent.mkdir(parents=True, exist_ok=True)
                link.hardlink_to(self._cache.fetch(self._source, shard))
            (Path(folder) / MANIFEST).write_bytes(format_manifest(self.manifest))
            report = verify_manifest(folder, on_progress=on_progress)
        report_unlisted_files(report, self._source, self.manifest["format"], self._shards)
        return report

    def download(self, folder: str | Path, *, on_progress: Callable[[int, int], None] | None = None) -> Path:
        """Fetch all files into a folder, which then is a dataset of its own; its files there are kept.

        Files of another version or dataset that a manifest in the folder lists are removed first.

        Args:
            folder: folder to fill.
            on_progress: called with the bytes fetched so far and the bytes in all.

        Raises:
            UnlistedFiles: if the folder has other files that tools would read with the dataset.
            FileDamaged, FileGone, AddressExpired, DatasetChanged: if a file cannot be fetched.
        """
        download(self._source, self.manifest, self._shards, Path(folder), on_progress or (lambda *_: None))
        return Path(folder)

    def _require_kind(self, kind: str | None) -> str:
        """Return the kind, the first one by default; raise if the dataset has no rows of it."""
        if kind is None:
            return self.kinds[0]
        if kind not in self.kinds:
            raise NotInDataset(
                f"An export of format {self.format} has no rows of kind {kind!r}; "
                f"it has {', '.join(self.kinds)}."
            )
        return kind

    def _list_shards(self, kind: str, split: str | None = None) -> list[Shard]:
        """Return the files of a kind, without those that hold another split only.

        Raises:
            NotInDataset: if there is no such split.
        """
        if split is not None and split not in SPLITS:
            raise NotInDataset(f"There is no such split; the splits are {', '.join(SPLITS)}.")
        return [
            shard
            for shard in self._shards
            if shard.kind == kind and (split is None or shard.split in (None, split))
        ]

    def _fetch_files(self, kind: str, split: str | None) -> list[Path]:
        return [self._cache.fetch(self._source, shard) for shard in self._list_shards(kind, split)]

    def _read_field_types(self, kind: str) -> dict[str, str]:
        return {field["name"]: field["type"] for field in self.manifest["schema"][kind]["fields"]}

"""A finished export, opened: its manifest, and its rows in the form that a tool wants. Spec §2.5."""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from recorder.exports.formats import FORMATS, MANIFEST, SPLITS
from recorder.exports.verify import VerifyReport, verify_manifest
from recorder.loading import tables
from recorder.loading.cache import Cache
from recorder.loading.download import download, stored_form
from recorder.loading.errors import NotInDataset
from recorder.loading.manifest import Shard, parse_manifest, read_shards
from recorder.loading.rows import Files, Row
from recorder.loading.sources import Source, open_source
from recorder.loading.stream import WINDOW, RowStream


def open_export(
    source: str | Path,
    *,
    key: str | None = None,
    cache: str | Path | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> "Dataset":
    """Open a finished export; its manifest is read and checked, its files are fetched when they are wanted.

    Args:
        source: path of a manifest or its folder, any address that fsspec knows (`s3://…`, `gs://…`, `az://…`),
            a signed `manifest_url`, or the address `…/v1/exports/{id}/manifest` with a key.
        key: API key; with it addresses are signed anew for as long as the files are there.
        cache: folder for fetched files; by default `~/.cache/recorder`.
        storage_options: what fsspec needs to open a private store, such as credentials.

    Raises:
        ManifestUnreadable: if there is no manifest.
        ManifestRefused: if it is of an unknown version, or leads outside its own folder.
        ApiError, Unreachable: if the service refuses or does not answer.
    """
    return Dataset(open_source(str(source), storage_options or {}, key), Cache(cache))


class Dataset:
    """An opened export. `split` chooses a part wherever rows come out: `train`, `validation` or `test`."""

    def __init__(self, source: Source, cache: Cache) -> None:
        """Read the manifest of a source; use `open_export`."""
        self._source, self._cache = source, cache
        text = source.manifest()
        self.manifest = parse_manifest(text)
        self._shards = read_shards(text)

    def __repr__(self) -> str:
        return (
            f"Dataset({self.manifest['export_id']!r}, {self.format}, {self.sessions} sessions, "
            f"{self.rows} rows, {self.frames} frames)"
        )

    @property
    def format(self) -> str:
        """`parquet`, `jsonl`, `arrow` or `webdataset`."""
        return str(self.manifest["format"])

    @property
    def spec(self) -> dict[str, Any]:
        """The request as it was resolved: workflow, filter, frame_sampling, split."""
        return dict(self.manifest["spec"])

    @property
    def sessions(self) -> int:
        """Sessions that the dataset is made of."""
        return int(self.manifest["totals"]["sessions"])

    @property
    def rows(self) -> int:
        """Events; samples of a WebDataset."""
        return int(self.manifest["totals"]["rows"])

    @property
    def frames(self) -> int:
        """Sampled frames."""
        return int(self.manifest["totals"]["frames"])

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of rows it has: `events` and `frames`, or `samples`."""
        return tuple(FORMATS[self.manifest["format"]].kinds)

    def shards(self, kind: str | None = None) -> list[Shard]:
        """Its files; of one kind, where one is given.

        Raises:
            NotInDataset: if it has no such kind.
        """
        return list(self._shards) if kind is None else self._of(self._chosen(kind))

    def polars(self, kind: str | None = None, *, split: str | None = None) -> pl.LazyFrame:
        """Rows of a kind (`events` unless told otherwise) as a polars LazyFrame, in the order of the files.

        Raises:
            NotInDataset: if it has no such kind, or samples, which are no table.
        """
        kind = self._chosen(kind)
        return tables.scan(self._paths(kind), self.format, self._fields(kind), _checked(split))

    def arrow(self, kind: str | None = None, *, split: str | None = None) -> Any:
        """The same as a pyarrow Dataset; of JSONL as a RecordBatchReader, which is read once.

        Raises:
            NotInDataset: if it has no such kind, or samples, which are no table.
        """
        kind = self._chosen(kind)
        return tables.arrow_dataset(self._paths(kind), self.format, self._fields(kind), _checked(split))

    def hf(
        self,
        kind: str | None = None,
        *,
        split: str | None = None,
        streaming: bool = False,
        cache_dir: str | Path | None = None,
    ) -> Any:
        """The same as a Hugging Face `Dataset`, or an `IterableDataset` where it streams.

        Args:
            cache_dir: where `datasets` keeps its own copy; by default its own choice.

        Raises:
            LibraryMissing: if `datasets` is not installed.
            NotInDataset: if it has no such kind, or no rows of it.
        """
        kind = self._chosen(kind)
        return tables.hugging_face(
            self._paths(kind),
            self.format,
            self.manifest["schema"][kind]["fields"],
            _checked(split),
            streaming=streaming,
            cache_dir=Path(cache_dir) if cache_dir else None,
        )

    def webdataset(self, *, split: str | None = None, **options: Any) -> Any:
        """The samples as a `webdataset.WebDataset` pipeline of undecoded members.

        Args:
            options: handed on to `WebDataset`, such as `shardshuffle` or `nodesplitter`.

        Raises:
            LibraryMissing: if `webdataset` is not installed.
            NotInDataset: if the dataset has another format.
        """
        return tables.web_dataset(self._paths(self._chosen("samples")), _checked(split), options)

    def torch(
        self,
        kind: str | None = None,
        *,
        split: str | None = None,
        columns: list[str] | None = None,
        transform: Callable[[Row], Any] | None = None,
        shuffle: bool = False,
        seed: int = 0,
        window: int = WINDOW,
        rank: int | None = None,
        world_size: int | None = None,
        drop_uneven: bool = False,
    ) -> RowStream:
        """Rows one by one for training: an `IterableDataset` where torch is installed, else a plain iterable.

        Every row comes once an epoch, to one worker of one rank. Rows are dicts; those of frames and samples
        have `image` (`{bytes, path}`, or null), samples have `events` too.

        Args:
            columns: the members a row shall have; None for all.
            transform: what is made of each row, such as a decoded picture; it runs in the workers.
            shuffle: lay the files in another order each epoch, and shuffle rows within windows.
            window: rows that are held and shuffled together.
            rank, world_size: of this process among those that train together; by default those of
                torch.distributed, where it runs.
            drop_uneven: leave out the last rows, fewer than there are ranks, so that all get equally many.

        Raises:
            NotInDataset: if it has no such kind.
        """
        kind = self._chosen(kind)
        files = Files.of(self._source, self._cache, kind, self._of(kind), _checked(split))
        try:
            from recorder.loading.torch_stream import TorchRowStream, distributed_rank

            stream: type[RowStream] = TorchRowStream
            here = distributed_rank()
        except ImportError:
            stream, here = RowStream, (0, 1)
        return stream(
            files,
            columns=columns,
            transform=transform,
            shuffle=shuffle,
            seed=seed,
            window=window,
            rank=here[0] if rank is None else rank,
            world_size=here[1] if world_size is None else world_size,
            drop_uneven=drop_uneven,
        )

    def verify(self, *, on_progress: Callable[[int, int], None] | None = None) -> VerifyReport:
        """Recompute from the files what the manifest says; files that lie elsewhere are fetched for it.

        Args:
            on_progress: told how many bytes of files have been checked, and how many there are.
        """
        if self._source.here is not None:
            return verify_manifest(self._source.here, on_progress=on_progress)
        self._cache.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(prefix=".verify-", dir=self._cache.folder) as folder:
            for shard, path in zip(self._shards, self._paths(None), strict=True):
                link = Path(folder) / shard.path
                link.parent.mkdir(parents=True, exist_ok=True)
                link.hardlink_to(path)
            (Path(folder) / MANIFEST).write_bytes(stored_form(self.manifest))
            return verify_manifest(folder, on_progress=on_progress)

    def download(self, folder: str | Path, *, on_progress: Callable[[int, int], None] | None = None) -> Path:
        """Fetch everything into a folder, which is a dataset of its own then; what is there already is kept.

        Args:
            on_progress: told how many bytes are there, and how many there will be.

        Raises:
            FileDamaged, FileGone, AddressExpired, DatasetChanged: as their names say.
        """
        download(self._source, self.manifest, self._shards, Path(folder), on_progress or (lambda *_: None))
        return Path(folder)

    def _chosen(self, kind: str | None) -> str:
        if kind is None:
            return self.kinds[0]
        if kind not in self.kinds:
            raise NotInDataset(
                f"A dataset of format {self.format} has no such rows; it has {', '.join(self.kinds)}."
            )
        return kind

    def _of(self, kind: str) -> list[Shard]:
        return [shard for shard in self._shards if shard.kind == kind]

    def _paths(self, kind: str | None) -> list[Path]:
        shards = self._shards if kind is None else self._of(kind)
        return [self._source.fetch(shard, self._cache) for shard in shards]

    def _fields(self, kind: str) -> dict[str, str]:
        return {field["name"]: field["type"] for field in self.manifest["schema"][kind]["fields"]}


def _checked(split: str | None) -> str | None:
    if split is not None and split not in SPLITS:
        raise NotInDataset(f"There is no such split; the parts are {', '.join(SPLITS)}.")
    return split

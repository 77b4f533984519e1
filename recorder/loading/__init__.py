"""Loading finished exports: polars, Arrow, Hugging Face, WebDataset, PyTorch. Part of the library install."""

from recorder.datasets.manifest import Shard
from recorder.loading.dataset import Dataset, open_export

__all__ = ["Dataset", "Shard", "open_export"]

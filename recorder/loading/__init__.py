"""Loading finished exports: polars, Arrow, Hugging Face, WebDataset, PyTorch. Part of the library install."""

from recorder.loading.dataset import Dataset, open_export
from recorder.loading.manifest import Shard

__all__ = ["Dataset", "Shard", "open_export"]

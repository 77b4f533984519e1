"""The Workflow Recording Service as a library: recordings, memory graph, exports. Light on purpose."""

from importlib import import_module
from typing import Any

from recorder.webhooks.signing import verify_signature

__version__ = "2026.5.0"

__all__ = ["__version__", "open_export", "verify_signature"]


def open_export(source: Any, **options: Any) -> Any:
    """Open a finished export for loading: `recorder.loading.open_export`, which has the types."""
    # By name: modules that loading stands on import this one for its version.
    return import_module("recorder.loading").open_export(source, **options)

"""The Workflow Recording Service as a library: record sessions, query the memory graph, load exports."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from recorder.version import __version__

if TYPE_CHECKING:
    from recorder.client import Client, SessionRecorder
    from recorder.loading import open_export
    from recorder.webhooks.signing import verify_signature

__all__ = ["Client", "SessionRecorder", "__version__", "open_export", "verify_signature"]

# Imported at first use: `import recorder` must stay cheap for processes that need one of them or none.
_MODULE_BY_NAME = {
    "Client": "recorder.client",
    "SessionRecorder": "recorder.client",
    "open_export": "recorder.loading",
    "verify_signature": "recorder.webhooks.signing",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module."""
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULE_BY_NAME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__

"""Capture of what happens in a browser, as sessions. Spec §4.1.

`record` needs the extra `live`: `pip install '/path/to/checkout[live]'`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recorder.capture.page_recording import PageRecording, record
    from recorder.capture.sender import CaptureStats

__all__ = ["CaptureStats", "PageRecording", "record"]

# Imported at first use: the process of a live replay's browser needs the page script alone.
_MODULE_BY_NAME = {
    "CaptureStats": "recorder.capture.sender",
    "PageRecording": "recorder.capture.page_recording",
    "record": "recorder.capture.page_recording",
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

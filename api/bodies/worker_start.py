"""Start of the worker processes: their priority is lowered before they load what they run.

Loading takes a second of processor time. While two workers did so, requests of others waited for half of it.
"""

import importlib
import os
from typing import Any

#: The API process has priority where processor time is short.
_NICENESS = 5

_is_niced = False


def run_with_lowered_priority(module: str, name: str, *arguments: Any) -> Any:
    """Run a function of a module in this worker process, with a lower priority than the API process."""
    global _is_niced
    if not _is_niced:
        os.nice(_NICENESS)
        _is_niced = True
    return getattr(importlib.import_module(module), name)(*arguments)

"""The Workflow Recording Service as a library: recordings, memory graph, exports. Light on purpose."""

from recorder.webhooks.signing import verify_signature

__version__ = "2026.5.0"

__all__ = ["__version__", "verify_signature"]

"""The Workflow Recording Service as a library: recordings, memory graph, exports. Light on purpose."""

__version__ = "2026.5.0"

__all__ = ["__version__"]

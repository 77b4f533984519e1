"""Release of the package, apart from the public names so that every module can import it."""

__version__ = "2026.5.0"

"""Measured goals of the service, each beside its peer or floor. Run `python -m benchmarks --help`."""

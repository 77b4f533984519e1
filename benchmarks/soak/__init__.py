"""A deployment under a steady load: what grows in it. Run `python -m benchmarks.soak --help`."""

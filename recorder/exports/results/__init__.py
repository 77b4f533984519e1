"""Finished exports read back: manifests, hosted files, figures, differences. Contract §5."""

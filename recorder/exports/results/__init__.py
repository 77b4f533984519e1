"""Results of finished exports: manifests, hosted files, summaries, differences. Contract §5."""

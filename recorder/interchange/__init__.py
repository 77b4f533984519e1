"""Event logs as others write and read them: XES, and directly-follows graphs. Decision 0022."""

"""The memory graph's quality and growth, on recorded tasks and on a workflow whose truth is known."""

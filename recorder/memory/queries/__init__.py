"""Queries of the memory graph, over columns in memory. Spec §4.2."""

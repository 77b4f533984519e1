"""Sessions into nodes, variants and paths: the pure part of the memory graph. Spec §2.6."""

"""The memory graph in SQL: who writes it, and whether it agrees with its sessions. Contract §4."""

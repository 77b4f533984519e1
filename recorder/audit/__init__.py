"""Audit log: hash chains of entries, their verification and pruning. Contract §7."""

"""Purges: requested by retention, deletion and erasure, then worked on step by step. Contract §2, §7."""

"""Reads and writes event logs in XES, the IEEE 1849 standard. Decision 0022."""

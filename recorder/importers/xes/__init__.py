"""Brings in event logs in XES. Decision 0022."""

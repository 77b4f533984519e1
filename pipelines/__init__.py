"""Orchestration: what Dagster runs of the recorder, and nothing else. Design §2."""

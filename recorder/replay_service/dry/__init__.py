"""Dry replays: tasks, the processes that compute them, and their results. Decision 0044."""

"""Recorded sessions, read from the database and the stores for replays. Spec §4.6."""

"""Replays of sealed sessions: requests, recordings, dry replays, recoveries and replayability. Spec §4.6.

`drain_run` replays what waits, in the order of `due_replays`.
"""

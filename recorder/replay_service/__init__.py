"""Replays of sealed sessions: requests, recordings, dry replays, recoveries and replayability. Spec §4.6.

`replay_drain_run` replays what waits, in the order of `due_replays`.
"""

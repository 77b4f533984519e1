"""Replays of sealed sessions: the queue, the reading of recordings, and the work of a drain run. Spec §4.6.

`queue` takes requests and decisions, `recording` reads a session as `recorder.replays` takes it,
`drain_run` replays what waits, `wire_objects` shows replays and sends their events, `removal` forgets them.
"""

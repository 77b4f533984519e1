"""Streams of session events: rows by position, fanned out to all who read them. Spec §6.5, contract §3."""

from recorder.recording.streams.hub import Hub
from recorder.recording.streams.messages import Segment
from recorder.recording.streams.readers import Ending, Pace, Reader
from recorder.recording.streams.resume import Start, read_position

__all__ = ["Ending", "Hub", "Pace", "Reader", "Segment", "Start", "read_position"]

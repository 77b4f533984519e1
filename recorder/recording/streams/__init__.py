"""Streams of session events: rows by position, fanned out to all who read them. Spec §6.5, contract §3."""

from recorder.recording.streams.catch_up import StreamStart, parse_catch_up_position
from recorder.recording.streams.hub import Hub
from recorder.recording.streams.messages import StreamSegment
from recorder.recording.streams.readers import Ending, Reader, StreamTimes

__all__ = [
    "Ending",
    "Hub",
    "Reader",
    "StreamSegment",
    "StreamStart",
    "StreamTimes",
    "parse_catch_up_position",
]

"""Capture of what happens in a browser, as sessions. Spec §4.1.

`record` needs the extra `live`: `pip install "workflow-recorder[live]"`.
"""

from recorder.capture.recording import PageRecording, record
from recorder.capture.sender import CaptureStats

__all__ = ["CaptureStats", "PageRecording", "record"]

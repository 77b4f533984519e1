"""Stand-in."""

from concurrent.futures import Future

from recorder.sealing.screens import ScreenReader


class DigestPool:
    def __init__(self, blobs):
        self._blobs, self._reader = blobs, ScreenReader()

    def submit(self, session_id, frames):
        future = Future()
        try:
            future.set_result(self._reader.read(frames, self._blobs))
        except Exception as e:
            future.set_exception(e)
        return future

    def close(self):
        pass

"""Batches that several threads pack at the same time: each is stored as it was sent."""

import subprocess
import sys

# In a process of its own: a compressor that two threads share ends the process with a segmentation fault.
_PACK = """
from concurrent.futures import ThreadPoolExecutor

import zstandard

from recorder.access.keys import Caller
from recorder.recording.event_batches import CheckedBody, TimedItem, pack_event_batch
from recorder.tenant import Tenant

caller = Caller(Tenant("wsp_1", "live"), "key_1")


def pack(n: int) -> bool:
    items = b",".join(b'{"type":"click","t_ms":%d,"data":{"n":"%d"}}' % (k, k * n) for k in range(40_000))
    body = b'{"events":[' + items + b"]}"
    checked = CheckedBody(body=body, items=[TimedItem(t_ms=0)], named=[], key=None)
    payload = pack_event_batch(caller, "ses_1", checked, {}).payload
    return zstandard.ZstdDecompressor().decompress(payload) == body


with ThreadPoolExecutor(8) as threads:
    print(sum(threads.map(pack, range(64))))
"""


def test_batches_packed_by_several_threads_are_stored_as_they_were_sent() -> None:
    # Each of 64 batches of 1.7 MB, packed by eight threads, is read back byte for byte.
    child = subprocess.run([sys.executable, "-c", _PACK], capture_output=True, text=True, timeout=120)
    assert (child.returncode, child.stdout.strip()) == (0, "64"), child.stderr

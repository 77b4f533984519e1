"""Digests of pictures in worker processes: CPU and wall time a picture, and memory at 50 megapixels."""

import io
import random
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import psutil
from PIL import Image

from benchmarks.figure_reports import Figure, at_least, at_most
from benchmarks.screens import session_screens
from recorder.sealing.digest_pool import DigestPool
from recorder.sealing.frame_digests import read_cells_of_frame_picture
from recorder.storage.blobs import Blobs
from tests.support.factories import picture
from tests.support.frame_contents import store_frames

_IN_SESSION = 10
_SIDE = 7_071
_LARGE = 3


def measure(*, quick: bool = False) -> list[Figure]:
    """Measure CPU of the pool a distinct lossless 1280 × 720 WebP, one and two processes; peak memory."""
    rounds, sessions = (2, 4) if quick else (5, 12)
    cpu: list[float] = []
    alone: list[float] = []
    wall: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        screens = [session_screens(_IN_SESSION, seed=seed) for seed in range(sessions)]
        for number in range(rounds):
            url = str(Path(folder, str(number)))
            alone.append(_digest_alone(screens))
            for processes in (1, 2) if number % 2 else (2, 1):
                seconds, spent = _digest_in_pool(url, screens, processes)
                wall[processes].append(seconds)
                if processes == 1:
                    cpu.append(spent)
    pool_mb, parent_mb, seconds = _measure_memory()
    return [
        Figure(
            name="digest of a distinct 1280×720 lossless WebP, CPU with transfer",
            unit="ms",
            ours=cpu,
            goal=at_most(16),
            detail={"pictures a round": sessions * _IN_SESSION},
        ),
        Figure(
            name="digests in a worker ÷ in this process, CPU",
            unit="ms a picture",
            ours=cpu,
            peer=alone,
            peer_name="read_cells alone",
        ),
        Figure(
            name="digests with one process ÷ two, wall time",
            unit="s",
            ours=wall[1],
            peer=wall[2],
            peer_name="two processes",
            goal=at_least(1.5),
        ),
        Figure(
            name=f"largest worker at {_LARGE} frames of 50 megapixels, peak memory",
            unit="MB",
            ours=[max(pool_mb)],
            goal=at_most(800),
            detail={"all workers, MB": pool_mb, "seconds": seconds},
        ),
        Figure(name="process of the pool, peak memory", unit="MB", ours=[parent_mb], goal=at_most(800)),
    ]


def _digest_alone(screens: list[list[bytes]]) -> float:
    """Return the CPU milliseconds a picture in this process."""
    began = time.process_time()
    for session in screens:
        for screen in session:
            read_cells_of_frame_picture(screen)
    return (time.process_time() - began) * 1000 / (len(screens) * _IN_SESSION)


def _digest_in_pool(url: str, screens: list[list[bytes]], processes: int) -> tuple[float, float]:
    """Return the wall seconds of all, and CPU milliseconds a picture of the pool, once started."""
    blobs = Blobs(url)
    stored = [store_frames(blobs, f"ses_{number}", session) for number, session in enumerate(screens)]
    warming = [store_frames(blobs, f"ses_w{n}", [picture(n + 64 * k) for k in range(3)]) for n in range(40)]
    with DigestPool(url, processes=processes) as pool:
        while len(pool.worker_pids) < processes:
            for item in [pool.submit(rows[0].session_id, rows) for rows in warming]:
                item.result()
        workers = [psutil.Process(pid) for pid in pool.worker_pids]
        before, began = _cpu_seconds(workers), time.perf_counter()
        for future in [pool.submit(rows[0].session_id, rows) for rows in stored]:
            future.result()
        seconds = time.perf_counter() - began
        spent = _cpu_seconds(workers) - before
    return seconds, spent * 1000 / sum(map(len, stored))


def _cpu_seconds(workers: list[psutil.Process]) -> float:
    times = [psutil.Process().cpu_times(), *(worker.cpu_times() for worker in workers)]
    return sum(time_s.user + time_s.system for time_s in times)


def _measure_memory() -> tuple[list[float], float, float]:
    """Return the peak memory of the workers and of the pool's owner, each in processes of their own."""
    context = get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        with ProcessPoolExecutor(1, mp_context=context) as drawing:
            drawing.submit(_store_large, folder).result()
        with ProcessPoolExecutor(1, mp_context=context) as owner:
            return owner.submit(_digest_large, folder).result()


def _store_large(url: str) -> None:
    """Store frames of 50 megapixels, 19 MB in all, each an object of its own."""
    Image.MAX_IMAGE_PIXELS = None
    for number in range(_LARGE):
        side = _SIDE // 16 + 1
        noise = Image.frombytes("RGB", (side, side), random.Random(number).randbytes(side * side * 3))
        file = io.BytesIO()
        noise.resize((_SIDE, _SIDE), Image.Resampling.NEAREST).save(file, "WEBP", quality=60, method=0)
        Path(url, f"{number}.webp").write_bytes(file.getvalue())


def _digest_large(url: str) -> tuple[list[float], float, float]:
    blobs = Blobs(url)
    stored = [
        store_frames(blobs, f"ses_{path.stem}", [path.read_bytes()])
        for path in sorted(Path(url).glob("*.webp"))
    ]
    with DigestPool(url, processes=2) as pool:
        began = time.perf_counter()
        seen = [pool.submit(rows[0].session_id, rows) for rows in stored]
        if any(future.result()[0].dhash is None for future in seen):
            raise RuntimeError("A picture of 50 megapixels has no digest.")
        seconds = time.perf_counter() - began
        return [_peak_mb(pid) for pid in pool.worker_pids], _peak_mb("self"), seconds


def _peak_mb(pid: int | str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM"))

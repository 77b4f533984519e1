"""PM4Py's clustering of the same sessions, in an environment of its own: it is AGPL, no part of the project.

Sessions go over as a CSV log, and what comes back is which case is in which cluster.
"""

import csv
import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks.peer_environments import find_peer_python

VERSION = "2.7.23.11"
#: Names a Python that has PM4Py; without it, it is fetched.
VARIABLE = "RECORDER_BENCH_PM4PY"
_CLUSTER = """
import json, sys
import pandas, pm4py
from sklearn.cluster import KMeans

log = pandas.read_csv(sys.argv[1], dtype=str)
log["time:timestamp"] = pandas.to_datetime(log["time:timestamp"].astype(int), unit="s", utc=True)
found = []
for seed in range(int(sys.argv[4])):
    means = KMeans(n_clusters=int(sys.argv[3]), n_init=10, random_state=seed)
    clusters = pm4py.cluster_log(log, sklearn_clusterer=means)
    found.append({
        trace.attributes["concept:name"]: number for number, one in enumerate(clusters) for trace in one
    })
json.dump(found, open(sys.argv[2], "w"))
"""


def find_pm4py() -> AbstractContextManager[str]:
    """Return a context with a Python that has PM4Py, from the environment or installed for the block.

    Raises:
        Skipped: when it is entered, if PM4Py cannot be installed.
    """
    return find_peer_python(f"pm4py=={VERSION}", "scikit-learn", variable=VARIABLE)


def cluster(
    python: str, cases: Mapping[str, Sequence[str]], *, clusters: int, runs: int
) -> list[dict[str, int]]:
    """Run PM4Py's `cluster_log` with KMeans, each run from other starting points.

    Args:
        python: as `find_pm4py` gives it.
        cases: the activities of each case, in order.
        clusters: how many there shall be.

    Returns:
        The cluster of each case, for each run.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        log, output = Path(folder, "log.csv"), Path(folder, "clusters.json")
        with log.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["case:concept:name", "concept:name", "time:timestamp"])
            for case, activities in cases.items():
                rows.writerows([case, activity, index] for index, activity in enumerate(activities))
        command = [python, "-c", _CLUSTER, str(log), str(output), str(clusters), str(runs)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"PM4Py failed:\n{done.stderr[-2_000:]}")
        runs_found: list[dict[str, int]] = json.loads(output.read_text())
        return runs_found

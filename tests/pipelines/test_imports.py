"""Imports of a Dagster run, which is a process of its own."""

import subprocess
import sys


def test_a_run_imports_no_library_that_few_runs_need() -> None:
    program = (
        "import gc, sys, pipelines.definitions; assert gc.isenabled(); unwanted = "
        "{'pandas', 'pyarrow.dataset', 'scipy', 'sklearn', 'networkx', 'playwright'}; "
        "print(*unwanted & sys.modules.keys())"
    )
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert completed.stdout.split() == []

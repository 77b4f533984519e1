"""Databases for tests: a SQLite file, a throw-away PostgreSQL cluster and a Redis on loopback."""

import gc
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import certifi
import hypothesis
import pytest

from tests.support.captured_minutes import make_tenant, other_writer, tenant, writer
from tests.support.databases import create_database, create_file, database
from tests.support.delivery_loop import workspace_id
from tests.support.postgres_server import running_postgres
from tests.support.redis_server import running_redis
from tests.support.sealed_sessions import runtime

# Fixtures that the tests of several packages use; the folder of a package may define its own.
__all__ = ["database", "make_tenant", "other_writer", "runtime", "tenant", "workspace_id", "writer"]

# Clouds' libraries would ask a virtual machine's metadata service who it is; Dagster would tell its use.
os.environ |= {  # noqa: TID251
    "AWS_EC2_METADATA_DISABLED": "true",
    "NO_GCE_CHECK": "true",
    "DAGSTER_DISABLE_TELEMETRY": "1",
}
# Tests speak to loopback alone. Each HTTP client would read all certificates of the machine, for 16 ms.
_one_certificate = tempfile.NamedTemporaryFile(prefix="recorder-certificate-", suffix=".pem")  # noqa: SIM115
_one_certificate.write(certifi.contents().partition("-----END CERTIFICATE-----")[0].encode())
_one_certificate.write(b"-----END CERTIFICATE-----\n")
_one_certificate.flush()
os.environ["SSL_CERT_FILE"] = _one_certificate.name  # noqa: TID251

# A machine that is busy with something else is no failure. `make fuzz` looks at many more examples.
hypothesis.settings.register_profile(
    "tests",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    max_examples=int(os.environ.get("RECORDER_FUZZ_EXAMPLES", "40")),  # noqa: TID251
)
hypothesis.settings.load_profile("tests")

_MEMORY_DISK = Path("/dev/shm")
_MEMORY_DISK_BYTES = 6 * 2**30


def _use_memory_disk() -> None:
    """Put temporary files into memory where it is large enough: a slow disk takes most of the time of tests.

    A folder in `TMPDIR` is left alone. What is shown to survive a power cut is shown by recorded syncs.
    """
    if "TMPDIR" in os.environ or not os.access(_MEMORY_DISK, os.W_OK):  # noqa: TID251
        return
    status = os.statvfs(_MEMORY_DISK)
    if status.f_bavail * status.f_frsize >= _MEMORY_DISK_BYTES and not status.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = str(_MEMORY_DISK)  # noqa: TID251
        tempfile.tempdir = None


_use_memory_disk()

# While modules and tests are read nothing becomes garbage: a fifth of the time went into looking for it.
gc.disable()

#: What waits longest, longest first, so that no worker is left alone with it at the end.
_FIRST = (
    "live/test_live_variants.py",
    "live/test_isolation.py",
    "end_to_end/test_daemon.py",
    "end_to_end/test_readme.py",
    "end_to_end/test_notebooks.py",
    "faults/test_live_replay_kills.py",
    "faults/test_export_run_kills.py",
    "faults/test_erasure_kills.py",
    "end_to_end/test_demo_commands.py",
    "end_to_end/test_snapshot_viewer.py",
    "faults/test_stopped_children.py",
    "faults/test_two_services.py",
    "fuzz/",
    "end_to_end/",
    "faults/",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return two workers more than processors: tests wait for processes, sockets and clocks half the time."""
    return len(os.sched_getaffinity(0)) + 2


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that divides the tests of both engines between two targets of the Makefile."""
    parser.addoption(
        "--engine",
        choices=["sqlite", "postgresql"],
        help="sqlite: leave out tests on PostgreSQL that run on SQLite too; postgresql: only those",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes longest; `--no-loadscope-reorder` lets the workers keep to it."""
    items.sort(key=lambda item: _place("/".join(item.path.parts[-2:])))
    engine = config.getoption("engine")
    if engine is None or config.getoption("lf", default=False):  # variants that passed are left out already
        return
    node_ids = {item.nodeid for item in items}
    selected, deselected = [], []
    for item in items:
        on_sqlite = item.nodeid.replace("postgresql", "sqlite")
        is_variant = on_sqlite != item.nodeid and on_sqlite in node_ids
        (selected if is_variant == (engine == "postgresql") else deselected).append(item)
    items[:] = selected
    config.hook.pytest_deselected(items=deselected)


def pytest_collection_finish() -> None:
    """Exclude the modules and thousands of tests that stay until the end from garbage collection.

    Every start and stop of a service would scan them. What libraries keep later is a million objects more:
    visiting those as often as by default takes a twentieth of the time.
    """
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Yield the address of a fresh PostgreSQL cluster, without the name of a database."""
    with running_postgres() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """Yield the address of a fresh Redis; tests that stop one start their own."""
    with running_redis() as server:
        yield server.url


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the address of a database with our tables, once on each engine, shared by a module's tests."""
    if request.param == "sqlite":
        return create_file(tmp_path_factory.mktemp("database"))
    return create_database(request.getfixturevalue("postgres"))


def _place(file: str) -> int:
    return next((index for index, start in enumerate(_FIRST) if file.startswith(start)), len(_FIRST))

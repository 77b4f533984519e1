"""The hostile corpus is whole: every case is tried.

The cases are in order of their numbers in the files `test_hostile_*.py`;
`tests/support/hostile_cases.py` says how one is written.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = range(1, 97)
#: Tried where what it needs is at hand: the case, the file, and a test in it.
ELSEWHERE = [
    (16, "tests/api/test_hostile_bodies.py", "test_an_unknown_member_is_refused"),
    (28, "tests/api/test_isolation.py", "test_a_foreign_id_answers_like_a_missing_one"),
    (43, "tests/governance/test_erasure.py", "test_a_subject_is_plain_text"),
    (
        63,
        "tests/net/isolated/hostile_addresses.py",
        "test_a_name_that_turns_to_a_private_address_is_blocked_at_the_call",
    ),
    (65, "tests/net/isolated/hostile_servers.py", "test_a_redirect_is_a_failure_and_is_not_followed"),
    (66, "tests/net/isolated/hostile_servers.py", "test_reading_stops_at_four_kilobytes"),
    (67, "tests/net/isolated/hostile_servers.py", "test_a_compressed_body_stays_as_it_came"),
    (78, "tests/exports/test_samples.py", "test_a_sample_is_called_by_its_session_and_place"),
    (82, "tests/api/test_hostile_cases.py", "test_nothing_is_ever_unpickled"),
    (
        86,
        "tests/exports/test_sharding.py",
        "test_a_session_deleted_meanwhile_is_dropped_and_its_shard_rebuilt",
    ),
    (
        86,
        "tests/governance/test_exported_sessions.py",
        "test_a_session_that_is_removed_while_its_export_runs_is_in_no_file",
    ),
    (
        87,
        "tests/governance/test_hard_delete.py",
        "test_rows_of_a_batch_that_lands_after_the_delete_are_deleted_too",
    ),
    (94, "tests/api/test_slow_clients.py", "test_a_body_that_does_not_come_is_answered_408"),
    (
        95,
        "tests/live/isolated/hostile_addresses.py",
        "test_no_spelling_and_no_name_of_a_forbidden_address_is_reached",
    ),
    (
        95,
        "tests/live/isolated/hostile_addresses.py",
        "test_a_name_that_turns_to_a_forbidden_address_is_not_followed",
    ),
    (95, "tests/live/isolated/hostile_pages.py", "test_hostile_pages_reach_nothing"),
    (96, "tests/net/isolated/snapshot_viewer.py", "test_a_hostile_snapshot_runs_and_loads_nothing"),
]
_ELSEWHERE_NUMBERS = {number for number, _, _ in ELSEWHERE}
#: Its workers are started by the process they speak with, over a socket that nobody else has.
_OWN_WORKERS = ROOT / "recorder" / "exports" / "executor" / "pool_worker.py"
_UNSAFE = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}


def tried() -> dict[int, set[str]]:
    """Return the numbers of the cases that a file of the corpus covers, with the files."""
    covered: dict[int, set[str]] = {}
    for path in sorted((ROOT / "tests" / "api").glob("test_hostile_*.py")):
        for number in re.findall(r"\bcase\(\s*(\d+),", path.read_text()):
            covered.setdefault(int(number), set()).add(path.name)
    return covered


def functions(path: str) -> set[str]:
    """Return the names of the tests in a file."""
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_case_is_tried() -> None:
    assert set(tried()) | _ELSEWHERE_NUMBERS == set(CASES)


@pytest.mark.parametrize(("number", "path", "test"), ELSEWHERE)
def test_what_is_tried_elsewhere_is_there(number: int, path: str, test: str) -> None:
    assert number in CASES and test in functions(path)


def test_nothing_is_ever_unpickled() -> None:
    # Cover case 82: no object is created from bytes that a client sends.
    sources = [path for name in ("recorder", "api", "pipelines") for path in (ROOT / name).rglob("*.py")]
    assert len(sources) > 100
    for path in sources:
        text = path.read_text()
        imported = {
            alias.name.partition(".")[0]
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in (node.names if isinstance(node, ast.Import) else [ast.alias(node.module or "")])
        }
        assert path == _OWN_WORKERS or not imported & _UNSAFE, path
        assert "allow_pickle" not in text, path

"""The client's questions to the memory graph, against the real service. Spec §4.2."""

from collections.abc import Iterator

import pytest

from recorder.client import ApiError, Client
from recorder.runtime import Runtime
from recorder.settings import Settings
from tests.support.http_service import running_service
from tests.support.sealing import seal_all


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Yield a client of a service in which three sessions went alike, and one that failed came back."""
    folder = tmp_path_factory.mktemp("service")
    with running_service(folder) as running, Client(running.url, running.key) as connected:
        for states, failed_at in (("abcd", None), ("abcd", None), ("abcd", None), ("axyz", 1_500)):
            record(connected, states, failed_at)
        runtime = Runtime.open(Settings.from_env({}, data_dir=folder))
        seal_all(runtime)
        runtime.close()
        yield connected


def record(client: Client, states: str, failed_at: int | None) -> None:
    """Record a session that clicks once on each of these screens, a second apart."""
    session_id = client.create_session("checkout", start=True, actor={"id": "ada", "kind": "human"})["id"]
    steps = [{"t_ms": 1_000 * (n + 1), "type": "click", "state_key": state} for n, state in enumerate(states)]
    client.add_events(session_id, steps)
    if failed_at is not None:
        client.tag(session_id, "error", t_ms=failed_at)
    client.stop(session_id)
    client.tag(session_id, "success", t_ms=9_000)


def test_outliers_and_similar_sessions_are_asked_for(client: Client) -> None:
    (odd,) = client.memory_outliers("checkout", threshold=0.3, actor_kind="human")
    assert (odd["path_frequency"], odd["outcome"]) == (0.25, "success")
    assert len(client.memory_similar(odd["id"])) == 3
    assert [len(item["shared_nodes"]) for item in client.memory_similar(odd["id"], limit=1)] == [1]
    with pytest.raises(ApiError) as refused:
        client.memory_similar("ses_unknown")
    assert refused.value.code == "not_found"


def test_paths_lead_to_their_sessions(client: Client) -> None:
    usual, other = client.memory_paths("checkout", actor_kind="human", limit=2)
    assert len(list(client.list_sessions(path=usual["path_id"], outcome="success"))) == 3
    assert len(list(client.list_sessions(path=other["path_id"], workflow="checkout"))) == 1


def test_recovery_points_need_frames(client: Client) -> None:
    assert client.memory_recovery_points("checkout", failure_tag="error", limit=5) == []


def test_the_graph_is_an_object_or_a_text(client: Client) -> None:
    graph = client.memory_graph("checkout", min_frequency=0.5)
    assert isinstance(graph, dict) and graph["workflow"] == "checkout"
    drawing = client.memory_graph("checkout", format="svg", actor_kind="human")
    assert isinstance(drawing, str) and drawing.startswith("<svg")


def test_sides_are_compared(client: Client) -> None:
    diff = client.memory_diff("checkout", actor_kind="human", against_actor_kind="model")
    assert (diff["selected"]["session_count"], diff["against"]["session_count"]) == (4, 0)

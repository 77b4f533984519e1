"""Pauses of replays whose store does not answer: one workspace does not end the run of all."""

from dataclasses import dataclass

import pytest

from recorder.errors import Unavailable
from recorder.replay_service.scheduling.store_pauses import StorePauses
from recorder.tenant import Tenant


@dataclass
class Replay:
    """A row of a workspace."""

    id: str

    @property
    def tenant(self) -> Tenant:
        """The workspace that the id begins with."""
        return Tenant(self.id[0], "live")


def test_many_pauses_of_one_workspace_do_not_end_the_run() -> None:
    pauses = StorePauses(read_clock=lambda: 0.0)
    for number in range(1_100):
        pauses.add_pause(Replay(f"a{number}"))
    assert len(pauses.list_ids()) == 1_100
    with pytest.raises(Unavailable):
        pauses.add_pause(Replay("b1"))


def test_a_workspace_waits_for_a_shorter_time_than_its_replays() -> None:
    now_s = 0.0
    pauses = StorePauses(read_clock=lambda: now_s)
    pauses.add_pause(Replay("a1"))
    assert (pauses.list_ids(), pauses.list_tenants()) == (["a1"], [Tenant("a", "live")])
    now_s = 10.0
    assert (pauses.list_ids(), pauses.list_tenants()) == (["a1"], [])
    now_s = 30.0
    assert pauses.list_ids() == []


def test_a_workspace_of_which_many_replays_wait_waits_as_long_as_they() -> None:
    now_s = 0.0
    pauses = StorePauses(read_clock=lambda: now_s)
    for number in range(500):
        pauses.add_pause(Replay(f"a{number}"))
    now_s = 29.0
    assert pauses.list_tenants() == [Tenant("a", "live")]
    now_s = 30.0
    assert pauses.list_tenants() == []


def test_the_time_of_a_store_begins_with_the_first_failed_read_and_again_after_a_success() -> None:
    now_s = 0.0
    pauses = StorePauses(read_clock=lambda: now_s)
    pauses.add_pause(Replay("a1"))
    now_s = 599.0
    pauses.add_pause(Replay("a1"))
    assert not pauses.has_waited("a1")
    now_s = 600.0
    assert pauses.has_waited("a1") and not pauses.has_waited("a2")
    pauses.forget("a1")
    pauses.add_pause(Replay("a1"))
    now_s = 1_199.0
    assert not pauses.has_waited("a1")

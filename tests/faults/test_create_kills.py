"""kill -9 of the API between work and reply: a create under its key is there once, or not. Contract §1.

`make faults` kills 300 times during 10,000 requests on each engine; `make test-faults` does a little of it.
The moments of the kills follow a seed, which a failure names.
"""

import os
import random
import time
from pathlib import Path

from sqlmodel import func, select

from benchmarks.seeds import new_key
from recorder.models.operations import IdempotencyRow, OutboxRow
from recorder.models.session import SessionMetadataRow
from recorder.runtime import Runtime
from recorder.settings import Settings
from tests.faults.api_restarts import Lives, api_lives
from tests.faults.creators import Creator
from tests.support.sealed_sessions import make_settings

KILLS = int(os.environ.get("RECORDER_FAULT_KILLS", "3"))  # noqa: TID251
SEED = int(os.environ.get("RECORDER_FAULT_SEED", "1"))  # noqa: TID251
#: Requests to be answered: 33 for each kill.
CREATES = KILLS * 100 // 3
_CREATORS = 8
_PATIENCE_S = 60.0


def kill_again_and_again(lives: Lives, creators: list[Creator], chance: random.Random) -> None:
    """Kill so often, and let so many requests be answered, as asked for; then leave the API alive."""
    share = CREATES // KILLS
    while lives.kills < KILLS or count_answers(creators) < CREATES:
        wait_for(creators, count_answers(creators) + chance.randrange(1, 2 * share))
        time.sleep(chance.uniform(0.0, 0.01))
        lives.kill()
        lives.start()


def count_answers(creators: list[Creator]) -> int:
    """Return the number of requests with an answer."""
    return sum(creator.answered for creator in creators)


def wait_for(creators: list[Creator], count: int) -> None:
    """Return once so many requests are answered."""
    until = time.monotonic() + _PATIENCE_S
    while count_answers(creators) < count:
        refused = [creator.refused for creator in creators if creator.refused]
        assert time.monotonic() < until and not refused, f"seed {SEED}: nothing goes on; refused: {refused}"
        time.sleep(0.001)


def test_a_kill_between_work_and_reply_leaves_both_or_neither(database_url: str, tmp_path: Path) -> None:
    settings = make_settings(tmp_path, database_url=database_url)
    api_key = new_key(settings)
    with api_lives(settings) as lives:
        creators = [Creator(lives, api_key, f"creator-{number}") for number in range(_CREATORS)]
        for creator in creators:
            creator.start()
        kill_again_and_again(lives, creators, random.Random(SEED))
        for creator in creators:
            creator.finish()
        for creator in creators:
            creator.join(timeout=_PATIENCE_S)
        again = {key: ids for creator in creators for key, ids in creator.send_again().items()}
        for creator in creators:
            creator.close()
    answers = {key: ids for creator in creators for key, ids in creator.answers.items()}
    stored, outside, kept = read_stored_keys(settings)
    broken = sum(creator.broken for creator in creators)
    print(
        f"{lives.kills} kills, {count_answers(creators)} answers to {len(answers)} keys, "
        f"{broken} lost on their way"
    )
    assert broken > 0 and count_answers(creators) >= CREATES
    assert answers == again == stored, f"seed {SEED}"
    assert outside == kept == len(stored)


def read_stored_keys(settings: Settings) -> tuple[dict[str, set[str]], int, int]:
    """Return sessions by the key in their metadata, and the numbers of outbox rows and stored answers."""
    runtime = Runtime.open(settings)
    with runtime.database.transaction(write=False) as db:
        by_key: dict[str, set[str]] = {}
        for row in db.exec(select(SessionMetadataRow)):
            by_key.setdefault(row.metadata_["key"], set()).add(row.session_id)
        outside = select(func.count()).select_from(OutboxRow).where(OutboxRow.type == "session.created")
        kept = select(func.count()).select_from(IdempotencyRow)
        counts = db.exec(outside).one(), db.exec(kept).one()
    runtime.close()
    return by_key, *counts

"""The lake in an object store: the same calls, with the store's own promise of durability."""

import json
from collections.abc import Iterator

import pyarrow as pa
import pytest

from recorder.storage.lake import Lake
from recorder.storage.store_regions import mark_lake
from tests.storage.test_lake import PLACE, append, counts, rows
from tests.storage.test_lake_durability import PARTITION, PARTITIONS
from tests.support.object_stores import BUCKET, ENVIRONMENT, running_store


@pytest.fixture
def lake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """Yield a lake in a bucket of a store on this machine, in a process of its own."""
    with running_store("s3") as store:
        for name, value in {
            **ENVIRONMENT,
            "AWS_ENDPOINT_URL": store.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        yield Lake(f"s3://{BUCKET}/tables", compact_at_files=3)


def test_the_lake_works_in_an_object_store(lake: Lake) -> None:
    assert mark_lake(lake.url, "eu") == "eu"
    assert lake.version(*PLACE) is None
    file = lake.write_file(*PLACE, rows("ses_1", 50), **PARTITION, name="part")
    assert lake.commit(
        *PLACE, [type(file).from_json(json.loads(json.dumps(file.to_json())))], lane="a", number=1
    )
    assert not lake.commit(*PLACE, [file], lane="a", number=1)
    assert [append(lake, number) for number in (2, 3)] == [True, True]
    assert lake.delete_sessions(*PLACE, **PARTITIONS, session_ids=["ses_2"]).count == 3
    append(lake, 4)
    assert lake.count_session_rows(*PLACE, **PARTITIONS, session_ids=["ses_1", "ses_2"]) == {
        "ses_1": 50,
        "ses_2": 0,
    }
    assert lake.compact(*PLACE) == 3
    assert counts(lake) == {"ses_1": 50, "ses_3": 3, "ses_4": 3}
    stored = pa.Table.from_batches(
        lake.read_session_batches(*PLACE, **PARTITION, session_id="ses_1", after=(100, "a"))
    )
    assert stored["seq"].to_pylist() == list(range(10, 50))

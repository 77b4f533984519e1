"""Keys: their checksum and their end. Contract §1."""

from datetime import timedelta

import pytest

from recorder import clock
from recorder.access.keys import authenticate_key, create_key, is_well_formed_key
from recorder.access.workspaces import create_workspace
from recorder.errors import InvalidApiKey
from recorder.ids import new_id
from recorder.storage.database import Database

SECRET = b"tests"


def test_a_key_with_another_checksum_is_not_looked_up(database: Database) -> None:
    with database.transaction(write=True) as db:
        key = create_workspace(db, new_id("wsp"), region="us", secret=SECRET).key
    assert is_well_formed_key(key)
    other = "a" if key[-1] != "a" else "b"
    assert not is_well_formed_key(key[:-1] + other)
    assert not is_well_formed_key(key[:20] + ("a" if key[20] != "a" else "b") + key[21:])


def test_an_expired_key_opens_nothing(database: Database) -> None:
    with database.transaction(write=True) as db:
        workspace_id = create_workspace(db, new_id("wsp"), region="us", secret=SECRET).workspace_id
        expired, valid = (
            create_key(
                db,
                workspace_id,
                label="key",
                scope="read",
                mode="live",
                secret=SECRET,
                expires_at=clock.now() + timedelta(seconds=seconds),
            ).key
            for seconds in (-1, 60)
        )
    with database.transaction(write=False) as db:
        assert authenticate_key(db, valid, secret=SECRET).workspace_id == workspace_id
        with pytest.raises(InvalidApiKey):
            authenticate_key(db, expired, secret=SECRET)

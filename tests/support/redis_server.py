"""A throw-away Redis for tests, where this machine has one."""

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks import redis_server
from tests.support.databases import find_program, part_is_missing


@contextmanager
def running_redis() -> Iterator[redis_server.RedisServer]:
    """Yield a Redis of its own, which a test may stop and start again."""
    if find_program("redis-server") is None:
        part_is_missing("Redis is not installed (apt-get install redis-server).")
    with redis_server.running_redis() as server:
        yield server

"""Clients that create sessions while the API dies under them: under a key, sent until answered."""

import http.client
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import orjson

from tests.faults.api_restarts import Lives

_PAUSE_S = 0.03
#: Still running, too many at once, or away: the same request may be sent again.
_AGAIN = (409, 429, 503)


class Creator(threading.Thread):
    """Creates one session after the other, each by two clients at once that know nothing of each other."""

    def __init__(self, lives: Lives, api_key: str, name: str) -> None:
        super().__init__(daemon=True, name=name)
        self._lives = lives
        self._api_key = api_key
        self._is_over = threading.Event()
        self._twins = [_Client(self), _Client(self)]
        #: The ids that the two were told, by key.
        self.answers: dict[str, set[str]] = {}
        self.refused: list[bytes] = []

    @property
    def answered(self) -> int:
        """Number of requests with an answer."""
        return sum(twin.answered for twin in self._twins)

    @property
    def broken(self) -> int:
        """Number of requests that were sent and got no answer."""
        return sum(twin.broken for twin in self._twins)

    def finish(self) -> None:
        """End after the current key, once both requests are answered."""
        self._is_over.set()

    def run(self) -> None:
        """Create sessions until `finish` is called; a refusal ends it early."""
        with ThreadPoolExecutor(2) as pool:
            for number in itertools.count():
                if self._is_over.is_set() or self.refused:
                    break
                key = f"{self.name}-{number}"
                self.answers[key] = set(pool.map(_Client.create, self._twins, [key, key]))

    def send_again(self) -> dict[str, set[str]]:
        """Repeat every create; return the answers by key."""
        return {key: {self._twins[0].create(key)} for key in self.answers}

    def close(self) -> None:
        """Close the connections."""
        for twin in self._twins:
            twin.connection.close()


class _Client:
    def __init__(self, creator: Creator) -> None:
        self._creator = creator
        self._headers = {
            "Authorization": f"Bearer {creator._api_key}",
            "Content-Type": "application/json",
        }
        self.connection = http.client.HTTPConnection(creator._lives.host, creator._lives.port, timeout=30)
        self.answered = 0
        self.broken = 0

    def create(self, key: str) -> str:
        """Create an export, with repeats as they are needed, and return its id."""
        body = orjson.dumps({"workflow": "checkout", "start": True, "metadata": {"key": key}})
        while True:
            try:
                status, answer = self._post(body, key)
            except (OSError, http.client.HTTPException) as error:
                self.broken += not isinstance(error, ConnectionRefusedError)
                self.connection.close()  # the next request opens it anew
                time.sleep(_PAUSE_S)
                continue
            if status == 201:
                self.answered += 1
                session_id: str = orjson.loads(answer)["id"]
                return session_id
            if status not in _AGAIN:
                self._creator.refused.append(answer)
                return ""
            time.sleep(_PAUSE_S)

    def _post(self, body: bytes, key: str) -> tuple[int, bytes]:
        self.connection.request("POST", "/v1/sessions", body, {**self._headers, "Idempotency-Key": key})
        response = self.connection.getresponse()
        return response.status, response.read()

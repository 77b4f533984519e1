"""Log lines: one JSON object each, without keys, quoted values or control characters. Contract §9."""

import json
import logging
import time
from typing import Any

import pytest

from recorder.errors import Unavailable
from recorder.logs import RepeatedWarnings, configure_logs, make_log_formatter
from recorder.request_context import continue_request_context
from recorder.setting_parsers import UnknownLogLevel


def line_of(message: str, *args: object, error: BaseException | None = None, **extra: Any) -> str:
    """Return the line that a log call writes."""
    result = (type(error), error, error.__traceback__) if error is not None else None
    record = logging.getLogger("recorder.tests").makeRecord(
        "recorder.tests", logging.WARNING, "file", 1, message, args, result, extra=extra
    )
    return make_log_formatter().format(record)


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    """Return the error with a trace, as it is caught."""
    try:
        raise error from cause
    except Exception as caught:
        return caught


def test_a_line_is_an_object_with_time_level_words_and_fields() -> None:
    output = json.loads(line_of("the lease %s is lost", "sealing", fence=7))
    at = output.pop("at")
    assert len(at) == 24 and at.endswith("Z")
    assert output == {
        "level": "warning",
        "event": "the lease sealing is lost",
        "logger": "recorder.tests",
        "fence": 7,
    }


@pytest.mark.parametrize(
    "secret",
    [
        "nsk_live_5xQmA0f3nTq8LrYcZ2bWv7KdJs4HgP1u",
        "nsk_test_5xQmA0f3nTq8LrYcZ2bWv7KdJs4HgP1u",
        "nsk_local_5xQmA0f3nTq8LrYcZ2bWv7KdJs4HgP1u",
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw+/==",
        "sig=0123456789abcdef0123456789abcdef",
    ],
)
def test_a_secret_is_taken_out_wherever_it_stands(secret: str) -> None:
    text = line_of("GET /v1/sessions?key=%s&limit=1", secret, address=f"/?{secret}", tree={"a": [secret]})
    assert secret[secret.index("=") + 1 if secret.startswith("sig") else 12 :] not in text
    assert text.count("[redacted]") == 3 and "limit=1" in text


@pytest.mark.parametrize(
    "credentials",
    ["recorder:hunter2", ":hunter2", "hunter2", "u:a/hunter2", "u:a@hunter2", "u:hunter2@", "u:a'hunter2"],
)
def test_the_password_in_an_address_is_taken_out(credentials: str) -> None:
    text = line_of("no answer from %s, again in 5 s", f"postgresql://{credentials}@db.internal/recorder")
    assert "hunter2" not in text and "[redacted]@db.internal/recorder, again in 5 s" in text


def test_addresses_without_credentials_stay_and_cost_little() -> None:
    text = line_of("%s and %s", "http://127.0.0.1:8700/v1/sessions?limit=1", "mail to a@b.example")
    assert "http://127.0.0.1:8700/v1/sessions?limit=1 and mail to a@b.example" in text
    began = time.process_time()
    line_of("://" * 300_000)
    assert time.process_time() - began < 5


@pytest.mark.parametrize("character", [chr(n) for n in (*range(32), 0x7F, *range(0x80, 0xA0), 0x2028)])
def test_control_characters_are_escaped(character: str) -> None:
    text = line_of(f"label {character}", label=character)
    assert text.isascii() and text.isprintable()
    assert json.loads(text)["label"] == character


def test_the_request_at_work_stands_in_the_line() -> None:
    with continue_request_context("req_1"):
        inside = json.loads(line_of("stored"))
    assert (inside["request_id"], "request_id" in json.loads(line_of("stored"))) == ("req_1", False)


def test_an_error_is_told_by_kind_and_place_and_ours_by_its_words() -> None:
    text = line_of(
        "failed",
        error=raised(Unavailable("The database"), raised(ValueError("could not bind 'Ada Lovelace'"))),
    )
    ours, driver = json.loads(text)["exception"]
    assert ours["message"].startswith("The database")
    assert driver["type"] == "builtins.ValueError" and "message" not in driver
    assert "test_logs.py" in driver["frames"][-1] and "Lovelace" not in text


def test_what_an_error_group_holds_is_told_too() -> None:
    group = ExceptionGroup("two", [raised(OSError(28, "No space left on device")), raised(KeyError("Ada"))])
    text = line_of("failed", error=raised(group))
    (output,) = json.loads(text)["exception"]
    assert [member[0].get("message") for member in output["group"]] == ["No space left on device", None]
    assert "Ada" not in text


def test_a_level_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UnknownLogLevel, match="debug, info, warning, error"):
        configure_logs("loud")


def test_a_warning_of_the_server_is_written_once_a_minute_with_the_number_left_out() -> None:
    now_s = 0.0
    repeated = RepeatedWarnings(now=lambda: now_s)

    def passes(level: int, text: str, *values: object) -> int | None:
        record = logging.LogRecord("uvicorn.error", level, "", 0, text, values, None)
        return getattr(record, "repeated", 0) if repeated.filter(record) else None

    assert [passes(logging.WARNING, "Invalid HTTP request received.") for _ in range(1_000)] == [0] + [
        None
    ] * 999
    assert passes(logging.WARNING, "another %d", 1) == 0 and passes(logging.WARNING, "another %d", 2) is None
    assert [passes(logging.ERROR, "Invalid HTTP request received.") for _ in range(2)] == [0, 0]
    now_s = 60.0
    assert passes(logging.WARNING, "Invalid HTTP request received.") == 999
    assert passes(logging.WARNING, "Invalid HTTP request received.") is None

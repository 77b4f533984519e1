"""Drop targets of recorded drags: `data.drop` of the event, in the form of a `target`. Spec §4.6."""

from collections.abc import Mapping
from typing import Any

from recorder.replays.recorded_session import RecordedEvent

_TEXTS = ("role", "name", "tag", "text", "near")


def read_drop_target(event: RecordedEvent) -> Mapping[str, Any] | None:
    """Return the target on which a drag ended; None where the recording names none.

    `data` has any form that a client chose: members of other types are left out.
    """
    data = event.get("data")
    drop = data.get("drop") if isinstance(data, Mapping) else None
    if not isinstance(drop, Mapping):
        return None
    target: dict[str, Any] = {name: drop[name] for name in _TEXTS if isinstance(drop.get(name), str)}
    attrs, selectors = drop.get("attrs"), drop.get("selectors")
    if isinstance(attrs, Mapping):
        target["attrs"] = {name: value for name, value in attrs.items() if isinstance(value, str)}
    if isinstance(selectors, list):
        target["selectors"] = [selector for selector in selectors if _is_drop_selector(selector)]
    return target or None


def _is_drop_selector(value: Any) -> bool:
    parts = value if isinstance(value, list) else [value]
    return all(isinstance(part, str) for part in parts)

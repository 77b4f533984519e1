"""Frames of one session by time and id, with the digests of their screens, for its steps. Design §3."""

from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from recorder.memory.steps.screens import NO_SCREEN, FrameScreen, Screen, locate_elements_on_screen
from recorder.memory.steps.session_steps import Step

#: Number of features of a session's screens that are kept: 2,048 screens of 1,024 features.
MAX_FEATURES = 2_048 * 1_024

#: Steps that an earlier release packed may have other members, which are ignored.
_STEP_MEMBERS = frozenset(field.name for field in fields(Step))


class FrameIndex:
    """Frames of one session by time and id, with the screens for steps."""

    def __init__(self, frames: Sequence[tuple[int, str]]) -> None:
        """Index frames whose screens are not known yet.

        Args:
            frames: `(t_ms, frame_id)` of each, in this order.
        """
        self.ids = [frame_id for _, frame_id in frames]
        self._times = array("q", [t_ms for t_ms, _ in frames])
        self._seqs = {frame_id: seq for seq, frame_id in enumerate(self.ids)}
        self._state_keys: list[str | None] = []
        self._locations: list[tuple[str, ...]] = []
        self._known_locations: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._keys: dict[str, str] = {}
        #: Packed features by screen: a screen of several frames is kept once.
        self._features: dict[str, bytes] = {}
        self._features_left = MAX_FEATURES
        self._screens: dict[str, Screen] = {}

    def __len__(self) -> int:
        return len(self.ids)

    def add_screen(self, state_key: str | None, features: Sequence[int], tokens: Sequence[str]) -> bool:
        """Add the screen of the next frame; return whether its features are kept for the first time."""
        locations = locate_elements_on_screen(tokens)
        # Equal ones are kept once.
        self._locations.append(self._known_locations.setdefault(locations, locations))
        if state_key is not None:
            # Equal keys share one string.
            state_key = self._keys.setdefault(state_key, state_key)
        self._state_keys.append(state_key)
        if state_key is None or state_key in self._features or len(features) > self._features_left:
            return False
        self._features[state_key] = array("q", features).tobytes()
        self._features_left -= len(features)
        return True

    def bind(self, t_ms: int, frame_id: str | None) -> int | None:
        """Return the number of the frame of an event; see `screens.bind_screen_frames_to_events`."""
        seq = self._seqs.get(frame_id) if frame_id is not None else None
        if seq is None:
            seq = bisect_right(self._times, t_ms) - 1
        return seq if seq >= 0 else None

    def screen_at(self, seq: int) -> FrameScreen:
        """Return a frame with the digests of its screen for steps."""
        screen = self.screen_of(self._state_keys[seq])
        return FrameScreen(self._times[seq], self.ids[seq], screen, self._locations[seq])

    def screen_of(self, state_key: str | None) -> Screen:
        """Return the screen of this key, without tokens; without features past `MAX_FEATURES`."""
        if state_key is None:
            return NO_SCREEN
        screen = self._screens.get(state_key)
        if screen is None:
            features = array("q", self._features.get(state_key, b""))
            screen = self._screens[state_key] = Screen(state_key, tuple(features), ())
        return screen


def pack_steps_with_frame_index(index: FrameIndex, steps: Sequence[Step]) -> list[dict[str, Any]]:
    """Return steps as JSON values, without features that the index holds."""
    packed = []
    for step in steps:
        values = {name: getattr(step, name) for name in Step.__slots__}
        if step.screen_key and index.screen_of(step.screen_key).features == step.features:
            values["features"] = None
        packed.append(values)
    return packed


def restore_steps_with_frame_index(index: FrameIndex, packed: Sequence[Mapping[str, Any]]) -> list[Step]:
    """Return the steps that `pack_steps_with_frame_index` packed."""
    steps = []
    for values in packed:
        given = values["features"]
        features = index.screen_of(values["screen_key"]).features if given is None else tuple(given)
        texts = {name: tuple(values.get(name, ())) for name in ("names", "locations")}
        known = {name: value for name, value in values.items() if name in _STEP_MEMBERS}
        steps.append(Step(**{**known, **texts, "features": features}))
    return steps

"""A workflow whose truth is known: sessions planted on eight paths, with noise, failures and strangers.

Every path is open, search, some steps of its own, draft, more of its own, submit: four steps that all share,
and four to eight drawn from twelve, so two paths share some of those too. People repeat a step, go back and
do it again, or skip one, and a screen has three appearances. A fifth of the sessions fails: most of those
recover from one of two anchors and go on with what failed, the others stop there. Two in a hundred follow no
path at all.

The noise was set by what exact variants reach, not by what the graph reaches. In the measurements that the
goals rest on, 10,000 sessions made 1,061 exact variants with an adjusted Rand index of .439; here three seeds
make 1,156, 1,206 and 1,065 with .41, .45 and .49. A session that fails after two steps is like that of any
path, so nothing can reach 1.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from recorder.memory.steps.action_tokens import hash_texts
from recorder.memory.steps.session_steps import Step

PATHS = 8
FAILURE_SHARE, RECOVERY_SHARE = 0.20, 0.60
#: Which anchor those who recover go back to.
ANCHOR_SHARES = (0.70, 0.30)
OUTLIER_SHARE = 0.02
#: Chances at every step of a path.
REPEAT_SHARE, BACKTRACK_SHARE, SKIP_SHARE = 0.05, 0.02, 0.02
#: Steps that all paths have; those between are numbered up to `_STEPS`.
OPEN, SEARCH, DRAFT, SUBMIT = range(4)
#: The steps that recovery starts from, the more frequent first.
ANCHORS = (SEARCH, DRAFT)

_STEPS, _STEPS_OF_A_SCREEN = 16, 3
_LOOKS, _TOKENS, _TOKENS_OF_A_LOOK = 3, 24, 2
_NAMES = {OPEN: "open", SEARCH: "search", DRAFT: "draft", SUBMIT: "submit"}
_SESSION_GAP_MS, _STEP_GAP_MS, _STEP_GAP_SPREAD = 60_000, 2_000, 0.6


@dataclass(frozen=True, slots=True)
class PlantedSession:
    """A session, and what is true of it."""

    session_id: str
    steps: list[Step]
    #: Which of the paths it follows, 0 the most common; None: it is an outlier.
    path: int | None
    outcome: str
    #: Start of the session, in ms from that of the first one.
    started_ms: int
    duration_ms: int
    #: When its failure was tagged, in ms from the start.
    failed_ms: int | None = None
    #: The step its recovery starts from, one of `ANCHORS`.
    anchor: int | None = None

    @property
    def is_outlier(self) -> bool:
        """True if it follows none of the paths."""
        return self.path is None


@dataclass(frozen=True, slots=True)
class Planted:
    """A planted workflow: its paths as numbers of steps, the most common first, and its sessions in order."""

    paths: tuple[tuple[int, ...], ...]
    sessions: list[PlantedSession]


def plant(sessions: int = 10_000, *, seed: int = 0) -> Planted:
    """Return a planted workflow; equal arguments give equal sessions.

    Args:
        sessions: how many, up to some 100,000.
        seed: of all draws.
    """
    planter = _Planter(seed)
    return Planted(planter.paths, [planter.session(index) for index in range(sessions)])


def plant_sessions(sessions: int, *, seed: int = 0) -> Iterator[PlantedSession]:
    """Yield the sessions of `plant` one by one, for workflows that take too much memory at once."""
    planter = _Planter(seed)
    return map(planter.session, range(sessions))


def step_label(step: int) -> str:
    """Return the label of the steps of this number."""
    return f"Click {_NAMES.get(step, f'step {step}')}"


class _Planter:
    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._looks = [[_state(step, look) for look in range(_LOOKS)] for step in range(_STEPS)]
        self.paths = tuple(self._path() for _ in range(PATHS))

    def session(self, index: int) -> PlantedSession:
        """Return the next session."""
        draw = self._draw
        if draw.random() < OUTLIER_SHARE:
            return self._timed(index, draw.sample(range(_STEPS), draw.randint(4, 14)))
        [label] = draw.choices(range(PATHS), [1 / (rank + 1) for rank in range(PATHS)])
        path = self.paths[label]
        if draw.random() >= FAILURE_SHARE:
            return self._timed(index, self._walk(path), label)
        [anchor] = draw.choices(ANCHORS, ANCHOR_SHARES)
        # Who stands on the anchor already cannot be seen to go back to it.
        failed = draw.choice([at for at in range(1, len(path)) if path[at - 1] != anchor])
        before = self._walk(path[:failed])
        if draw.random() < RECOVERY_SHARE:
            return self._timed(index, before, label, after=[anchor, *self._walk(path[failed:])])
        return self._timed(index, before, label, after=[])

    def _path(self) -> tuple[int, ...]:
        details = self._draw.sample(range(SUBMIT + 1, _STEPS), self._draw.randint(4, 8))
        middle = len(details) // 2
        return (OPEN, SEARCH, *details[:middle], DRAFT, *details[middle:], SUBMIT)

    def _walk(self, path: Sequence[int]) -> list[int]:
        """Return the steps of a path as one session takes them."""
        draw = self._draw
        walked: list[int] = []
        for index, step in enumerate(path):
            if index and draw.random() < SKIP_SHARE:
                continue
            walked.append(step)
            if draw.random() < REPEAT_SHARE:
                walked.append(step)
            if index and draw.random() < BACKTRACK_SHARE:
                walked += [path[index - 1], step]
        return walked

    def _timed(
        self, index: int, walked: Sequence[int], label: int | None = None, after: Sequence[int] | None = None
    ) -> PlantedSession:
        """Return a session of these steps; it fails before `after`, and ends there if that is empty."""
        times = self._times(len(walked) + len(after or ()) + 1)
        steps = list(self._states([*walked, *(after or ())], times))
        failed_ms = None if after is None else sum(times[len(walked) - 1 : len(walked) + 1]) // 2
        return PlantedSession(
            session_id=f"ses_{index:06d}",
            steps=steps,
            path=label,
            outcome="success" if after is None or after else "error",
            started_ms=index * _SESSION_GAP_MS,
            duration_ms=times[-1],
            failed_ms=failed_ms,
            anchor=after[0] if after else None,
        )

    def _times(self, count: int) -> list[int]:
        gaps = (_STEP_GAP_MS * self._draw.lognormvariate(0, _STEP_GAP_SPREAD) for _ in range(count))
        return [round(t_ms) for t_ms in accumulate(gaps)]

    def _states(self, walked: Sequence[int], times: Sequence[int]) -> Iterator[Step]:
        """Return steps as `session_steps` does: a repeated step with the same appearance is one step."""
        last = None
        for step, t_ms in zip(walked, times, strict=False):
            state = self._draw.choice(self._looks[step])
            if state is last:
                continue
            last = state
            yield replace(state, t_in_ms=t_ms, t_out_ms=t_ms)


def _state(step: int, look: int) -> Step:
    """Return a step on its screen; the appearances of a screen share eleven twelfths of their tokens."""
    screen = str(step // _STEPS_OF_A_SCREEN)
    tokens = [hash_texts("planted", screen, str(index)) for index in range(_TOKENS - _TOKENS_OF_A_LOOK)]
    tokens += [hash_texts("planted", screen, str(look), str(index)) for index in range(_TOKENS_OF_A_LOOK)]
    screen_key, target = f"planted {screen} {look}", f"button test={_NAMES.get(step, f'step {step}')}"
    return Step(
        pos=0,
        micro_key=hash_texts(screen_key, "click", target),
        screen_key=screen_key,
        action="click",
        target=target,
        label=step_label(step),
        features=tuple(sorted(tokens)),
        t_in_ms=0,
        t_out_ms=0,
        frame_id=None,
        event_id=f"evt_{step}",
        runs=1,
    )

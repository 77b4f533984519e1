"""When an attempt is due and which is the last: pure arithmetic, in milliseconds. Spec §6.3, contract §6."""

from dataclasses import dataclass

#: Waits after the first, second, … failed attempt: 5 s, 30 s, 5 min, 30 min, 2 h, 6 h, 12 h.
WAITS_S: tuple[float, ...] = (5, 30, 300, 1_800, 7_200, 21_600, 43_200)
MAX_ATTEMPTS = 7
#: A wait is lengthened by up to this share, so that what failed together does not come back together.
JITTER = 0.1


@dataclass(frozen=True)
class Schedule:
    """How often and how far apart a delivery is attempted."""

    waits_s: tuple[float, ...] = WAITS_S
    max_attempts: int = MAX_ATTEMPTS

    def __post_init__(self) -> None:
        if not 1 <= self.max_attempts <= len(self.waits_s) + 1:
            raise ValueError(f"There are waits for 1 to {len(self.waits_s) + 1} attempts.")

    def next_due_ms(self, attempt: int, *, failed_ms: int, share: float) -> int | None:
        """When the attempt after a failed one is due; None after the last.

        Args:
            attempt: number of the one that failed, from 1.
            failed_ms: when it failed.
            share: of the jitter, 0 to 1; the caller draws it.
        """
        if attempt >= self.max_attempts:
            return None
        wait_ms = self.waits_s[attempt - 1] * 1000
        return failed_ms + round(wait_ms * (1 + JITTER * share))

"""Judgement of the samples of a soak: the last third against the first, each with its goal.

Files that are kept for a day or longer (log of the lake, runs of Dagster) grow with the load: their growth
for each session is compared.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.figure_reports import Goal, at_most
from benchmarks.soak.samples import Sample
from recorder.supervisor.service_logs import LOG_BYTES

COMMITS = 1_000
_GROWING = ("lake log", "Dagster's files")
#: A log is turned over a few seconds after it reached its size.
_LARGEST_LOG_MB = 1.5 * LOG_BYTES / 1e6
#: Fewer samples of a third are not compared.
_LEAST_SAMPLES = 5


@dataclass(frozen=True)
class Verdict:
    """A value of the first and the last third, their ratio, and its goal; None: for information."""

    name: str
    unit: str
    first: float
    last: float
    goal: Goal | None

    @property
    def ratio(self) -> float:
        """The last value by the first one."""
        return self.last / self.first if self.first else float(self.last > 0)

    @property
    def is_reached(self) -> bool | None:
        """True if the goal is reached; None without one."""
        return None if self.goal is None else self.goal.is_reached(self.ratio)


def judge(samples: Sequence[Sample]) -> list[Verdict]:
    """Return all verdicts of a soak, in the order of the table.

    Raises:
        ValueError: if there are too few samples.
    """
    first, last = _split_thirds(samples)
    verdicts = _judge_processes(first, last)
    peaks = [max(sample.files_mb["WAL"] for sample in third) for third in (first, last)]
    verdicts.append(Verdict("WAL, peak", "MB", peaks[0], peaks[1], at_most(1.5)))
    for name in _GROWING:
        rates = [_growth_kb(third, name) for third in (first, last)]
        verdicts.append(Verdict(f"{name}, growth", "KB/session", rates[0], rates[1], at_most(1.5)))
    for name in ("database", "logs"):
        sizes = [statistics.median(sample.files_mb[name] for sample in third) for third in (first, last)]
        verdicts.append(Verdict(name, "MB", sizes[0], sizes[1], None))
    largest = max(sample.largest_log_mb for sample in last)
    verdicts.append(Verdict("largest log ÷ its bound", "MB", _LARGEST_LOG_MB, largest, at_most(1.0)))
    return [*verdicts, _judge_commits(samples)]


def _split_thirds(samples: Sequence[Sample]) -> tuple[list[Sample], list[Sample]]:
    """Return the samples of the first and of the last third of the time."""
    if not samples:
        raise ValueError("There are no samples; let the soak run for longer.")
    end = samples[-1].at
    first = [sample for sample in samples if sample.at <= end / 3]
    last = [sample for sample in samples if sample.at >= end * 2 / 3]
    if min(len(first), len(last)) < _LEAST_SAMPLES:
        raise ValueError("There are too few samples; let the soak run for longer.")
    return first, last


def _judge_processes(first: list[Sample], last: list[Sample]) -> list[Verdict]:
    """Return the medians of memory and open files of each process.

    Runs of Dagster come and go: each that is there in both thirds is judged, and their sum for information.
    """
    verdicts = []
    for what, unit in (("memory_mb", "MB"), ("open_files", "files")):
        for name in dict.fromkeys(name for sample in first for name in getattr(sample, what)):
            values = [
                [getattr(sample, what)[name] for sample in third if name in getattr(sample, what)]
                for third in (first, last)
            ]
            # A process that came late in the first third was still loading what it needs.
            if len(values[0]) >= 0.8 * len(first) and len(values[1]) >= _LEAST_SAMPLES:
                # A code server has some files open for each run.
                goal = None if name.endswith(", children") else at_most(1.1 if unit == "MB" else 1.5)
                label = f"{name}, {'memory' if unit == 'MB' else 'open files'}"
                medians = [statistics.median(each) for each in values]
                verdicts.append(Verdict(label, unit, medians[0], medians[1], goal))
    return verdicts


def _growth_kb(third: list[Sample], name: str) -> float:
    """Return the KB by which files grew in a third, for each session of it."""
    grown = third[-1].files_mb[name] - third[0].files_mb[name]
    return max(0.0, grown * 1e3) / max(1, third[-1].sessions - third[0].sessions)


def _judge_commits(samples: Sequence[Sample]) -> Verdict:
    """Return the mean milliseconds of the first and the last thousand commits, or of a third where fewer."""
    count = min(COMMITS, (samples[-1].commits - samples[0].commits) // 3)
    end_of_first = next(sample for sample in samples if sample.commits >= samples[0].commits + count)
    begin_of_last = next(
        sample for sample in reversed(samples) if sample.commits <= samples[-1].commits - count
    )
    means = [_mean_ms(samples[0], end_of_first), _mean_ms(begin_of_last, samples[-1])]
    return Verdict(f"commits of ingest, {count:,} each, mean", "ms", means[0], means[1], at_most(1.5))


def _mean_ms(begin: Sample, end: Sample) -> float:
    return (end.commit_seconds - begin.commit_seconds) * 1e3 / max(1, end.commits - begin.commits)

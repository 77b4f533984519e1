"""Program of a scan process: runs the jobs that `ScanPool` sends and reports after each rule. Contract §3.

RE2 cannot be interrupted, and a text cannot be cut into slices without losing matches that span them. So a
scan runs in a process of its own. The kernel ends the process when the job has used its CPU time
(`ITIMER_PROF`). On a busy machine wall-clock time would include waiting.
"""

import os
import resource
import signal
import sys
import time
from contextlib import suppress
from itertools import islice
from typing import BinaryIO

import msgspec

from recorder import limits
from recorder.limited_process import read_peak_memory
from recorder.masking.masker import Masker, compile_masker_rules, split_json_strings_to_mask
from recorder.masking.pattern_admission import find_refusals

#: Lower priority than the API process, which answers requests without scans too.
_NICENESS = 5
#: A process that grew larger ends after its job; the next process starts small.
_MAX_BYTES = 600 * 1000 * 1024


class ScanJob(msgspec.Struct):
    """Job as it is sent to a scan process."""

    #: CPU seconds.
    budget_s: float
    #: `mask`, `mask_by_rule` (names the rule at work, for a body that took too long before) or `admit`.
    kind: str
    policies: tuple[str, ...] = ()
    key: bytes = b""
    documents: list[bytes] = []
    #: Of `admit`.
    patterns: list[dict[str, str]] = []


class ScanReport(msgspec.Struct):
    """Message from a scan process: the rule that begins, or the result."""

    rule: str | None = None
    #: CPU seconds of the job so far.
    used_s: float = 0.0
    changes: dict[int, dict[str, str]] | None = None
    refusals: list[tuple[int | None, str, str]] | None = None
    #: Type of the exception that ended the job.
    failure: str | None = None
    #: Whether the process ends after this report.
    is_last: bool = False


def encode_scan_message(message: msgspec.Struct) -> bytes:
    """Return a message as it is sent through a pipe, with its length first."""
    data = msgspec.msgpack.encode(message)
    return len(data).to_bytes(8, "big") + data


def main() -> None:
    """Run masking jobs from stdin until it ends."""
    with suppress(OSError):
        os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which closes the pipe
    jobs, reports = sys.stdin.buffer, sys.stdout.buffer
    decoder = msgspec.msgpack.Decoder(ScanJob)
    while head := jobs.read(8):
        job = decoder.decode(jobs.read(int.from_bytes(head, "big")))
        signal.setitimer(signal.ITIMER_PROF, job.budget_s)
        report = _run_job(job, reports)
        signal.setitimer(signal.ITIMER_PROF, 0)
        report.is_last = read_peak_memory() > _MAX_BYTES
        reports.write(encode_scan_message(report))
        reports.flush()
        if report.is_last:
            return


def _run_job(job: ScanJob, reports: BinaryIO) -> ScanReport:
    """Mask the documents of a job, or check the patterns that it wants to admit."""
    try:
        if job.kind == "admit":
            return ScanReport(
                refusals=[
                    (refusal.index, refusal.code, refusal.message) for refusal in find_refusals(job.patterns)
                ]
            )
        masker = Masker(compile_masker_rules(job.policies), job.key)
        if job.kind == "mask_by_rule":
            _scan_by_rule(masker, job.documents, reports)
        return ScanReport(changes=masker.find_changes(job.documents))
    except Exception as error:  # the text of an error may contain values to mask
        return ScanReport(failure=type(error).__name__)


def _scan_by_rule(masker: Masker, documents: list[bytes], reports: BinaryIO) -> None:
    """Run every rule over all documents, and report each before it begins."""
    began = time.process_time()
    for rule in masker.rules.rules:
        _report_rule_time(rule.name, began, reports)
        for document in documents:
            for _ in islice(
                rule.find(split_json_strings_to_mask(document) or document), limits.MASKING_HITS + 1
            ):
                pass
    _report_rule_time("", began, reports)  # the remaining work belongs to no single rule


def _report_rule_time(name: str, began: float, reports: BinaryIO) -> None:
    reports.write(encode_scan_message(ScanReport(rule=name, used_s=time.process_time() - began)))
    reports.flush()

"""Checks of a dataset: against its manifest, and against the lake. Spec §2.5, §4.3."""

from recorder.exports.verify.manifest_check import VerifyReport, verify_manifest

__all__ = ["VerifyReport", "verify_manifest"]

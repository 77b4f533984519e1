"""Checking a dataset against its manifest: size, rows and hash of each file, and the row set. Spec §2.5."""

from recorder.exports.verify.check import VerifyReport, verify_manifest
from recorder.exports.verify.listing import ManifestUnreadable

__all__ = ["ManifestUnreadable", "VerifyReport", "verify_manifest"]

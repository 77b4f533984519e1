"""Checking a dataset against its manifest: size, rows and hash of each file, and the row set. Spec §2.5."""

from recorder.exports.verify.checking import verify_manifest
from recorder.exports.verify.listing import ManifestUnreadable
from recorder.exports.verify.report import VerifyReport

__all__ = ["ManifestUnreadable", "VerifyReport", "verify_manifest"]

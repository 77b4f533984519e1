"""S3 and stores that speak like it: parts with checksums, created under a condition. Spec §4.3."""

import base64
import hashlib
import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from recorder.errors import InvalidDestination, RecorderError, Unavailable
from recorder.exports.destinations.aws import (
    make_missing_identity,
    open_aws_client,
    raise_if_aws_identity_refused,
    require_external_id,
)
from recorder.exports.destinations.base import (
    PART_BYTES,
    AlreadyThere,
    Damaged,
    ExportLocation,
    StoreTimeouts,
    StoreUpload,
    compute_store_part_bytes,
)
from recorder.exports.destinations.object_store import require_bucket_owner

log = logging.getLogger("recorder.exports")

_SUBJECT = "The export destination"
_PIECE_BYTES = 1024 * 1024
_PARTS_AT_ONCE = 4
_MAX_PARTS = 10_000
_MISSING = ("NoSuchKey", "404", "NotFound")
_CONFLICT_CODES = ("PreconditionFailed", "412", "NoSuchUpload")
_TEMPORARY_CODES = (
    "SlowDown",
    "RequestTimeout",
    "ConditionalRequestConflict",
    "OperationAborted",
    "Throttling",
)


@dataclass(frozen=True)
class _UploadPart:
    number: int
    etag: str
    sha256: bytes
    md5: bytes


class S3Store:
    """One bucket, opened with the role of the target, or with the service's own rights."""

    def __init__(self, target: ExportLocation, patience: StoreTimeouts) -> None:
        self._target = target
        self._patience = patience
        with _translate_s3_errors(""):
            self._client = open_aws_client("s3", target, patience)

    def require_owner(self) -> None:
        """Check that the bucket takes files of this workspace."""
        if self._target.is_trusted:
            return
        if self._target.role_arn is None:
            require_bucket_owner(self, self._target.workspace_id)
        else:
            require_external_id(self._target, self._patience)

    def put(self, staged: StoreUpload, key: str, *, replace: bool) -> None:
        """Upload a file, in parts where it is large, and compare what the store then holds."""
        condition = {} if replace else {"IfNoneMatch": "*"}
        with _translate_s3_errors(key):
            if staged.size_bytes <= PART_BYTES:
                etag, checksum = self._put_in_one_request(staged, key, condition)
            else:
                etag, checksum = self._put_by_multipart_upload(staged, key, condition)
            self._require_same_object(staged, key, etag=etag, checksum=checksum)

    def size(self, key: str) -> int:
        """Return the size of an object."""
        with _translate_s3_errors(key):
            return int(self._client.head_object(Bucket=self._target.bucket, Key=key)["ContentLength"])

    def get(self, key: str, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from `start` up to, not including, `end`."""
        with _translate_s3_errors(key):
            part = f"bytes={start}-{end - 1}"
            answer = self._client.get_object(Bucket=self._target.bucket, Key=key, Range=part)
            yield from answer["Body"].iter_chunks(_PIECE_BYTES)

    def delete(self, key: str) -> None:
        """Remove an object; S3 reports a missing one as removed."""
        with _translate_s3_errors(key):
            self._client.delete_object(Bucket=self._target.bucket, Key=key)

    def list_keys(self, prefix: str) -> Iterator[str]:
        """Yield the keys that begin with a prefix."""
        with _translate_s3_errors(prefix):
            pages = self._client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._target.bucket, Prefix=prefix):
                yield from (item["Key"] for item in page.get("Contents", ()))

    def copy(self, key: str, source_key: str, *, sha256: str) -> bool:
        """Copy an object if S3 stores this digest of it; return False if not, or if the key is taken."""
        bucket = self._target.bucket
        try:
            with _translate_s3_errors(source_key):
                stored = self._client.head_object(Bucket=bucket, Key=source_key, ChecksumMode="ENABLED")
                # The digest that S3 computed; anyone may write metadata. A file that was sent in parts has a
                # checksum of checksums instead.
                if stored.get("ChecksumSHA256") != _encode_s3_digest(bytes.fromhex(sha256)):
                    return False
                with suppress(KeyError):
                    self.size(key)
                    return False
                source = {"Bucket": bucket, "Key": source_key}
                conditions = {"CopySourceIfMatch": stored["ETag"], "IfNoneMatch": "*"}
                self._client.copy_object(Bucket=bucket, Key=key, CopySource=source, **conditions)
        except (KeyError, AlreadyThere, InvalidDestination):
            # Missing, or not readable: the caller reads and writes the bytes instead.
            return False
        if self.size(key) != stored["ContentLength"]:
            raise Unavailable(_SUBJECT)
        return True

    def abort_uploads(self, prefix: str) -> None:
        """Abort all unfinished uploads below a prefix, which the caller alone writes to.

        Without the right to list them, a life-cycle rule of the bucket has to.
        """
        try:
            with _translate_s3_errors(prefix):
                pages = self._client.get_paginator("list_multipart_uploads")
                for page in pages.paginate(Bucket=self._target.bucket, Prefix=prefix):
                    for upload in page.get("Uploads", ()):
                        self._abort_upload(upload["Key"], upload["UploadId"])
        except (RecorderError, KeyError):
            log.warning("unfinished uploads of %s could not be ended", self._target.export_id)

    def address(self, key: str) -> str:
        """Return the object's address for fsspec."""
        return f"s3://{self._target.bucket}/{key}"

    def _put_in_one_request(
        self, staged: StoreUpload, key: str, condition: dict[str, str]
    ) -> tuple[str, str]:
        staged.file.seek(0)
        data = staged.file.read()
        checksum = _encode_s3_digest(bytes.fromhex(staged.sha256))
        self._client.put_object(
            Bucket=self._target.bucket,
            Key=key,
            Body=data,
            ChecksumSHA256=checksum,
            Metadata={"sha256": staged.sha256},
            **condition,
        )
        return hashlib.md5(data, usedforsecurity=False).hexdigest(), checksum

    def _put_by_multipart_upload(
        self, staged: StoreUpload, key: str, condition: dict[str, str]
    ) -> tuple[str, str]:
        target = {"Bucket": self._target.bucket, "Key": key}
        begun = self._client.create_multipart_upload(
            **target, ChecksumAlgorithm="SHA256", Metadata={"sha256": staged.sha256}
        )
        upload_id = begun["UploadId"]
        try:
            parts = self._send_parts(staged, key, upload_id)
            listed = [
                {
                    "PartNumber": part.number,
                    "ETag": part.etag,
                    "ChecksumSHA256": _encode_s3_digest(part.sha256),
                }
                for part in parts
            ]
            self._client.complete_multipart_upload(
                **target, UploadId=upload_id, MultipartUpload={"Parts": listed}, **condition
            )
        except BaseException:
            self._abort_upload(key, upload_id)
            raise
        whole_md5 = hashlib.md5(b"".join(part.md5 for part in parts), usedforsecurity=False).hexdigest()
        whole_sha256 = hashlib.sha256(b"".join(part.sha256 for part in parts)).digest()
        return f"{whole_md5}-{len(parts)}", f"{_encode_s3_digest(whole_sha256)}-{len(parts)}"

    def _send_parts(self, staged: StoreUpload, key: str, upload_id: str) -> list[_UploadPart]:
        """Send the parts, a few at once; no more are in memory."""
        size = compute_store_part_bytes(staged.size_bytes, _MAX_PARTS)
        starts = range(0, staged.size_bytes, size)
        with ThreadPoolExecutor(_PARTS_AT_ONCE, thread_name_prefix="upload") as pool:
            try:
                sent = pool.map(
                    self._send_part, repeat(staged), repeat(key), repeat(upload_id), starts, repeat(size)
                )
                return list(sent)
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _send_part(self, staged: StoreUpload, key: str, upload_id: str, start: int, size: int) -> _UploadPart:
        data = os.pread(staged.file.fileno(), size, start)
        sha256, number = hashlib.sha256(data).digest(), start // size + 1
        answer = self._client.upload_part(
            Bucket=self._target.bucket,
            Key=key,
            UploadId=upload_id,
            PartNumber=number,
            Body=data,
            ChecksumSHA256=_encode_s3_digest(sha256),
        )
        return _UploadPart(number, answer["ETag"], sha256, hashlib.md5(data, usedforsecurity=False).digest())

    def _abort_upload(self, key: str, upload_id: str) -> None:
        with suppress(Exception):
            self._client.abort_multipart_upload(Bucket=self._target.bucket, Key=key, UploadId=upload_id)

    def _require_same_object(self, staged: StoreUpload, key: str, *, etag: str, checksum: str) -> None:
        """Compare size and the store's digest; if it has another kind of digest, read the bytes back."""
        stored = self._client.head_object(Bucket=self._target.bucket, Key=key, ChecksumMode="ENABLED")
        if stored["ContentLength"] != staged.size_bytes:
            raise Damaged
        # Under a key of KMS the ETag is no MD5; the checksum is the one that S3 compared on arrival.
        is_encrypted = str(stored.get("ServerSideEncryption", "")).startswith("aws:")
        if stored["ETag"].strip('"') == etag or (is_encrypted and stored.get("ChecksumSHA256") == checksum):
            return
        digest = hashlib.sha256()
        for piece in self.get(key, 0, staged.size_bytes) if staged.size_bytes else ():
            digest.update(piece)
        if digest.hexdigest() != staged.sha256:
            raise Damaged


def _encode_s3_digest(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


@contextmanager
def _translate_s3_errors(key: str) -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    try:
        yield
    except ClientError as error:
        raise_if_aws_identity_refused(error)
        raise _convert_s3_error(error.response, key) from error
    except NoCredentialsError as error:
        raise make_missing_identity() from error
    except (BotoCoreError, OSError) as error:
        raise Unavailable(_SUBJECT) from error


def _convert_s3_error(answer: Any, key: str) -> Exception:
    """Return the error for a refusal of S3, whose own text may have names that the client must not see."""
    code = str(answer.get("Error", {}).get("Code", ""))
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code in _CONFLICT_CODES:
        return AlreadyThere()
    if code in _MISSING:
        return KeyError(key)
    if code in _TEMPORARY_CODES or status >= 500 or status == 429:
        return Unavailable(_SUBJECT)
    if code == "NoSuchBucket":
        return InvalidDestination("There is no such bucket.", "/destination/bucket")
    if code in ("BadDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch", "InvalidPart"):
        return Damaged()
    text = f"The bucket refuses the request ({code or status}); check its name, region and the role's rights."
    return InvalidDestination(text)

"""The environment has one home: every setting of a deployment, read once at an edge. Contract §9."""

import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path

from recorder.errors import Invalid

DEFAULT_DATA_DIR = Path("recorder-data")
# No name and password: an address ends up in log lines.
_HOST = r"(\[[0-9A-Fa-f:]+\]|[^][/@:\s]+)"
_PASSWORD = re.compile(r"://[^/]*:[^/]*@")
_HOST_NAME = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(:[0-9]{1,5})?")
_HEADER_NAME = re.compile(r"[A-Za-z0-9-]{1,64}")
_EXECUTOR = re.compile(rf"in_process|processes:[1-9][0-9]{{0,2}}|(dask|tcp|tls)://{_HOST}:[0-9]{{1,5}}")


class InvalidSetting(Invalid):
    """A setting that cannot be read."""

    def __init__(self, name: str, takes: str) -> None:
        super().__init__(f"{name} takes {takes}.")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a deployment may choose; everything has a default under one data folder."""

    #: Everything the embedded deployment writes lies below this folder.
    data_dir: Path
    #: SQLAlchemy address of the control plane and the hot rows.
    database_url: str
    #: fsspec addresses (or folders) of frames, of the lake and of hosted exports.
    blob_url: str
    lake_url: str
    export_url: str
    #: `local` export destinations must lie under this folder; None forbids them.
    local_export_root: Path | None
    #: The deployment's secret: pepper of keys, signer of cursors and addresses. Never shown.
    secret: bytes = field(repr=False)
    region: str = "us"
    #: Address under which clients reach the API; signed addresses begin with it.
    public_url: str = "http://127.0.0.1:8700"
    #: The operator's addresses of stores that speak like S3, Google's and Azure's; None is the cloud itself.
    s3_endpoint: str | None = None
    gcs_endpoint: str | None = None
    azure_endpoint: str | None = None
    #: Buckets (`s3://…`, `gs://…`, `az://account/container`) that take files of every workspace.
    export_buckets: tuple[str, ...] = ()
    #: Redis that API processes share for rate limits and stream wake-ups; None keeps both in the process.
    redis_url: str | None = field(default=None, repr=False)
    #: fsspec address of archived frames; None keeps them where they are.
    cold_url: str | None = None
    #: Addresses beyond the public ones that webhooks may be sent to: hosts, addresses, networks.
    allowed_outbound: tuple[str, ...] = ("loopback",)
    #: How often a webhook delivery is attempted in all, 1 to 8.
    webhook_attempts: int = 7
    #: Opens `/metrics` to other machines; None leaves it to loopback alone.
    metrics_token: str | None = field(default=None, repr=False)
    #: From which level on the service's own log lines are written: debug, info, warning, error.
    log_level: str = "info"
    #: Host names of the servers beside loopback names and the public URL's host: `name` or `name:port`.
    allowed_hosts: tuple[str, ...] = ()
    #: Networks of proxies whose headers about the client are believed.
    trusted_proxies: tuple[str, ...] = ()
    #: Header in which a trusted proxy names the user of Dagster's pages; None leaves them to login links.
    dagster_auth_header: str | None = None
    #: Who writes the shards of exports: in_process, processes:N, or a Dask scheduler's address.
    export_executor: str = "in_process"

    @classmethod
    def from_env(
        cls, environment: Mapping[str, str] | None = None, *, data_dir: Path | None = None
    ) -> "Settings":
        """The settings that the environment names, with the embedded defaults for the rest.

        The data folder is created; a missing secret is made once and kept in it with mode 600.

        Args:
            environment: read instead of the process's own.
            data_dir: overrules `RECORDER_DATA_DIR`.
        """
        env = os.environ if environment is None else environment
        data = data_folder(data_dir, env)
        data.mkdir(parents=True, exist_ok=True)
        root = env.get("RECORDER_LOCAL_EXPORT_ROOT")
        trusted_proxies = _trusted_proxies(env.get("RECORDER_TRUSTED_PROXIES", ""))
        return cls(
            data_dir=data,
            database_url=env.get("RECORDER_DATABASE_URL", f"sqlite:///{data / 'recorder.db'}"),
            blob_url=_store(env, "RECORDER_BLOB_URL") or str(data / "blobs"),
            lake_url=_store(env, "RECORDER_LAKE_URL") or str(data / "lake"),
            export_url=_store(env, "RECORDER_EXPORT_URL") or str(data / "exports"),
            local_export_root=Path(root).expanduser().resolve() if root else None,
            secret=env["RECORDER_SECRET"].encode() if env.get("RECORDER_SECRET") else _kept_secret(data),
            region=env.get("RECORDER_REGION", "us"),
            public_url=env.get("RECORDER_PUBLIC_URL", "http://127.0.0.1:8700").rstrip("/"),
            s3_endpoint=_address(env, "RECORDER_S3_ENDPOINT"),
            gcs_endpoint=_address(env, "RECORDER_GCS_ENDPOINT"),
            azure_endpoint=_address(env, "RECORDER_AZURE_ENDPOINT"),
            export_buckets=_buckets(env.get("RECORDER_EXPORT_BUCKETS", "")),
            redis_url=env.get("RECORDER_REDIS_URL") or None,
            cold_url=_store(env, "RECORDER_COLD_URL") or None,
            allowed_outbound=_words(env.get("RECORDER_ALLOWED_OUTBOUND", "loopback")),
            webhook_attempts=_webhook_attempts(env.get("RECORDER_WEBHOOK_ATTEMPTS", "7")),
            metrics_token=env.get("RECORDER_METRICS_TOKEN") or None,
            log_level=env.get("RECORDER_LOG_LEVEL", "info").lower(),
            export_executor=_export_executor(env.get("RECORDER_EXPORT_EXECUTOR", "in_process")),
            allowed_hosts=_allowed_hosts(env.get("RECORDER_ALLOWED_HOSTS", "")),
            trusted_proxies=trusted_proxies,
            dagster_auth_header=_auth_header(env.get("RECORDER_DAGSTER_AUTH_HEADER", ""), trusted_proxies),
        )

    def as_env(self) -> dict[str, str]:
        """The variables that give a child process these same settings (the secret stays in its file)."""
        chosen = {
            "RECORDER_DATA_DIR": str(self.data_dir),
            "RECORDER_DATABASE_URL": self.database_url,
            "RECORDER_BLOB_URL": self.blob_url,
            "RECORDER_LAKE_URL": self.lake_url,
            "RECORDER_EXPORT_URL": self.export_url,
            "RECORDER_REGION": self.region,
            "RECORDER_PUBLIC_URL": self.public_url,
            "RECORDER_ALLOWED_OUTBOUND": ",".join(self.allowed_outbound),
        }
        if self.redis_url is not None:
            chosen["RECORDER_REDIS_URL"] = self.redis_url
        for name, endpoint in (
            ("RECORDER_S3_ENDPOINT", self.s3_endpoint),
            ("RECORDER_GCS_ENDPOINT", self.gcs_endpoint),
            ("RECORDER_AZURE_ENDPOINT", self.azure_endpoint),
        ):
            if endpoint is not None:
                chosen[name] = endpoint
        if self.export_buckets:
            chosen["RECORDER_EXPORT_BUCKETS"] = ",".join(self.export_buckets)
        if self.cold_url is not None:
            chosen["RECORDER_COLD_URL"] = self.cold_url
        if self.webhook_attempts != Settings.webhook_attempts:
            chosen["RECORDER_WEBHOOK_ATTEMPTS"] = str(self.webhook_attempts)
        if self.log_level != Settings.log_level:
            chosen["RECORDER_LOG_LEVEL"] = self.log_level
        if self.export_executor != Settings.export_executor:
            chosen["RECORDER_EXPORT_EXECUTOR"] = self.export_executor
        if self.allowed_hosts:
            chosen["RECORDER_ALLOWED_HOSTS"] = ",".join(self.allowed_hosts)
        if self.trusted_proxies:
            chosen["RECORDER_TRUSTED_PROXIES"] = ",".join(self.trusted_proxies)
        if self.dagster_auth_header is not None:
            chosen["RECORDER_DAGSTER_AUTH_HEADER"] = self.dagster_auth_header
        if self.local_export_root is not None:
            chosen["RECORDER_LOCAL_EXPORT_ROOT"] = str(self.local_export_root)
        return chosen


def data_folder(data_dir: Path | None, environment: Mapping[str, str] | None = None) -> Path:
    """Return the data folder that is chosen, or the environment's; it need not exist."""
    env = os.environ if environment is None else environment
    return (data_dir or Path(env.get("RECORDER_DATA_DIR", DEFAULT_DATA_DIR))).expanduser().resolve()


def child_environment(settings: Settings, extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment for a child that serves the same deployment."""
    return environment_with({**settings.as_env(), **extra})


def environment_with(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment for a child, with some variables set otherwise."""
    return {**os.environ, **extra}


def _export_executor(text: str) -> str:
    if not _EXECUTOR.fullmatch(text):
        takes = "in_process, processes:N, or a Dask scheduler's address such as tcp://10.0.0.5:8786"
        raise InvalidSetting("RECORDER_EXPORT_EXECUTOR", takes)
    return text


def azure_account_key() -> str | None:
    """The key of the operator's own Azure-like store, which each process reads for itself."""
    return os.environ.get("AZURE_STORAGE_ACCOUNT_KEY") or None


def _address(env: Mapping[str, str], name: str) -> str | None:
    url = env.get(name, "").rstrip("/")
    if url and not url.startswith(("http://", "https://")):
        raise InvalidSetting(name, "an address that begins with http:// or https://")
    return url or None


def _store(env: Mapping[str, str], name: str) -> str:
    """An address that may be shown: it is logged, and handed to workers."""
    url = env.get(name, "")
    if _PASSWORD.search(url):
        raise InvalidSetting(
            name,
            "an address without a password; give that in the store's own environment variables "
            "(AWS_SECRET_ACCESS_KEY, FSSPEC_SFTP_PASSWORD and so on)",
        )
    return url


def _buckets(text: str) -> tuple[str, ...]:
    buckets = tuple(bucket.rstrip("/") for bucket in _words(text))
    for bucket in buckets:
        protocol, _, name = bucket.partition("://")
        if name.count("/") != {"s3": 0, "gs": 0, "az": 1}.get(protocol):
            raise InvalidSetting(
                "RECORDER_EXPORT_BUCKETS", "s3://bucket, gs://bucket, az://account/container"
            )
    return buckets


def _allowed_hosts(text: str) -> tuple[str, ...]:
    names = _words(text)
    if not all(_HOST_NAME.fullmatch(name) for name in names):
        raise InvalidSetting(
            "RECORDER_ALLOWED_HOSTS",
            "host names and addresses (IPv6 in brackets), each with or without a port, with commas between",
        )
    return names


def _trusted_proxies(text: str) -> tuple[str, ...]:
    networks = _words(text)
    try:
        return tuple(str(ip_network(network)) for network in networks)
    except ValueError as error:
        raise InvalidSetting(
            "RECORDER_TRUSTED_PROXIES",
            "addresses and networks such as 10.1.0.0/16 (no bits behind the prefix), with commas between",
        ) from error


def _auth_header(name: str, trusted_proxies: tuple[str, ...]) -> str | None:
    if name and not (_HEADER_NAME.fullmatch(name) and trusted_proxies):
        raise InvalidSetting(
            "RECORDER_DAGSTER_AUTH_HEADER",
            "the name of a header such as X-Forwarded-User, and needs RECORDER_TRUSTED_PROXIES beside it",
        )
    return name.lower() or None


def _webhook_attempts(text: str) -> int:
    if text not in ("1", "2", "3", "4", "5", "6", "7", "8"):
        raise InvalidSetting("RECORDER_WEBHOOK_ATTEMPTS", "a number from 1 to 8")
    return int(text)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _kept_secret(data: Path) -> bytes:
    path = data / "secret"
    if path.exists():
        return path.read_bytes()
    fresh = data / f".secret.{secrets.token_hex(8)}"
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secrets.token_hex(32).encode())
        file.flush()
        os.fsync(file.fileno())
    # A link appears with its content and never replaces one: of two processes that start at once, the
    # first one's secret stays and both read it.
    with suppress(FileExistsError):
        os.link(fresh, path)
    fresh.unlink()
    return path.read_bytes()

"""The environment has one home: every setting of a deployment, read once at an edge. Contract §9."""

import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from ipaddress import ip_network
from pathlib import Path
from typing import Final, NamedTuple

from recorder.errors import Conflict, Invalid, NotFound

DEFAULT_DATA_DIR = Path("recorder-data")
REGIONS: Final = ("us", "eu", "apac")
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
#: Every variable of the service and its clients, without the prefix `RECORDER_`.
VARIABLES: Final = frozenset(
    """
    ALLOWED_HOSTS ALLOWED_OUTBOUND ANSWER_WITHIN AZURE_ENDPOINT BLOB_URL BODY_MEMORY_MB COLD_URL
    DAGSTER_AUTH_HEADER DAGSTER_DIR DAGSTER_POSTGRES_URL DATABASE_URL DATA_DIR EXPORT_BUCKETS EXPORT_EXECUTOR
    EXPORT_URL GCS_ENDPOINT KEY LAKE_URL LOCAL_EXPORT_ROOT LOG_LEVEL METRICS_TOKEN OWN_ADDRESSES PUBLIC_URL
    REDIS_URL REGION S3_ENDPOINT SEAL_LEASE_SECONDS SEAL_PROCESSES SEAL_RUNS SEAL_SLOTS SECRET SESSION_BYTES
    SESSION_EVENTS SESSION_FRAMES TRUSTED_PROXIES URL WEBHOOK_ATTEMPTS WEBHOOK_SECRET
    """.split()  # noqa: SIM905
)
_PREFIX = "RECORDER_"
# No name and password: an address ends up in log lines.
_HOST = r"(\[[0-9A-Fa-f:]+\]|[^][/@:\s]+)"
_PASSWORD = re.compile(r"://[^/]*:[^/]*@")
_PROCESSES = re.compile(r"[1-9][0-9]?|1[0-9]{2}|2[0-4][0-9]|25[0-6]", re.ASCII)
_HOST_PORT = re.compile(rf"{_HOST}:[0-9]{{1,5}}")
# Where fsspec, botocore, delta-rs and Dagster look for addresses beside our own settings.
_STORE_VARIABLES = (
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL_STS",
    "AWS_ENDPOINT",
    "FSSPEC_S3_ENDPOINT_URL",
    "STORAGE_EMULATOR_HOST",
    "AZURE_STORAGE_ENDPOINT",
    "AZURE_ENDPOINT_URL",
    "RECORDER_DAGSTER_POSTGRES_URL",
)
_HOST_NAME = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(:[0-9]{1,5})?")
_HEADER_NAME = re.compile(r"[A-Za-z0-9-]{1,64}")
_EXECUTOR = re.compile(rf"in_process|processes:[1-9][0-9]{{0,2}}|(dask|tcp|tls)://{_HOST}:[0-9]{{1,5}}")


class SessionSize(NamedTuple):
    """Most that one session holds."""

    events: int = 1_000_000
    frames: int = 100_000
    #: Event items as JSON, pictures and DOM snapshots together.
    bytes: int = 10_000_000_000


class InvalidSetting(Invalid):
    """A setting that cannot be read."""

    def __init__(self, name: str, takes: str) -> None:
        super().__init__(f"{name} takes {takes}.")


class UnknownRegion(InvalidSetting):
    """The setting names no region."""

    code = "unknown_region"

    def __init__(self) -> None:
        super().__init__("RECORDER_REGION", f"one of {', '.join(REGIONS)}")


class UnknownLogLevel(InvalidSetting):
    """The setting names no level of log lines."""

    def __init__(self) -> None:
        super().__init__("RECORDER_LOG_LEVEL", f"one of {', '.join(LOG_LEVELS)}")


class NoDeployment(NotFound):
    """The data folder holds no deployment."""

    def __init__(self, data: Path) -> None:
        super().__init__(
            "deployment",
            f"There is no deployment in {data}. Choose its folder with --data or RECORDER_DATA_DIR, or "
            "create one with `recorder up` or `recorder workspaces create --init`.",
        )


class DataFolderUnusable(Conflict):
    """The data folder cannot be created, read or written."""

    def __init__(self, data: Path, error: OSError) -> None:
        super().__init__(
            f"The data folder {data} cannot be used: {error.strerror}. Choose another folder with --data, or "
            "give this user the right to write to it."
        )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a deployment; all have defaults under one data folder."""

    #: The embedded deployment writes only below this folder.
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
    #: `host:port` of what belongs to this deployment and no setting names; never a webhook's destination.
    own_addresses: tuple[str, ...] = ()
    #: After so many seconds without an answer `recorder up` starts a process again.
    answer_within_s: float = 30.0
    #: How often a webhook delivery is attempted in all, 1 to 8.
    webhook_attempts: int = 7
    #: Opens `/metrics` to other machines; None leaves it to loopback alone.
    metrics_token: str | None = field(default=None, repr=False)
    #: From which level on the service's own log lines are written: debug, info, warning, error.
    log_level: str = "info"
    #: Sealing lanes of a workspace and mode; None takes what the deployment was made with.
    seal_slots: int | None = None
    #: How many runs seal side by side.
    seal_runs: int = 2
    #: After so many seconds without a sign of life another run takes over a sealing lane.
    seal_lease_seconds: float = 30
    #: MB of memory that all request bodies under way in an API process may take.
    body_memory_mb: int = 512
    #: Host names of the servers beside loopback names and the public URL's host: `name` or `name:port`.
    allowed_hosts: tuple[str, ...] = ()
    #: Networks of proxies whose headers about the client are believed.
    trusted_proxies: tuple[str, ...] = ()
    #: Header in which a trusted proxy names the user of Dagster's pages; None leaves them to login links.
    dagster_auth_header: str | None = None
    #: Who writes the shards of exports: in_process, processes:N, or a Dask scheduler's address.
    export_executor: str = "in_process"
    #: Most that one session holds; a batch beyond it is refused.
    session_size: SessionSize = SessionSize()  # noqa: RUF009
    #: The largest number of processes that digest pictures and DOM snapshots for one sealing run.
    seal_processes: int = field(default_factory=lambda: _count_cores())

    @classmethod
    def from_env(
        cls,
        environment: Mapping[str, str] | None = None,
        *,
        data_dir: Path | None = None,
        create: bool = True,
    ) -> "Settings":
        """Return the settings that the environment names, with the embedded defaults for the rest.

        Args:
            environment: read instead of the process's own.
            data_dir: overrules `RECORDER_DATA_DIR`.
            create: create a missing data folder with mode 700, and once a secret in it with mode 600.

        Raises:
            InvalidSetting: if a setting cannot be read.
            NoDeployment: if there is no secret and none is to be created.
            DataFolderUnusable: if this user may not use the data folder.
        """
        env = os.environ if environment is None else environment
        data = data_folder(data_dir, env)
        root = env.get("RECORDER_LOCAL_EXPORT_ROOT")
        trusted_proxies = _parse_trusted_proxies(env.get("RECORDER_TRUSTED_PROXIES", ""))
        return cls(
            data_dir=data,
            database_url=env.get("RECORDER_DATABASE_URL", _make_embedded_database(data)),
            blob_url=_check_store(env, "RECORDER_BLOB_URL") or str(data / "blobs"),
            lake_url=_check_store(env, "RECORDER_LAKE_URL") or str(data / "lake"),
            export_url=_check_store(env, "RECORDER_EXPORT_URL") or str(data / "exports"),
            local_export_root=Path(root).expanduser().resolve() if root else None,
            region=_parse_region(env.get("RECORDER_REGION", "us")),
            public_url=env.get("RECORDER_PUBLIC_URL", "http://127.0.0.1:8700").rstrip("/"),
            s3_endpoint=_read_address(env, "RECORDER_S3_ENDPOINT"),
            gcs_endpoint=_read_address(env, "RECORDER_GCS_ENDPOINT"),
            azure_endpoint=_read_address(env, "RECORDER_AZURE_ENDPOINT"),
            export_buckets=_parse_buckets(env.get("RECORDER_EXPORT_BUCKETS", "")),
            redis_url=env.get("RECORDER_REDIS_URL") or None,
            cold_url=_check_store(env, "RECORDER_COLD_URL") or None,
            allowed_outbound=_split_words(env.get("RECORDER_ALLOWED_OUTBOUND", "loopback")),
            own_addresses=_parse_own_addresses(env.get("RECORDER_OWN_ADDRESSES", "")),
            answer_within_s=_answer_within(env.get("RECORDER_ANSWER_WITHIN", "30")),
            webhook_attempts=_parse_webhook_attempts(env.get("RECORDER_WEBHOOK_ATTEMPTS", "7")),
            metrics_token=env.get("RECORDER_METRICS_TOKEN") or None,
            log_level=_log_level(env.get("RECORDER_LOG_LEVEL", "info").lower()),
            seal_slots=_parse_number(env, "RECORDER_SEAL_SLOTS", 1, 1_024),
            seal_runs=_parse_number(env, "RECORDER_SEAL_RUNS", 1, 64) or max(2, min(4, os.cpu_count() or 1)),
            seal_lease_seconds=_parse_number(env, "RECORDER_SEAL_LEASE_SECONDS", 1, 3_600)
            or Settings.seal_lease_seconds,
            body_memory_mb=_parse_body_memory_mb(env.get("RECORDER_BODY_MEMORY_MB", "512")),
            export_executor=_export_executor(env.get("RECORDER_EXPORT_EXECUTOR", "in_process")),
            session_size=SessionSize(
                *(
                    _parse_count(env, _make_session_variable(name), default)
                    for name, default in SessionSize()._asdict().items()
                )
            ),
            seal_processes=_seal_processes(env.get("RECORDER_SEAL_PROCESSES", "")),
            allowed_hosts=_parse_allowed_hosts(env.get("RECORDER_ALLOWED_HOSTS", "")),
            trusted_proxies=trusted_proxies,
            dagster_auth_header=_parse_auth_header(
                env.get("RECORDER_DAGSTER_AUTH_HEADER", ""), trusted_proxies
            ),
            # Last: a setting that cannot be read must not leave a data folder behind.
            secret=_read_secret(env, data, create=create),
        )

    @property
    def is_embedded(self) -> bool:
        """Return whether the database is the file in the data folder."""
        return self.database_url == _make_embedded_database(self.data_dir)

    def as_env(self) -> dict[str, str]:
        """Return the variables that give a child process the same settings, without the secret."""
        chosen = {
            "RECORDER_DATA_DIR": str(self.data_dir),
            "RECORDER_DATABASE_URL": self.database_url,
            "RECORDER_BLOB_URL": self.blob_url,
            "RECORDER_LAKE_URL": self.lake_url,
            "RECORDER_EXPORT_URL": self.export_url,
            "RECORDER_REGION": self.region,
            "RECORDER_PUBLIC_URL": self.public_url,
            "RECORDER_ALLOWED_OUTBOUND": ",".join(self.allowed_outbound),
            "RECORDER_SEAL_RUNS": str(self.seal_runs),
        }
        if self.seal_slots is not None:
            chosen["RECORDER_SEAL_SLOTS"] = str(self.seal_slots)
        if self.seal_lease_seconds != Settings.seal_lease_seconds:
            chosen["RECORDER_SEAL_LEASE_SECONDS"] = f"{self.seal_lease_seconds:g}"
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
        if self.own_addresses:
            chosen["RECORDER_OWN_ADDRESSES"] = ",".join(self.own_addresses)
        if self.answer_within_s != Settings.answer_within_s:
            chosen["RECORDER_ANSWER_WITHIN"] = f"{self.answer_within_s:g}"
        if self.webhook_attempts != Settings.webhook_attempts:
            chosen["RECORDER_WEBHOOK_ATTEMPTS"] = str(self.webhook_attempts)
        if self.body_memory_mb != Settings.body_memory_mb:
            chosen["RECORDER_BODY_MEMORY_MB"] = str(self.body_memory_mb)
        if self.log_level != Settings.log_level:
            chosen["RECORDER_LOG_LEVEL"] = self.log_level
        if self.export_executor != Settings.export_executor:
            chosen["RECORDER_EXPORT_EXECUTOR"] = self.export_executor
        for name, value in self.session_size._asdict().items():
            if value != getattr(SessionSize(), name):
                chosen[_make_session_variable(name)] = str(value)
        if self.seal_processes != _count_cores():
            chosen["RECORDER_SEAL_PROCESSES"] = str(self.seal_processes)
        if self.allowed_hosts:
            chosen["RECORDER_ALLOWED_HOSTS"] = ",".join(self.allowed_hosts)
        if self.trusted_proxies:
            chosen["RECORDER_TRUSTED_PROXIES"] = ",".join(self.trusted_proxies)
        if self.dagster_auth_header is not None:
            chosen["RECORDER_DAGSTER_AUTH_HEADER"] = self.dagster_auth_header
        if self.local_export_root is not None:
            chosen["RECORDER_LOCAL_EXPORT_ROOT"] = str(self.local_export_root)
        return chosen


def _make_embedded_database(data: Path) -> str:
    return f"sqlite:///{data / 'recorder.db'}"


def data_folder(data_dir: Path | None, environment: Mapping[str, str] | None = None) -> Path:
    """Return the data folder that is chosen, or the environment's; it need not exist."""
    env = os.environ if environment is None else environment
    return (data_dir or Path(env.get("RECORDER_DATA_DIR", DEFAULT_DATA_DIR))).expanduser().resolve()


def unknown_settings(environment: Mapping[str, str] | None = None) -> list[str]:
    """Return a sentence for each variable that begins with `RECORDER_` and is no setting."""
    env = os.environ if environment is None else environment
    names = sorted(name.removeprefix(_PREFIX) for name in env if name.startswith(_PREFIX))
    sentences = []
    for name in names:
        if name in VARIABLES:
            continue
        near = get_close_matches(name.upper(), sorted(VARIABLES), n=1)
        hint = f"Did you mean {_PREFIX}{near[0]}?" if near else "docs/settings.md lists all settings."
        sentences.append(f"Warning  {_PREFIX}{name} is no setting and has no effect. {hint}")
    return sentences


def child_environment(settings: Settings, extra: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment for a child that serves the same deployment."""
    return environment_with({**settings.as_env(), **extra})


def environment_with(extra: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment for a child, with some variables replaced."""
    return {**os.environ, **extra}


def _export_executor(text: str) -> str:
    if not _EXECUTOR.fullmatch(text):
        takes = "in_process, processes:N, or a Dask scheduler's address such as tcp://10.0.0.5:8786"
        raise InvalidSetting("RECORDER_EXPORT_EXECUTOR", takes)
    return text


def azure_account_key() -> str | None:
    """Return the key of the operator's own Azure-like store, which each process reads for itself."""
    return os.environ.get("AZURE_STORAGE_ACCOUNT_KEY") or None


def _parse_count(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name) or str(default)
    if not re.fullmatch("[1-9][0-9]{0,17}", text, re.ASCII):
        raise InvalidSetting(name, "a whole number of at least 1")
    return int(text)


def dagster_folder(settings: Settings) -> Path:
    """Return the folder that Dagster writes to; its name marks the processes of the deployment."""
    return Path(os.environ.get("RECORDER_DAGSTER_DIR") or settings.data_dir / "dagster")


def store_addresses() -> list[str]:
    """Return the addresses of stores and databases that libraries read from variables of their own."""
    addresses = [os.environ[name] for name in _STORE_VARIABLES if os.environ.get(name)]
    account = os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "")
    addresses += [part.partition("=")[2] for part in account.split(";") if part.startswith("BlobEndpoint=")]
    if os.environ.get("PGHOST") or os.environ.get("PGPORT"):
        host, port = os.environ.get("PGHOST", ""), os.environ.get("PGPORT", "5432")
        addresses += [
            f"postgresql://{host_name}:{port}"
            for host_name in host.split(",")
            if not host_name.startswith("/")
        ]
    return addresses


def _parse_own_addresses(text: str) -> tuple[str, ...]:
    words = _split_words(text)
    if not all(_HOST_PORT.fullmatch(word) for word in words):
        raise InvalidSetting("RECORDER_OWN_ADDRESSES", "addresses with a port such as 10.0.0.8:3000")
    return words


def _answer_within(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,3}", text) or not 3 <= int(text) <= 600:
        raise InvalidSetting("RECORDER_ANSWER_WITHIN", "seconds, from 3 to 600")
    return float(text)


def _read_address(env: Mapping[str, str], name: str) -> str | None:
    url = env.get(name, "").rstrip("/")
    if url and not url.startswith(("http://", "https://")):
        raise InvalidSetting(name, "an address that begins with http:// or https://")
    return url or None


def _check_store(env: Mapping[str, str], name: str) -> str:
    """Check that an address holds no credentials: it is logged and passed to workers."""
    url = env.get(name, "")
    if _PASSWORD.search(url):
        raise InvalidSetting(
            name,
            "an address without a password; give that in the store's own environment variables "
            "(AWS_SECRET_ACCESS_KEY, FSSPEC_SFTP_PASSWORD and so on)",
        )
    return url


def _parse_buckets(text: str) -> tuple[str, ...]:
    buckets = tuple(bucket.rstrip("/") for bucket in _split_words(text))
    for bucket in buckets:
        protocol, _, name = bucket.partition("://")
        if name.count("/") != {"s3": 0, "gs": 0, "az": 1}.get(protocol):
            raise InvalidSetting(
                "RECORDER_EXPORT_BUCKETS", "s3://bucket, gs://bucket, az://account/container"
            )
    return buckets


def _parse_region(text: str) -> str:
    if text not in REGIONS:
        raise UnknownRegion
    return text


def _log_level(text: str) -> str:
    if text not in LOG_LEVELS:
        raise UnknownLogLevel
    return text


def _parse_allowed_hosts(text: str) -> tuple[str, ...]:
    names = _split_words(text)
    if not all(_HOST_NAME.fullmatch(name) for name in names):
        raise InvalidSetting(
            "RECORDER_ALLOWED_HOSTS",
            "host names and addresses (IPv6 in brackets), each with or without a port, with commas between",
        )
    return names


def _parse_trusted_proxies(text: str) -> tuple[str, ...]:
    networks = _split_words(text)
    try:
        return tuple(str(ip_network(network)) for network in networks)
    except ValueError as error:
        raise InvalidSetting(
            "RECORDER_TRUSTED_PROXIES",
            "addresses and networks such as 10.1.0.0/16 (no bits after the prefix), with commas between",
        ) from error


def _parse_auth_header(name: str, trusted_proxies: tuple[str, ...]) -> str | None:
    if name and not (_HEADER_NAME.fullmatch(name) and trusted_proxies):
        raise InvalidSetting(
            "RECORDER_DAGSTER_AUTH_HEADER",
            "the name of a header such as X-Forwarded-User, and needs RECORDER_TRUSTED_PROXIES beside it",
        )
    return name.lower() or None


def _parse_webhook_attempts(text: str) -> int:
    if text not in ("1", "2", "3", "4", "5", "6", "7", "8"):
        raise InvalidSetting("RECORDER_WEBHOOK_ATTEMPTS", "a number from 1 to 8")
    return int(text)


def _parse_number(env: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    text = env.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,9}", text, re.ASCII) or not least <= int(text) <= most:
        raise InvalidSetting(name, f"a whole number from {least:,} to {most:,}")
    return int(text)


def _make_session_variable(name: str) -> str:
    return "_".join(("RECORDER", "SESSION", name.upper()))


def _seal_processes(text: str) -> int:
    if not text:
        return _count_cores()
    if not _PROCESSES.fullmatch(text):
        raise InvalidSetting("RECORDER_SEAL_PROCESSES", "a number from 1 to 256")
    return int(text)


def _count_cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _parse_body_memory_mb(text: str) -> int:
    # Half of it is the most that one workspace takes, and must hold the largest request.
    if not re.fullmatch(r"[0-9]{3,6}", text, re.ASCII) or int(text) < 128:
        raise InvalidSetting("RECORDER_BODY_MEMORY_MB", "a number of megabytes from 128 on")
    return int(text)


def _split_words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _read_secret(env: Mapping[str, str], data: Path, *, create: bool) -> bytes:
    try:
        if create:
            data.mkdir(mode=0o700, parents=True, exist_ok=True)
        if env.get("RECORDER_SECRET"):
            return env["RECORDER_SECRET"].encode()
        path = data / "secret"
        if path.exists():
            return path.read_bytes()
        if not create:
            raise NoDeployment(data)
        return _create_secret(data, path)
    except OSError as error:
        raise DataFolderUnusable(data, error) from error


def _create_secret(data: Path, path: Path) -> bytes:
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

"""Settings of a deployment, read from the environment once at the edge of the program. Contract §9."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Final

from recorder import limits
from recorder.data_folder import make_sqlite_url, read_secret
from recorder.setting_parsers import (
    BrowserSettings,
    ConnectionSettings,
    SessionSize,
    count_cores,
    parse_allowed_hosts,
    parse_auth_header,
    parse_browser_settings,
    parse_buckets,
    parse_connections,
    parse_export_executor,
    parse_log_level,
    parse_number_setting,
    parse_public_url,
    parse_redis_url,
    parse_region_setting,
    parse_service_addresses,
    parse_storage_class,
    parse_store_address,
    parse_store_endpoint,
    parse_trusted_proxies,
    require_usable_folder_name,
    split_words,
)

DEFAULT_DATA_DIR = Path("recorder-data")
#: Every variable of the service and its clients, without the prefix `RECORDER_`.
VARIABLES: Final = frozenset(
    """
    ALLOWED_HOSTS ALLOWED_OUTBOUND ANSWER_WITHIN AZURE_ENDPOINT BLOB_URL BODY_MEMORY_MB
    CHROMIUM COLD_STORAGE_CLASS COLD_URL CONNECTIONS CONNECTIONS_PER_ADDRESS
    DAGSTER_AUTH_HEADER DAGSTER_DIR DAGSTER_POSTGRES_URL DATABASE_URL
    DATA_DIR EXPORT_BUCKETS EXPORT_EXECUTOR EXPORT_URL GCS_ENDPOINT GRAPH_MEMORY_MB KEY LAKE_URL
    LIVE_NO_SANDBOX LIVE_OUTBOUND LIVE_PLACES LIVE_USER LOCAL_EXPORT_ROOT LOG_LEVEL METRICS_TOKEN
    OWN_ADDRESSES PUBLIC_URL QUIET_HOUR REDIS_URL REGION S3_ENDPOINT
    SEAL_LEASE_SECONDS SEAL_PROCESSES SEAL_RUNS SEAL_SLOTS SECRET SESSION_BYTES SESSION_EVENTS SESSION_FRAMES
    TRUSTED_PROXIES URL WEBHOOK_ATTEMPTS WEBHOOK_SECRET
    """.split()  # noqa: SIM905
)
_PREFIX = "RECORDER_"
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


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a deployment; all have defaults under one data folder."""

    #: The embedded deployment writes only below this folder.
    data_dir: Path
    #: SQLAlchemy address of the control plane and the hot rows.
    database_url: str
    #: fsspec addresses (or folders) of frames, of the lake, of hosted exports and of archived frames.
    blob_url: str
    lake_url: str
    export_url: str
    cold_url: str
    #: `local` export destinations must lie under this folder; None forbids them.
    local_export_root: Path | None
    #: The deployment's secret: it keys hashes, signatures and encryption. Never shown.
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
    #: S3 storage class of archived frames; they then stay in the bucket of the others.
    cold_storage_class: str | None = None
    #: Hour of the day in UTC in which tables of PostgreSQL, or a large file of SQLite, are rewritten.
    quiet_hour: int = 3
    #: Addresses beyond the public ones that webhooks may be sent to: hosts, addresses, networks.
    allowed_outbound: tuple[str, ...] = ("loopback",)
    #: The browsers of live replays.
    browser: BrowserSettings = BrowserSettings()  # noqa: RUF009
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
    #: After so many seconds without a renewal another run takes over a sealing lane.
    seal_lease_seconds: float = 30
    #: MB of memory that all request bodies under way in an API process may take.
    body_memory_mb: int = 512
    #: The most connections that may be open to an API process.
    connections: ConnectionSettings = ConnectionSettings()  # noqa: RUF009
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
    #: MB of memory that the graph of one workflow may take.
    graph_memory_mb: int = limits.GRAPH_MEMORY_MB
    #: The largest number of processes that digest pictures and DOM snapshots for one sealing run.
    seal_processes: int = field(default_factory=lambda: count_cores())

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
            MissingSecret: if there is a database, and its secret is missing or empty.
            DataFolderUnusable: if this user may not use the data folder.
        """
        env = os.environ if environment is None else environment
        parse_number = partial(parse_number_setting, env)
        data = find_data_folder(data_dir, env)
        root = env.get("RECORDER_LOCAL_EXPORT_ROOT")
        # These take an empty text as a missing one.
        parse_filled = partial(parse_number_setting, {name: text for name, text in env.items() if text})
        quiet_hour = parse_number("RECORDER_QUIET_HOUR", 0, 23)
        trusted_proxies = parse_trusted_proxies(env.get("RECORDER_TRUSTED_PROXIES", ""))
        return cls(
            data_dir=data,
            database_url=env.get("RECORDER_DATABASE_URL", _make_embedded_database_url(data)),
            blob_url=parse_store_address(env, "RECORDER_BLOB_URL") or str(data / "blobs"),
            lake_url=parse_store_address(env, "RECORDER_LAKE_URL") or str(data / "lake"),
            export_url=parse_store_address(env, "RECORDER_EXPORT_URL") or str(data / "exports"),
            cold_url=parse_store_address(env, "RECORDER_COLD_URL") or str(data / "cold"),
            local_export_root=Path(root).expanduser().resolve() if root else None,
            region=parse_region_setting(env.get("RECORDER_REGION", "us")),
            public_url=parse_public_url(env.get("RECORDER_PUBLIC_URL") or Settings.public_url),
            s3_endpoint=parse_store_endpoint(env, "RECORDER_S3_ENDPOINT"),
            gcs_endpoint=parse_store_endpoint(env, "RECORDER_GCS_ENDPOINT"),
            azure_endpoint=parse_store_endpoint(env, "RECORDER_AZURE_ENDPOINT"),
            export_buckets=parse_buckets(env.get("RECORDER_EXPORT_BUCKETS", "")),
            redis_url=parse_redis_url(env.get("RECORDER_REDIS_URL", "")),
            cold_storage_class=parse_storage_class(env.get("RECORDER_COLD_STORAGE_CLASS", "")),
            quiet_hour=Settings.quiet_hour if quiet_hour is None else quiet_hour,
            allowed_outbound=split_words(env.get("RECORDER_ALLOWED_OUTBOUND", "loopback")),
            browser=parse_browser_settings(env),
            own_addresses=parse_service_addresses(env.get("RECORDER_OWN_ADDRESSES", "")),
            answer_within_s=parse_number("RECORDER_ANSWER_WITHIN", 3, 600, unit="seconds")
            or Settings.answer_within_s,
            webhook_attempts=parse_number("RECORDER_WEBHOOK_ATTEMPTS", 1, 8) or Settings.webhook_attempts,
            metrics_token=env.get("RECORDER_METRICS_TOKEN") or None,
            log_level=parse_log_level(env.get("RECORDER_LOG_LEVEL", "info").lower()),
            seal_slots=parse_number("RECORDER_SEAL_SLOTS", 1, 1_024),
            seal_runs=parse_number("RECORDER_SEAL_RUNS", 1, 64) or max(2, min(4, count_cores())),
            seal_lease_seconds=parse_number("RECORDER_SEAL_LEASE_SECONDS", 1, 240)
            or Settings.seal_lease_seconds,
            # Half of it is the most that one workspace takes, and must hold the largest request.
            body_memory_mb=parse_number("RECORDER_BODY_MEMORY_MB", 128, 999_999, unit="megabytes")
            or Settings.body_memory_mb,
            connections=parse_connections(env),
            export_executor=parse_export_executor(env.get("RECORDER_EXPORT_EXECUTOR", "in_process")),
            session_size=SessionSize(
                *(
                    parse_filled(_name_session_setting_variable(name), 1, 10**18 - 1) or default
                    for name, default in SessionSize()._asdict().items()
                )
            ),
            graph_memory_mb=parse_number("RECORDER_GRAPH_MEMORY_MB", 1, 100_000) or Settings.graph_memory_mb,
            seal_processes=parse_filled("RECORDER_SEAL_PROCESSES", 1, 256) or count_cores(),
            allowed_hosts=parse_allowed_hosts(env.get("RECORDER_ALLOWED_HOSTS", "")),
            trusted_proxies=trusted_proxies,
            dagster_auth_header=parse_auth_header(
                env.get("RECORDER_DAGSTER_AUTH_HEADER", ""), trusted_proxies
            ),
            # Last: a setting that cannot be read must not leave a data folder behind.
            secret=read_secret(env, data, create=create),
        )

    @property
    def is_embedded(self) -> bool:
        """Return whether the database is the file in the data folder."""
        return self.database_url == _make_embedded_database_url(self.data_dir)

    def as_env(self) -> dict[str, str]:
        """Return the variables that give a child process the same settings, without the secret."""
        chosen = {
            "RECORDER_DATA_DIR": str(self.data_dir),
            "RECORDER_DATABASE_URL": self.database_url,
            "RECORDER_BLOB_URL": self.blob_url,
            "RECORDER_LAKE_URL": self.lake_url,
            "RECORDER_EXPORT_URL": self.export_url,
            "RECORDER_COLD_URL": self.cold_url,
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
        if self.cold_storage_class is not None:
            chosen["RECORDER_COLD_STORAGE_CLASS"] = self.cold_storage_class
        if self.quiet_hour != Settings.quiet_hour:
            chosen["RECORDER_QUIET_HOUR"] = str(self.quiet_hour)
        chosen.update(self.browser.as_env())
        if self.own_addresses:
            chosen["RECORDER_OWN_ADDRESSES"] = ",".join(self.own_addresses)
        if self.answer_within_s != Settings.answer_within_s:
            chosen["RECORDER_ANSWER_WITHIN"] = f"{self.answer_within_s:g}"
        for name in ("webhook_attempts", "body_memory_mb", "graph_memory_mb"):
            if getattr(self, name) != getattr(Settings, name):
                chosen[f"{_PREFIX}{name.upper()}"] = str(getattr(self, name))
        chosen.update(self.connections.as_env())
        if self.log_level != Settings.log_level:
            chosen["RECORDER_LOG_LEVEL"] = self.log_level
        if self.export_executor != Settings.export_executor:
            chosen["RECORDER_EXPORT_EXECUTOR"] = self.export_executor
        for name, value in self.session_size._asdict().items():
            if value != getattr(SessionSize(), name):
                chosen[_name_session_setting_variable(name)] = str(value)
        if self.seal_processes != count_cores():
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


def _make_embedded_database_url(data: Path) -> str:
    return make_sqlite_url(data / "recorder.db")


def find_data_folder(data_dir: Path | None, environment: Mapping[str, str] | None = None) -> Path:
    """Return the data folder that is chosen, or the environment's; it need not exist.

    Raises:
        UnusableFolderName: if stores cannot have addresses below it.
    """
    env = os.environ if environment is None else environment
    folder = (data_dir or Path(env.get("RECORDER_DATA_DIR") or DEFAULT_DATA_DIR)).expanduser().resolve()
    return require_usable_folder_name(folder)


def has_database_elsewhere(environment: Mapping[str, str] | None = None) -> bool:
    """Return whether the database is not the file in the data folder."""
    env = os.environ if environment is None else environment
    return bool(env.get("RECORDER_DATABASE_URL"))


def describe_unknown_settings(environment: Mapping[str, str] | None = None) -> list[str]:
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


def make_child_environment(settings: Settings, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of a child process: this process's, with these settings."""
    return extend_program_environment({**settings.as_env(), **extra})


def extend_program_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of a child process: this process's, with some replaced."""
    return {**os.environ, **extra}


def read_azure_account_key() -> str | None:
    """Return the key of the operator's own Azure-like store, which each process reads for itself."""
    return os.environ.get("AZURE_STORAGE_ACCOUNT_KEY") or None


def find_dagster_folder(settings: Settings) -> Path:
    """Return the folder that Dagster writes to; its name marks the processes of the deployment.

    Raises:
        UnusableFolderName: if Dagster's databases cannot have addresses below it.
    """
    folder = Path(os.environ.get("RECORDER_DAGSTER_DIR") or settings.data_dir / "dagster")
    return require_usable_folder_name(folder)


def list_store_address_settings() -> list[str]:
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


def _name_session_setting_variable(name: str) -> str:
    return "_".join(("RECORDER", "SESSION", name.upper()))

"""The sections that both services have: process, security, Postgres, models, metrics."""

from ipaddress import ip_address
from typing import Annotated, ClassVar, Literal

from pydantic import Field, SecretStr, model_validator

from backend_kit.settings.base import (
    Count,
    HttpUrl,
    Port,
    Positive,
    RootSection,
    Seconds,
    Section,
    SettingsRefused,
    Text,
)

BasePath = Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._~-]+)+$")]
LogLevel = Literal["debug", "info", "warning", "error"]


class App(Section):
    """The process: where it listens, what it logs."""

    ignored_keys: ClassVar[tuple[str, ...]] = ("reload", "reload_dir")

    name: Text
    """Name of the service in logs and metrics."""
    base_url: BasePath
    """Path prefix of every route."""
    address: Text = "127.0.0.1"
    """Address to listen on."""
    port: Port
    """Port to listen on."""
    log_level: LogLevel = "info"
    """Lowest level that is logged; the KPI summary has a level of its own."""
    api_docs: bool = True
    """Whether `/docs` and `/openapi.json` are served; the latter to known callers only, where they must be known."""
    metrics_enabled: bool = True
    """Whether `/metrics` is served."""
    metrics_address: Text = "127.0.0.1"
    """Address of `/metrics`, which is served from a thread, so that overload cannot hide it."""
    metrics_port: Port
    """Port of `/metrics`."""
    kpi_process_metrics_interval_sec: Seconds = 10
    """Seconds between two measures of CPU, memory and open files."""
    kpi_log_summary_interval_sec: Annotated[float, Field(ge=0, le=86_400)] = 10.0
    """Seconds between two KPI summaries in the log; 0 = none."""
    kpi_log_summary_top_n: Count = 20
    """Keys of each kind in a summary beside those that every summary has, longest in all first; 0 = all, by name."""


class UserSecurity(Section):
    """Who may call."""

    enabled: bool = True
    """Whether a token is checked. Off, everybody is user `admin` without an admin role: loopback only."""
    client_id: Text | None = None
    """Client whose roles are read from the token, and its audience. A token that names another client is refused."""
    realm_url: HttpUrl | None = None
    """Issuer of the tokens. Without a shared secret its public keys verify them."""
    jwks_url: HttpUrl | None = None
    """Where the issuer's keys are, if not where its discovery document says: its address inside a cluster, say."""
    algorithm: Literal["RS256", "ES256"] = "RS256"
    """How the issuer signs. Tokens signed in any other way are refused."""


class Security(Section):
    """Authentication of callers. Where browsers may come from is the business of the service that has a page."""

    ignored_keys: ClassVar[tuple[str, ...]] = (
        "m2m",
        "rebac",
        "authorized_origins",
        "allow_query_token",
        "operator_roles",
    )

    user: UserSecurity = UserSecurity()
    allow_insecure: bool = False
    """Start although authentication is off and the address is not loopback."""
    hs256_secret_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    """Name of the environment variable with the shared secret of HS256 tokens."""
    hs256_secret: Annotated[SecretStr, Field(min_length=32)] | None = None
    """The shared secret itself, at least 32 characters: set it through the variable above, not in the file."""


class Postgres(Section):
    """The database and the pool of the engine for reads and small writes."""

    host: Text
    """Host name or address."""
    port: Port = 5432
    """Port."""
    database: Text
    """Database name; it must exist."""
    username: Text
    """Role to connect as."""
    password: SecretStr | None = None
    """Set through FRED_POSTGRES_PASSWORD."""
    pool_size: Positive = 20
    """Connections that are kept."""
    max_overflow: Count = 10
    """Connections above pool_size that are opened under load and closed after."""
    pool_timeout: Seconds = 2.0
    """Seconds to wait for a connection. 100, as older files have it, makes a reader wait for a pool that is gone."""
    connect_timeout: Annotated[int, Field(ge=2, le=3600)] = 2
    """Seconds to open a connection, in whole seconds."""
    pool_recycle: Annotated[int, Field(ge=-1)] = 1800
    """Age in seconds at which a connection is replaced; -1 = never."""
    pool_pre_ping: bool = False
    """Whether a connection is tested before each use: one round trip more."""


class ModelTimeout(Section):
    """Deadlines of one connection to the model, in seconds; a whole turn has `deadlines`."""

    connect: Seconds = 10
    """Seconds to open a connection."""
    read: Seconds = 60
    """Seconds without a byte of the answer."""
    write: Seconds = 10
    """Seconds to hand over the request."""
    pool: Seconds = 5
    """Seconds to wait for a free connection."""


class HttpClientLimits(Section):
    """The connection pool of one model endpoint."""

    max_connections: Count = 2048
    """Connections at once; each call in flight holds one. 0 = no limit."""
    max_keepalive_connections: Count = 512
    """Idle connections that are kept; 0 = a new connection for each call, which costs 0.3 ms of CPU."""
    keepalive_expiry_seconds: Seconds = 30
    """Seconds that an idle connection is kept."""


class Metrics(Section):
    """What is exposed to Prometheus."""

    legacy_ms_names: bool = True
    """Whether the `_ms` names of older dashboards are exposed beside the `_seconds` ones."""


class ServiceSettings(RootSection):
    """What the file of each service has, and the rule that ties two sections: auth off is local."""

    ignored_keys: ClassVar[tuple[str, ...]] = ("scheduler", "frontend_settings")
    env_named: ClassVar[dict[str, str]] = {"security.hs256_secret_env": "security.hs256_secret"}

    app: App
    security: Security = Security()
    metrics: Metrics = Metrics()

    @model_validator(mode="after")
    def _callers_are_known_or_local(self) -> "ServiceSettings":
        """Refuse to serve other machines without authentication, and authentication that has no key."""
        security = self.security
        if security.user.enabled:
            if security.hs256_secret is None and not (security.user.realm_url and security.user.client_id):
                reason = "authentication is on and there is no key: set realm_url and client_id, or hs256_secret_env"
                raise SettingsRefused(reason, "security", "user", "enabled")
        elif not security.allow_insecure and not is_loopback(self.app.address):
            reason = "authentication is off and app.address is not loopback: turn it on, or set security.allow_insecure"
            raise SettingsRefused(reason, "security", "user", "enabled")
        return self


def is_loopback(address: str) -> bool:
    """Whether nothing outside this machine can reach a socket bound to `address`."""
    if address == "localhost":
        return True
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False

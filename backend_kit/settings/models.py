"""The sections of both services: process, security, Postgres, models, metrics."""

import math
import os
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import BeforeValidator, Field, PrivateAttr, SecretStr, model_validator

from backend_kit.settings.base import (
    Count,
    Hosts,
    HttpUrl,
    Listed,
    Network,
    Origin,
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
_EVERY_ADDRESS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, not listened on
_LAST_PORT = 65_535
AUTO: Final = "auto"
"""In `app.workers`: one for each core."""
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_cores(quota: Path = _CPU_QUOTA) -> int:
    """How many cores this process may use: those it may run on, or what the quota of its container gives, rounded up.

    `quota` is the file of cgroup v2: microseconds, or `max`, of a period in microseconds.
    """
    cores = len(os.sched_getaffinity(0))
    try:
        granted, period = quota.read_text().split()
    except (OSError, ValueError):
        return cores
    if not (granted.isdigit() and period.isdigit() and int(period)):
        return cores
    return max(1, min(cores, math.ceil(int(granted) / int(period))))


def _one_a_core(value: Any) -> Any:
    return usable_cores() if value == AUTO else value


Workers = Annotated[Positive, BeforeValidator(_one_a_core)]


class App(Section):
    """The process: its address, its log and its metrics."""

    ignored_keys: ClassVar[tuple[str, ...]] = ("reload", "reload_dir")

    name: Text
    """Name of the service: the label `service` of `app_phase_latency_ms`, and what `/mcp` of the agentic service calls
    itself."""
    base_url: BasePath
    """Path prefix of every route."""
    address: Text = "127.0.0.1"
    """Address to listen on. Without authentication it must be loopback, unless `security.allow_insecure` is set."""
    port: Port
    """TCP port to listen on. Where it is taken, the start ends with exit code 2."""
    workers: Workers = 1
    """Processes that serve the port, each with pools and a metrics port of its own (`metrics_port` and those after it);
    `auto` = one for each core that the process may use."""
    log_level: LogLevel = "info"
    """Lowest level that is logged. The KPI summary is written at every level."""
    api_docs: bool = True
    """Whether `/docs` and `/openapi.json` are served. With authentication, `/openapi.json` requires a token."""
    metrics_enabled: bool = True
    """Whether `/metrics` is served."""
    metrics_address: Text = "127.0.0.1"
    """Address of `/metrics`. It has threads of its own, so overload cannot hide it, and no authentication."""
    metrics_port: Port
    """TCP port of `/metrics`. Where it is taken, the start ends with exit code 3."""
    kpi_process_metrics_interval_sec: Annotated[float, Field(ge=0, le=86_400)] = 10.0
    """Seconds between two measurements of CPU, memory and open files, each a line of the KPI summary; 0 = none. Without
    summaries there are none either."""
    kpi_log_summary_interval_sec: Annotated[float, Field(ge=0, le=86_400)] = 10.0
    """Seconds between two KPI summaries in the log; 0 = no summaries."""
    kpi_log_summary_top_n: Count = 20
    """Keys of each kind that a summary lists after the fixed ones, those with the largest total first; 0 = all, by
    name."""

    _worker: int | None = PrivateAttr(default=None)

    @property
    def worker(self) -> int | None:
        """Which of several workers this process is, from 0; None where there is only one."""
        return self._worker

    def of_worker(self, number: int) -> Self:
        """The settings of one worker: one registry and one scrape target for each process."""
        own = self.model_copy(update={"metrics_port": self.metrics_ports[number]})
        own._worker = number
        return own

    @property
    def metrics_ports(self) -> range:
        """One for each worker."""
        return range(self.metrics_port, self.metrics_port + self.workers)

    @model_validator(mode="after")
    def _ports_are_apart(self) -> "App":
        """Refuse what each process of the service would find out on its own, and blame on another program."""
        ports = self.metrics_ports
        if not self.metrics_enabled:
            return self
        if ports[-1] > _LAST_PORT:
            raise SettingsRefused(
                f"{len(ports)} workers need as many ports from here on, up to {_LAST_PORT}", "metrics_port"
            )
        beside = self.address != self.metrics_address and not {self.address, self.metrics_address} & _EVERY_ADDRESS
        if self.port in ports and not beside:
            which = "is app.port" if len(ports) == 1 else f"with {len(ports)} workers app.port is among its ports"
            raise SettingsRefused(f"{which}: /metrics has ports of its own", "metrics_port")
        return self


class UserSecurity(Section):
    """How callers are authenticated."""

    enabled: bool = True
    """Whether tokens are checked. If not, every caller is the user `admin` without an admin role."""
    client_id: Text | None = None
    """Client whose roles are read from the token, and the token's required audience. Tokens issued for another client
    are refused."""
    realm_url: HttpUrl | None = None
    """Issuer of the tokens. Its public keys verify them, unless there is a shared secret."""
    jwks_url: HttpUrl | None = None
    """URL of the issuer's keys, such as an address inside the cluster; none = as its discovery document says."""
    algorithm: Literal["RS256", "ES256"] = "RS256"
    """Signature algorithm of the issuer. Tokens signed with another one are refused."""
    access_token_mark: Literal["at+jwt", "Bearer", "scp", "jti", "none"] = "none"  # noqa: S105 - the name of a mark
    """By what the issuer's access tokens differ from its other ones, which are refused: `at+jwt` in the header (RFC
    9068), `Bearer` as `typ` in the payload (Keycloak), the claim `scp` or `jti`. By issuer:
    docs/operations.md#access-tokens-by-issuer. With `none` only what is known of ID tokens and logout tokens is
    refused, and an ID token without such a claim passes."""


class Postgres(Section):
    """The database, and the connection pool for reads and small writes."""

    host: Hosts
    """Host name or address; several, separated by commas, are a primary and its standbys, of which the one that takes
    writes is used (docs/operations.md#postgres-fails-over)."""
    port: Port = 5432
    """TCP port, the same on each host."""
    database: Text
    """Name of the database, which must exist. The service creates its tables."""
    username: Text
    """Role to connect as. It must be allowed to create tables."""
    password: SecretStr | None = None
    """Password of the role; set through FRED_POSTGRES_PASSWORD."""
    pool_size: Positive = 20
    """Connections that the pool keeps open."""
    max_overflow: Count = 10
    """Connections that the pool opens above `pool_size` under load and closes afterwards; 0 = none."""
    pool_timeout: Seconds = 2.0
    """Seconds to wait for a free connection; then the read fails. With 100, as in older files, readers wait that long
    for a database that is down."""
    connect_timeout: Annotated[int, Field(ge=2, le=3600)] = 2
    """Seconds to open a connection; then the attempt fails."""
    pool_recycle: Annotated[int, Field(ge=-1)] = 1800
    """Age in seconds at which a connection is replaced; -1 = never, 0 = before each use."""
    pool_pre_ping: bool = False
    """Whether each connection is tested before it is used, which costs one more round trip."""


class KeysPostgres(Postgres):
    """The database of API keys. Each process opens two connections at most, and only once a key has come."""

    password: SecretStr | None = None
    """Password of the role; set through TURNWISE_KEYS_PASSWORD."""


class ApiKeySecurity(Section):
    """API keys (docs/keys.md)."""

    enabled: bool = True
    """Whether API keys are accepted. If not, what looks like one is refused, and none can be made."""
    postgres: KeysPostgres | None = None
    """Database in which the keys are, its password set through TURNWISE_KEYS_PASSWORD; none = `storage.postgres`.
    Knowledge flow needs it where it has a database of its own: the keys are in that of the agentic service."""
    act_as_secret_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    """Name of the environment variable that holds the secret with which front ends sign the name of their user
    (`X-OpenWebUI-User-Jwt`, HS256); both services need the same. None = they name their user by plain headers."""
    act_as_secret: Annotated[SecretStr, Field(min_length=32)] | None = None
    """The secret, at least 32 characters. Set it through that variable, not in the file. With it plain headers are
    refused."""
    provider_users: bool = False
    """Whether a key may name users of the identity provider, by their `sub`. If not, those whom a front end names are
    always users of their own."""


class Security(Section):
    """Authentication of callers, and the web pages they may use."""

    ignored_keys: ClassVar[tuple[str, ...]] = ("m2m", "rebac", "allow_query_token")

    user: UserSecurity = UserSecurity()
    authorized_origins: Annotated[tuple[Origin, ...], Listed] = ()
    """Origins of other pages that may use the service from a browser (CORS), compared exactly; there is no wildcard.
    The agentic service's sockets and event streams, and `/mcp` of both, answer pages of all others with 403. Its own
    page needs no entry, except by host name while authentication is off."""
    allow_insecure: bool = False
    """Start even though authentication is off and `app.address` is not loopback: everybody who reaches the port is
    `admin`."""
    hs256_secret_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    """Name of the environment variable that holds the shared secret of HS256 tokens; none = no shared secret."""
    hs256_secret: Annotated[SecretStr, Field(min_length=32)] | None = None
    """The shared secret, at least 32 characters. Set it through that variable, not in the file."""
    operator_roles: Annotated[tuple[Text, ...], Listed] = ("admin",)
    """Roles that may export the audit log and read `/kpi`, the agentic service's measurements of itself; others get
    403. Without authentication everybody may."""
    api_keys: ApiKeySecurity = ApiKeySecurity()


class Audit(Section):
    """The audit log: a table of the service that is only added to."""

    retention_days: Annotated[int, Field(ge=0, le=36_500)] = 0
    """Days after which an event is deleted; 0 = never. The newest day is never deleted."""
    repeat_min: Annotated[int, Field(ge=1, le=10_080)] = 60
    """Minutes in which a caller's further requests are no new sign-in, and their further reads of the same library or
    document no new read, in one process."""


class ModelTimeout(Section):
    """Deadlines of one request to a model, in seconds. At the deadline the attempt fails."""

    connect: Seconds = 10
    """Seconds to open a connection."""
    read: Seconds = 60
    """Seconds without a byte of the answer, streamed or not; an answer of a chat model that is not streamed must be
    whole by then. Streams of chat models have the bounds of `deadlines` besides: the shorter one counts."""
    write: Seconds = 10
    """Seconds in which the server must take more of a request that it does not take at once (above 64 KiB)."""
    pool: Seconds = 5
    """Seconds to wait for a free connection."""


class HttpClientLimits(Section):
    """The connection pool of one model endpoint."""

    max_connections: Count = 2048
    """Open connections, one for each call in progress; further calls wait for `timeout.pool`. 0 = no limit."""
    max_keepalive_connections: Count = 512
    """Idle connections that are kept; one more is closed when its call ends. 0 = a new connection for each call, which
    costs 0.3 ms of CPU."""
    keepalive_expiry_seconds: Seconds = 30
    """Seconds until an idle connection is closed."""


class Metrics(Section):
    """What Prometheus reads."""

    legacy_ms_names: bool = False
    """Whether the metrics of Fred's dashboards, with `_ms` or without a prefix, are exposed beside ours, which have all
    of it in base units. `promtool check metrics` objects to them."""


class Requests(Section):
    """What one user may ask of a service, through all its routes and doors together, and with frames of a socket that
    begin or read a turn. Without authentication all callers are one user, and none of it holds. 0 = no limit."""

    per_s: Count = 50
    """Requests a second on average; further ones wait, and those that would wait for more than 5 s get `rate_limited`.
    0 = no limit."""
    burst: Count = 100
    """Requests that may come at once within that rate; 0 is 1."""
    at_once: Count = 2
    """Reads that are worked on at a time, and exports; twice as many cheap requests, uploads and asks whose answer has
    not begun, and eight times as many searches; further ones wait for their turn. 0 = no limit."""
    waiting: Count = 100
    """Requests of a kind that wait for their turn; further ones get `rate_limited`, a second later. 0 = as many as of
    all users together."""


class ConnectionBounds(Section):
    """Connections to `app.port`, whatever they carry. What these bounds end or refuse is counted by
    `app_connections_refused_total`, and named in the log once a minute."""

    max_open: Count = 0
    """Open connections. A further one takes the place of one that waits for its client (no whole request yet, idle, or
    an answer that is not read): the longest waiting of the address that has most of them. Where none waits, it gets
    `/healthz` and `/ready`, and 503 for anything else. 0 = half of the descriptors that the process may open, since a
    turn may need another one for its model; at most 10,000."""
    per_address: Count = 0
    """Open connections of one address (IPv6: of a /64); further ones as with `max_open`, among those of the address.
    0 = no bound of its own: at `max_open` the address with the most gives way in any case. Connections of
    `trusted_proxies` each count as an address of their own."""
    trusted_proxies: Annotated[tuple[Network, ...], Listed] = ()
    """Addresses or networks of proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` are believed; none = the address
    of a client is that of its connection."""
    head_s: Seconds = 10
    """Seconds for the head of a request, from its first byte or from the start of the connection; then 408, or the end
    where nothing came."""
    idle_s: Positive = 5
    """Seconds that a connection may be idle after an answer; then it is closed. The agentic service uses an
    idle one of knowledge flow for 4 s; with less than 5 here, a call may meet its end."""
    body_bytes_per_s: Count = 1024
    """Bytes a second that a body must bring, measured over each `body_window_s` in which the service reads it; then 408
    and the end. 0 = no minimum."""
    body_window_s: Seconds = 10
    """Seconds over which the rate of a body is measured."""
    answer_s: Seconds = 10
    """Seconds in which a client must take each 64 KiB of an answer; then the connection is ended."""


class ServiceSettings(RootSection):
    """The sections of both services, and the rule between two of them: without authentication only loopback is
    served."""

    ignored_keys: ClassVar[tuple[str, ...]] = ("scheduler", "frontend_settings")
    env_named: ClassVar[dict[str, str]] = {
        "security.hs256_secret_env": "security.hs256_secret",
        "security.api_keys.act_as_secret_env": "security.api_keys.act_as_secret",
    }

    app: App
    connections: ConnectionBounds = ConnectionBounds()
    security: Security = Security()
    audit: Audit = Audit()
    metrics: Metrics = Metrics()
    requests: Requests = Requests()

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

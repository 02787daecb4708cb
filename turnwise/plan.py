"""What a local start consists of, read from the configuration files of the services, which name addresses and ports.

With a port of the user's choice (`PORT=9000`) everything moves: the page to it, the rest to the ports after it, and
every URL of the files that points to one of them.
"""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from backend_kit.settings import AUTO, SettingsError, usable_cores
from backend_kit.settings.source import read_env_file, read_yaml
from turnwise.errors import Unusable
from turnwise.ports import LOOPBACK, WantedPort, assign_ports, with_ports

OPENAI_URL = "https://api.openai.com/v1"
SAMPLE_TOOLS = "samples"
"""The id under which a configuration names the tool server that comes with Turnwise."""
_BASE_PATHS = {"agentic_backend": "/agentic/v1", "knowledge_flow_backend": "/knowledge-flow/v1"}
_PORTS = {"agentic_backend": (8000, 9005), "knowledge_flow_backend": (8111, 9111)}
_OF_KNOWLEDGE_FLOW = "tokenizers"
"""A package that only the extra `knowledge-flow` installs."""


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """One of the two services: its module, its file and the addresses that the file gives it."""

    title: str
    module: str
    config: Path
    address: str
    port: int
    metrics_address: str
    metrics_port: int | None
    base_path: str
    content: Mapping[str, Any] | None = None
    """The configuration to run with instead of the file: the same with its ports moved; None: the file itself."""
    workers: int = 1

    @property
    def origin(self) -> str:
        """Its URL for a browser on this machine."""
        return f"http://{_reachable(self.address)}:{self.port}"

    @property
    def metrics_ports(self) -> range:
        """Those that its workers take, one each; none if it exports no metrics."""
        return range(0) if self.metrics_port is None else range(self.metrics_port, self.metrics_port + self.workers)

    @property
    def metrics_url(self) -> str | None:
        """The URL of its Prometheus metrics, of several workers those of the first; None if it exports none."""
        port = self.metrics_port
        return None if port is None else f"http://{_reachable(self.metrics_address)}:{port}/metrics"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start. `model_url` is None if the model runs elsewhere, `postgres_port` if Postgres does, `tools_port` if
    the sample tools are not used."""

    agentic: ServicePlan
    knowledge_flow: ServicePlan | None
    model_url: str | None
    postgres_port: int | None
    tools_port: int | None
    database: str
    environment: Mapping[str, str]

    @property
    def model_host(self) -> str:
        """The host that the mock model listens on."""
        return urlsplit(self.model_url or "").hostname or "127.0.0.1"

    @property
    def model_port(self) -> int:
        """The port that the mock model listens on."""
        return urlsplit(self.model_url or "").port or 80

    def ports(self) -> list[WantedPort]:
        """Every port that will be listened on, in start order."""
        wanted = []
        if self.postgres_port is not None:
            wanted.append(WantedPort("Postgres", "127.0.0.1", self.postgres_port))
        if self.model_url is not None:
            wanted.append(WantedPort("the mock model", self.model_host, self.model_port))
        if self.tools_port is not None:
            wanted.append(WantedPort("the sample tools", "127.0.0.1", self.tools_port))
        for service in (self.knowledge_flow, self.agentic):
            if service is not None:
                wanted.append(WantedPort(service.title, service.address, service.port))
                metrics, address = f"{service.title} metrics", service.metrics_address
                wanted += [WantedPort(metrics, address, port) for port in service.metrics_ports]
        return wanted


def read_plan(
    agentic_config: Path, knowledge_config: Path, environ: Mapping[str, str], *, bench: bool, port: int | None = None
) -> Plan:
    """Read both files. `environ` is the environment for the services, before what is added here.

    The mock model runs unless `OPENAI_API_KEY` or `OPENAI_BASE_URL` is set (in the environment or in `ENV_FILE`) or
    the configuration names a model elsewhere. A bench never leaves the machine: there both variables are dropped.
    With `port` the page is there and everything else on the ports after it. Raises `Unusable`, which names file
    and line.
    """
    environment = _environment(environ, bench=bench)
    data, known = read_configuration(agentic_config, environment)
    known |= environment
    with_knowledge = importlib.util.find_spec(_OF_KNOWLEDGE_FLOW) is not None
    knowledge_data, _ = read_configuration(knowledge_config, {}) if with_knowledge else ({}, {})
    agentic = _service("agentic", "agentic_backend", agentic_config, data)
    knowledge = None
    if with_knowledge:
        knowledge = _service("knowledge flow", "knowledge_flow_backend", knowledge_config, knowledge_data)
    if port is not None:
        ports = assign_ports(port, _order(data, agentic, knowledge))
        agentic = _with_ports(agentic, data, ports)
        knowledge = knowledge and _with_ports(knowledge, knowledge_data, ports)
        data = with_ports(data, ports)
    model_url, override = _model(data, known)
    return Plan(
        agentic=agentic,
        knowledge_flow=knowledge,
        model_url=model_url,
        postgres_port=_postgres_port(data, agentic_config),
        tools_port=_tools_port(data),
        database=str(section_of(data, "storage", "postgres").get("database", "turnwise")),
        environment={**environment, **override},
    )


def _order(data: dict[str, Any], agentic: ServicePlan, knowledge: ServicePlan | None) -> list[range]:
    """The ports in the order in which they follow the page's."""
    model = urlsplit(_model_url(data))
    one_each = (
        knowledge.port if knowledge else None,
        model.port if model.hostname in LOOPBACK else None,
        _postgres_port(data, agentic.config),
        _tools_port(data),
    )
    return [
        range(agentic.port, agentic.port + 1),
        agentic.metrics_ports,
        *(range(port, port + 1) for port in one_each if port is not None),
        knowledge.metrics_ports if knowledge else range(0),
    ]


def _with_ports(service: ServicePlan, data: dict[str, Any], ports: Mapping[int, int]) -> ServicePlan:
    """The service with its ports and the content of its file moved."""
    app = {**section_of(data, "app"), "port": service.port}
    if service.metrics_port is not None:
        app["metrics_port"] = service.metrics_port
    content = with_ports({**data, "app": app}, ports)
    return replace(_service(service.title, service.module, service.config, content), content=content)


def read_configuration(config: Path, environ: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The content of a service's file, and the variables of the file that `ENV_FILE` names. Raises `Unusable`, which
    names file and line."""
    env_file = environ.get("ENV_FILE")
    try:
        data = read_yaml(config).data
        known = {name: value for name, (value, _) in read_env_file(Path(env_file)).items()} if env_file else {}
    except SettingsError as error:
        raise Unusable(str(error)) from None
    return data, known


def section_of(data: dict[str, Any], *path: str) -> dict[str, Any]:
    """A mapping of the file, empty if absent or of another type, which the services themselves refuse."""
    for key in path:
        inner = data.get(key)
        data = inner if isinstance(inner, dict) else {}
    return data


def _environment(environ: Mapping[str, str], *, bench: bool) -> dict[str, str]:
    dropped = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ENV_FILE") if bench else ()
    return {name: value for name, value in environ.items() if name not in dropped}


def _model(data: dict[str, Any], known: Mapping[str, str]) -> tuple[str | None, dict[str, str]]:
    """The URL for the mock model (None: do not start it), and environment variables to add for the services.

    With a key but no URL the user means OpenAI's own API, not the mock that the file names.
    """
    if known.get("OPENAI_BASE_URL"):
        return None, {}
    url = _model_url(data)
    on_this_machine = urlsplit(url).hostname in LOOPBACK
    if known.get("OPENAI_API_KEY"):
        return None, {"OPENAI_BASE_URL": OPENAI_URL} if on_this_machine else {}
    return (url if on_this_machine else None), {}


def _service(title: str, module: str, config: Path, data: dict[str, Any]) -> ServicePlan:
    port, metrics_port = _PORTS[module]
    app = section_of(data, "app")
    metrics = app.get("metrics_enabled", True)
    return ServicePlan(
        title=title,
        module=module,
        config=config.absolute(),
        address=str(app.get("address", "127.0.0.1")),
        port=_port(app.get("port", port), config, "app.port"),
        metrics_address=str(app.get("metrics_address", "127.0.0.1")),
        metrics_port=_port(app.get("metrics_port", metrics_port), config, "app.metrics_port") if metrics else None,
        workers=_workers(app.get("workers", 1), config),
        base_path=str(app.get("base_url", _BASE_PATHS[module])).rstrip("/"),
    )


def _model_url(data: dict[str, Any]) -> str:
    """Where the file has a model of OpenAI's provider, which the mock model may stand in for; "" where it has none."""
    if section_of(data, "ai", "default_chat_model").get("provider", "openai") != "openai":
        return ""
    return str(section_of(data, "ai", "default_chat_model", "settings").get("base_url", ""))


def _postgres_port(data: dict[str, Any], config: Path) -> int | None:
    """The port of the embedded Postgres, None if the file names one elsewhere."""
    postgres = section_of(data, "storage", "postgres")
    if postgres.get("host", "127.0.0.1") not in LOOPBACK:
        return None
    return _port(postgres.get("port", 5432), config, "storage.postgres.port")


def _tools_port(data: dict[str, Any]) -> int | None:
    """The port of the sample tools, None unless the file names them on this machine and enables them."""
    servers = section_of(data, "mcp").get("servers")
    for server in servers if isinstance(servers, list) else ():
        if isinstance(server, dict) and server.get("id") == SAMPLE_TOOLS and server.get("enabled", True) is True:
            url = urlsplit(str(server.get("url", "")))
            return url.port if url.hostname in LOOPBACK else None
    return None


def _port(value: object, config: Path, key: str) -> int:
    if not isinstance(value, int) or not 0 < value < 65536:
        raise Unusable(f"{config}: {key}: must be a port number")
    return value


def _workers(value: object, config: Path) -> int:
    if value == AUTO:
        return usable_cores()
    if not isinstance(value, int) or value < 1:
        raise Unusable(f"{config}: app.workers: must be a number of processes, or {AUTO}")
    return value


def _reachable(address: str) -> str:
    """An address to connect to, also for one that means all interfaces."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(address, f"[{address}]" if ":" in address else address)  # noqa: S104 - compared, not bound

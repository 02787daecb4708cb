"""What a local start consists of, read from the configuration files of the services: addresses and ports are theirs.

With a port of one's own (`PORT=9000`) everything moves: the page to it, the rest to the ports behind it, and every URL
of the files that leads to one of them.
"""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from backend_kit.settings import SettingsError
from backend_kit.settings.source import read_env_file, read_yaml
from turnwise.errors import StartRefused
from turnwise.move import LOOPBACK, moved, ports_from
from turnwise.ports import Wanted

OPENAI_URL = "https://api.openai.com/v1"
SAMPLE_TOOLS = "samples"
"""The id under which a configuration names the tool server that comes with Turnwise."""
_BASE_PATHS = {"agentic_backend": "/agentic/v1", "knowledge_flow_backend": "/knowledge-flow/v1"}
_PORTS = {"agentic_backend": (8000, 9005), "knowledge_flow_backend": (8111, 9111)}
_OF_KNOWLEDGE_FLOW = "tokenizers"
"""What nothing but the extra `knowledge-flow` installs."""


@dataclass(frozen=True, slots=True)
class Service:
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
    """What to run with where it is not the file: the same with its ports moved."""

    @property
    def origin(self) -> str:
        """Where a person on this machine reaches it."""
        return f"http://{_reachable(self.address)}:{self.port}"

    @property
    def metrics_url(self) -> str | None:
        """Where its Prometheus figures are, None when it exports none."""
        port = self.metrics_port
        return None if port is None else f"http://{_reachable(self.metrics_address)}:{port}/metrics"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start. `model_url` None: the model is somewhere else. `postgres_port` None: so is Postgres. `tools_port`
    None: nobody uses the sample tools."""

    agentic: Service
    knowledge_flow: Service | None
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

    def ports(self) -> list[Wanted]:
        """Every port that will be listened on, in the order of the start."""
        wanted = []
        if self.postgres_port is not None:
            wanted.append(Wanted("Postgres", "127.0.0.1", self.postgres_port))
        if self.model_url is not None:
            wanted.append(Wanted("the mock model", self.model_host, self.model_port))
        if self.tools_port is not None:
            wanted.append(Wanted("the sample tools", "127.0.0.1", self.tools_port))
        for service in (self.knowledge_flow, self.agentic):
            if service is not None:
                wanted.append(Wanted(service.title, service.address, service.port))
                if service.metrics_port is not None:
                    wanted.append(Wanted(f"{service.title} metrics", service.metrics_address, service.metrics_port))
        return wanted


def read_plan(
    agentic_config: Path, knowledge_config: Path, environ: Mapping[str, str], *, bench: bool, port: int | None = None
) -> Plan:
    """Read both files. `environ` is what the services will be started with, plus what is added here.

    The mock model runs unless `OPENAI_API_KEY` or `OPENAI_BASE_URL` is set (in the environment or in `ENV_FILE`) or
    the configuration names a model elsewhere. A bench never leaves the machine: there both variables are dropped.
    With `port` the page is there and everything else behind it. Raises `StartRefused` with file and line.
    """
    try:
        environment = _environment(environ, bench=bench)
        data = read_yaml(agentic_config).data
        with_knowledge = importlib.util.find_spec(_OF_KNOWLEDGE_FLOW) is not None
        knowledge_data = read_yaml(knowledge_config).data if with_knowledge else {}
        known = {**_env_file(environment), **environment}
    except SettingsError as error:
        raise StartRefused(str(error)) from None
    agentic = _service("agentic", "agentic_backend", agentic_config, data)
    knowledge = None
    if with_knowledge:
        knowledge = _service("knowledge flow", "knowledge_flow_backend", knowledge_config, knowledge_data)
    if port is not None:
        ports = ports_from(port, _order(data, agentic, knowledge))
        agentic = _moved(agentic, data, ports)
        knowledge = knowledge and _moved(knowledge, knowledge_data, ports)
        data = moved(data, ports)
    model_url, override = _model(data, known)
    return Plan(
        agentic=agentic,
        knowledge_flow=knowledge,
        model_url=model_url,
        postgres_port=_postgres_port(data, agentic_config),
        tools_port=_tools_port(data),
        database=str(_section(data, "storage", "postgres").get("database", "turnwise")),
        environment={**environment, **override},
    )


def _order(data: dict[str, Any], agentic: Service, knowledge: Service | None) -> list[int | None]:
    """The ports in the order in which they follow the page's. Knowledge flow's metrics are last: each further worker
    of it takes one more."""
    model = urlsplit(_model_url(data))
    return [
        agentic.port,
        agentic.metrics_port,
        knowledge.port if knowledge else None,
        model.port if model.hostname in LOOPBACK else None,
        _postgres_port(data, agentic.config),
        _tools_port(data),
        knowledge.metrics_port if knowledge else None,
    ]


def _moved(service: Service, data: dict[str, Any], ports: Mapping[int, int]) -> Service:
    """The service with its ports, and the content of its file, moved."""
    app = {**_section(data, "app"), "port": service.port}
    if service.metrics_port is not None:
        app["metrics_port"] = service.metrics_port
    content = moved({**data, "app": app}, ports)
    return replace(_service(service.title, service.module, service.config, content), content=content)


def _environment(environ: Mapping[str, str], *, bench: bool) -> dict[str, str]:
    dropped = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ENV_FILE") if bench else ()
    return {name: value for name, value in environ.items() if name not in dropped}


def _env_file(environment: Mapping[str, str]) -> dict[str, str]:
    name = environment.get("ENV_FILE")
    return {} if not name else {key: value for key, (value, _) in read_env_file(Path(name)).items()}


def _model(data: dict[str, Any], known: Mapping[str, str]) -> tuple[str | None, dict[str, str]]:
    """The URL at which the mock model is wanted (None: it is not), and what the services must be told besides.

    With a key and no URL the model meant is OpenAI's own, not the mock that the file names.
    """
    if known.get("OPENAI_BASE_URL"):
        return None, {}
    url = _model_url(data)
    on_this_machine = urlsplit(url).hostname in LOOPBACK
    if known.get("OPENAI_API_KEY"):
        return None, {"OPENAI_BASE_URL": OPENAI_URL} if on_this_machine else {}
    return (url if on_this_machine else None), {}


def _service(title: str, module: str, config: Path, data: dict[str, Any]) -> Service:
    port, metrics_port = _PORTS[module]
    app = _section(data, "app")
    metrics = app.get("metrics_enabled", True)
    return Service(
        title=title,
        module=module,
        config=config.absolute(),
        address=str(app.get("address", "127.0.0.1")),
        port=_port(app.get("port", port), config, "app.port"),
        metrics_address=str(app.get("metrics_address", "127.0.0.1")),
        metrics_port=_port(app.get("metrics_port", metrics_port), config, "app.metrics_port") if metrics else None,
        base_path=str(app.get("base_url", _BASE_PATHS[module])).rstrip("/"),
    )


def _model_url(data: dict[str, Any]) -> str:
    return str(_section(data, "ai", "default_chat_model", "settings").get("base_url", ""))


def _postgres_port(data: dict[str, Any], config: Path) -> int | None:
    """The port of the embedded Postgres, None where the file names one elsewhere."""
    postgres = _section(data, "storage", "postgres")
    if postgres.get("host", "127.0.0.1") not in LOOPBACK:
        return None
    return _port(postgres.get("port", 5432), config, "storage.postgres.port")


def _tools_port(data: dict[str, Any]) -> int | None:
    """The port of the sample tools, where the file names them, on this machine, and has not switched them off."""
    servers = _section(data, "mcp").get("servers")
    for server in servers if isinstance(servers, list) else ():
        if isinstance(server, dict) and server.get("id") == SAMPLE_TOOLS and server.get("enabled", True) is True:
            url = urlsplit(str(server.get("url", "")))
            return url.port if url.hostname in LOOPBACK else None
    return None


def _section(data: dict[str, Any], *path: str) -> dict[str, Any]:
    """A mapping of the file, empty where it is absent. The services themselves refuse what is of the wrong type."""
    for key in path:
        inner = data.get(key)
        data = inner if isinstance(inner, dict) else {}
    return data


def _port(value: object, config: Path, key: str) -> int:
    if not isinstance(value, int) or not 0 < value < 65536:
        raise StartRefused(f"{config}: {key}: must be a port number")
    return value


def _reachable(address: str) -> str:
    """An address that one can connect to, for one that means all interfaces."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(address, f"[{address}]" if ":" in address else address)  # noqa: S104 - compared, not bound

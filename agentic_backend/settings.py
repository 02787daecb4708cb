"""Settings of the agentic service: one frozen object, read once at start (docs/configuration.md lists every key)."""

from collections.abc import Collection
from typing import Annotated, Any, ClassVar, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, JsonValue, SecretStr, Strict, model_validator

from backend_kit.settings import (
    App,
    BasePath,
    Count,
    HttpClientLimits,
    HttpUrl,
    ModelTimeout,
    Port,
    Positive,
    Postgres,
    Seconds,
    Section,
    Security,
    ServiceSettings,
    SettingsRefused,
    Text,
)
from backend_kit.settings.base import http_url

DEFAULT_MODEL: Final = "default"
"""The id of `ai.default_chat_model` among the models that an agent or a turn may name."""

ANY_MODEL: Final = "*"
"""Stands for every configured model among those that a turn may choose."""

FieldType = Literal[
    "string",
    "text",
    "text-multiline",
    "prompt",
    "number",
    "integer",
    "boolean",
    "select",
    "array",
    "object",
    "url",
]


Listed: Final = Strict(False)
"""Marks a tuple field, so that the list of a YAML file is taken for it (its items stay strict)."""


def _origin(value: str) -> str:
    """A browser origin: scheme, host and port, nothing after them (it is compared byte for byte)."""
    url = http_url(value)
    if url != value or urlsplit(url).path or urlsplit(url).query or urlsplit(url).fragment:
        raise SettingsRefused("must be an origin: scheme://host[:port] and nothing after it")
    if url != url.lower():
        raise SettingsRefused("must be in lower case, as browsers send it")
    return url


def refuse_twice(names: list[str], last: str, *path: str) -> None:
    """Raise `SettingsRefused` at the second of two equal names."""
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            raise SettingsRefused("is used twice", *path, index, last)
        seen.add(name)


Origin = Annotated[str, AfterValidator(_origin)]


class AgenticApp(App):
    """The process of the agentic service."""

    name: Text = "Agentic Backend"
    base_url: BasePath = "/agentic/v1"
    port: Port = 8000
    metrics_port: Port = 9005


class AgenticSecurity(Security):
    """Authentication of callers and of the pages they come from."""

    authorized_origins: Annotated[tuple[Origin, ...], Listed] = ()
    """Origins that a browser may connect from, compared exactly. The service's own page needs no entry."""
    allow_query_token: bool = False
    """Whether a WebSocket may carry its token as `?token=`, where proxies and histories keep it."""
    operator_roles: Annotated[tuple[Text, ...], Listed] = ("admin",)
    """Roles of those who may see what the service observes of itself (`/kpi`). Without authentication everybody may."""


class FieldSpec(Section):
    """One value of an agent that an operator may tune; `default` is the value in force."""

    key: Text
    """Dotted name, such as `prompts.system`."""
    type: FieldType = "string"
    """What the value is and how a form shows it."""
    title: str = ""
    """Label in a form."""
    description: str | None = None
    """What the value does."""
    required: bool = False
    """Whether a form may leave it empty."""
    default: JsonValue = None
    """The value."""
    enum: Annotated[tuple[str, ...], Listed] | None = None
    """The values of a `select`."""
    min: float | None = None
    """Least number."""
    max: float | None = None
    """Greatest number."""
    pattern: str | None = None
    """Regular expression that a text must match."""
    item_type: FieldType | None = None
    """Type of the items of an `array`."""
    ui: dict[str, JsonValue] = Field(default_factory=dict)
    """Hints for a form, handed through."""


class McpServerRef(Section):
    """An MCP server that an agent uses."""

    id: Text
    """`id` of an entry of `mcp.servers`."""


class AgentTuning(Section):
    """How an agent presents itself and what may be tuned."""

    role: str = ""
    """One line under the agent's name."""
    description: str = ""
    """What the agent is for."""
    tags: Annotated[tuple[str, ...], Listed] = ()
    """Words to group agents by."""
    fields: Annotated[tuple[FieldSpec, ...], Listed] = ()
    mcp_servers: Annotated[tuple[McpServerRef, ...], Listed] = ()


class ChatOptions(Section):
    """Controls that the chat page shows for an agent."""

    search_policy_selection: bool = False
    """Offer the search policy."""
    libraries_selection: bool = False
    """Offer document libraries."""
    include_corpus_in_search: bool = False
    """Offer to leave the corpus out."""
    attach_files: bool = False
    """Offer attachments."""
    search_rag_scoping: bool = False
    """Offer the scope of retrieval."""
    documents_selection: bool = False
    """Offer single documents."""
    deep_search_delegate: bool = False
    """Offer deep search."""


MAX_STARTERS: Final = 6
MAX_STARTER_CHARS: Final = 200


class AgentSettings(Section):
    """One agent: which graph it runs and with which values (also the shape of `GET /agents`)."""

    id: Text
    """Identifier in asks and sessions; the name where it is left out."""
    name: Text
    """Name in the chat page."""
    enabled: bool = True
    """Whether the agent is offered."""
    class_path: Text | None = None
    """Module that holds the agent's graph."""
    type: Text = "agent"
    """Kind of agent."""
    model: Text = DEFAULT_MODEL
    """Model that answers: `default` is `ai.default_chat_model`, else the id of an entry of `ai.chat_models`."""
    further_models: Annotated[tuple[Text, ...], Listed] = ()
    """Further models that a turn may choose instead, by the same ids; `*` is all of them."""
    starters: Annotated[
        tuple[Annotated[str, Field(max_length=MAX_STARTER_CHARS, pattern=r"\S")], ...],
        Listed,
        Field(max_length=MAX_STARTERS),
    ] = ()
    """Questions that the chat page suggests at the beginning of a conversation with the agent."""
    tuning: AgentTuning = AgentTuning()
    chat_options: ChatOptions = ChatOptions()

    @model_validator(mode="before")
    @classmethod
    def _id_is_the_name_where_left_out(cls, data: Any) -> Any:
        if isinstance(data, dict) and "id" not in data and "name" in data:
            return {**data, "id": data["name"]}
        return data

    @model_validator(mode="after")
    def _nothing_is_there_twice(self) -> "AgentSettings":
        refuse_twice([field.key for field in self.tuning.fields], "key", "tuning", "fields")
        if len(set(self.starters)) != len(self.starters):
            raise SettingsRefused("holds one twice", "starters")
        return self

    def unknown_model(self, known: Collection[str]) -> Literal["model", "further_models"] | None:
        """The key under which a model is named that is none of the known ones, if there is one."""
        if self.model not in known:
            return "model"
        return (
            "further_models" if any(name not in known and name != ANY_MODEL for name in self.further_models) else None
        )

    def tuned(self, key: str, fallback: Any) -> Any:
        """The value of a tunable field; `fallback` where the agent does not list it or leaves it empty."""
        for field in self.tuning.fields:
            if field.key == key and field.default is not None:
                return field.default
        return fallback


class ClientTimeout(Section):
    """Deadlines of the knowledge-flow client, in seconds."""

    connect: Seconds = 20
    """Seconds to open a connection."""
    read: Seconds = 60
    """Seconds without a byte of the answer."""


class ChatModelSettings(Section):
    """How a model is called."""

    base_url: HttpUrl | None = None
    """Endpoint with its version path; OPENAI_BASE_URL overrides it. Without either: the provider's own."""
    api_key: SecretStr | None = None
    """Set through OPENAI_API_KEY."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    """Sampling temperature."""
    max_retries: Annotated[int, Field(ge=0, le=10)] = 2
    """Further attempts with jitter, only before the first token."""
    timeout: ModelTimeout = ModelTimeout()
    http_client_limits: HttpClientLimits = HttpClientLimits()


class ChatModel(Section):
    """A model behind an OpenAI-compatible endpoint."""

    provider: Literal["openai"] = "openai"
    """Protocol of the endpoint."""
    name: Text
    """Model name that is sent; OPENAI_MODEL overrides it."""
    settings: ChatModelSettings = ChatModelSettings()


class OfferedModelSettings(Section):
    """How a further model is called. What is left out is as for `ai.default_chat_model`.

    Connections have the timeouts and limits of `ai.default_chat_model`; models on one server share them.
    """

    ignored_keys: ClassVar[tuple[str, ...]] = ("timeout", "http_client_limits")

    base_url: HttpUrl | None = None
    """Endpoint with its version path."""
    api_key: SecretStr | None = None
    """Key of that endpoint. With a base_url of its own the model never gets the key of another."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """Sampling temperature."""
    max_retries: Annotated[int, Field(ge=0, le=10)] | None = None
    """Further attempts with jitter, only before the first token."""


class OfferedModel(Section):
    """A further model that agents and turns may name."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$")]
    """Name of the choice in agents, asks and preferences."""
    title: str = ""
    """Label in the chat page; the id where it is left out."""
    provider: Literal["openai"] = "openai"
    """Protocol of the endpoint."""
    name: Text
    """Model name that is sent."""
    settings: OfferedModelSettings = OfferedModelSettings()

    @model_validator(mode="after")
    def _id_is_not_taken(self) -> "OfferedModel":
        if self.id == DEFAULT_MODEL:
            raise SettingsRefused("is the id of ai.default_chat_model", "id")
        return self

    def called_as(self, default: ChatModel) -> ChatModel:
        """The model with what it leaves to the default one."""
        own = self.settings.model_dump(exclude_none=True)
        if "base_url" in own:
            own.setdefault("api_key", None)
        return ChatModel(provider=self.provider, name=self.name, settings=default.settings.model_copy(update=own))


class ModelPrice(Section):
    """What a model's tokens cost."""

    model: Text
    """Model name as it is sent."""
    input_per_million: Annotated[float, Field(ge=0)] = 0.0
    """Price of a million tokens that the model reads, in `ai.currency`."""
    output_per_million: Annotated[float, Field(ge=0)] = 0.0
    """Price of a million tokens that it writes."""


class Recursion(Section):
    """Bound of a graph's loop."""

    recursion_limit: Positive = 40
    """Steps of one run."""


class Ai(Section):
    """Agents, models, and what they may use."""

    knowledge_flow_url: HttpUrl = "http://127.0.0.1:8111/knowledge-flow/v1"
    """Base URL of the knowledge-flow service."""
    timeout: ClientTimeout = ClientTimeout()
    restore_max_exchanges: Count = 20
    """Earlier exchanges that an agent is given."""
    max_concurrent_agents: Positive = 1024
    """Compiled graphs that are cached."""
    max_concurrent_sessions_per_user: Count = 0
    """Sessions a user may have; 0 = no limit."""
    max_attached_files_per_user: Count = 20
    """Attachments a user may have; 0 = none, uploads answer `attachments_disabled`."""
    max_attached_file_size_mb: Positive = 50
    """Largest attachment, in MB; knowledge flow's `processing.max_file_mb` should not be less."""
    use_static_config_only: bool = True
    """Whether agents come from this file alone. Off, further ones may be made over REST."""
    max_made_agents: Count = 100
    """Agents that may be made over REST, in all."""
    agent_editor_roles: Annotated[tuple[Text, ...], Listed] = ("admin",)
    """Roles of those who may make, change and delete agents over REST. Without authentication everybody may."""
    default_chat_model: ChatModel
    chat_models: Annotated[tuple[OfferedModel, ...], Listed] = ()
    default_language_model: ChatModel | None = None
    """Makes titles of sessions after their first answer; without it the first question is the title."""
    prices: Annotated[tuple[ModelPrice, ...], Listed] = ()
    """What tokens cost; a model without an entry costs nothing."""
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "USD"
    """Currency of the prices (ISO 4217)."""
    recursion: Recursion = Recursion()
    agents: Annotated[tuple[AgentSettings, ...], Listed] = ()

    @model_validator(mode="after")
    def _names_are_unique(self) -> "Ai":
        refuse_twice([agent.id for agent in self.agents], "id", "agents")
        refuse_twice([model.id for model in self.chat_models], "id", "chat_models")
        refuse_twice([price.model for price in self.prices], "model", "prices")
        return self

    @model_validator(mode="after")
    def _models_are_there(self) -> "Ai":
        known = {DEFAULT_MODEL, *(model.id for model in self.chat_models)}
        for place, agent in enumerate(self.agents):
            if (where := agent.unknown_model(known)) is not None:
                raise SettingsRefused("names a model that is not among chat_models", "agents", place, where)
        return self

    @property
    def language_model(self) -> ChatModel:
        """The model for what is not an answer, such as titles."""
        return self.default_language_model or self.default_chat_model


class McpServer(Section):
    """A tool server (Model Context Protocol)."""

    ignored_keys: ClassVar[tuple[str, ...]] = ("sse_read_timeout", "auth_mode")

    id: Text
    """Identifier that agents refer to."""
    name: Text
    """Name that people see."""
    description: str | None = None
    """What its tools do."""
    enabled: bool = True
    """Whether agents may use it."""
    transport: Literal["streamable_http"] = "streamable_http"
    """How it is spoken to."""
    url: HttpUrl
    """Its endpoint."""
    forward_token: bool = False
    """Whether it is given the asker's token. Its tools are discovered with that of whoever comes first."""
    approved_tools: Annotated[tuple[Text, ...], Listed] = ()
    """Tools that run without asking a person, although they do not say that they only read."""
    tools_to_approve: Annotated[tuple[Text, ...], Listed] = ()
    """Tools that run only after a person has agreed, although they say that they only read; `*` is all of them."""

    @model_validator(mode="after")
    def _approval_is_one_or_the_other(self) -> "McpServer":
        if set(self.approved_tools) & set(self.tools_to_approve):
            raise SettingsRefused("names a tool that is also among approved_tools", "tools_to_approve")
        return self

    def needs_approval(self, tool: str, *, read_only: bool) -> bool:
        """Whether a tool may only run after a person has agreed; `read_only` is what it says of itself."""
        if tool in self.approved_tools:
            return False
        return not read_only or tool in self.tools_to_approve or "*" in self.tools_to_approve


class Mcp(Section):
    """Tool servers that agents may use."""

    servers: Annotated[tuple[McpServer, ...], Listed] = ()
    discover_s: Seconds = 5
    """Seconds to connect to a server and to list its tools."""
    call_s: Seconds = 20
    """Seconds of one call of a tool."""
    tools_ttl_s: Seconds = 300
    """Age at which a server's tools are listed again, in the background."""
    max_result_chars: Positive = 20_000
    """Characters of a tool's result that the model is given; what is longer is cut."""

    @model_validator(mode="after")
    def _servers_are_unique(self) -> "Mcp":
        refuse_twice([server.id for server in self.servers], "id", "servers")
        return self


class Storage(Section):
    """Where sessions and their history are."""

    # Only knowledge flow speaks to OpenSearch; the tables have fixed names.
    ignored_keys: ClassVar[tuple[str, ...]] = ("*_store", "opensearch")

    postgres: Postgres


class PersistenceSettings(Section):
    """How a finished turn reaches Postgres."""

    ack: Literal["spool", "db", "none"] = "spool"
    """What `final` waits for: the local spool, Postgres, or nothing (which promises nothing)."""
    replicas: Literal["single", "many"] = "single"
    """Whether other instances write to the same database; `many` needs `ack: db`."""
    spool_dir: Text = ".turnwise/spool"
    """Directory of the spool, on a volume that outlives the process; one process a directory."""
    max_records: Positive = 20_000
    """Finished turns that wait for Postgres; above it new turns are refused with `storage_full`."""
    max_bytes_mb: Positive = 512
    """MiB that wait for Postgres; above it new turns are refused with `storage_full`."""
    batch_max_records: Annotated[int, Field(ge=1, le=64)] = 64
    """Turns a transaction."""
    batch_linger_ms: Count = 200
    """Milliseconds that the first turn of a batch waits for others; 5 at most with `ack: db`."""

    @model_validator(mode="after")
    def _promises_are_kept(self) -> "PersistenceSettings":
        """Another instance cannot see this one's spool, so it cannot see turns that are only there."""
        if self.replicas == "many" and self.ack != "db":
            raise SettingsRefused("replicas: many needs ack: db", "ack")
        return self


class PerUser(Section):
    """Limits of one user; 0 = off."""

    sockets: Count = 0
    """Open sockets; the oldest is closed with 4409."""
    turns: Count = 0
    """Turns at once."""
    asks_per_min: Count = 0
    """Asks a minute in the long run."""
    burst: Count = 0
    """Asks that may come at once within that rate."""

    @model_validator(mode="after")
    def _rate_has_a_burst(self) -> "PerUser":
        if self.asks_per_min and not self.burst:
            raise SettingsRefused("must be at least 1 where asks_per_min is set", "burst")
        return self


class PerAddress(Section):
    """Limits of one client address; 0 = off."""

    sockets: Count = 0
    """Open sockets; further ones get 429."""


class Limits(Section):
    """Admission of sockets and turns; 0 = off."""

    max_sockets: Count = 6000
    """Open sockets; further ones get 503."""
    max_turns: Count = 2000
    """Turns at once; further asks queue."""
    queue_length: Count = 100
    """Asks that may wait for a turn; further ones are `overloaded`."""
    queue_deadline_s: Seconds = 2
    """Seconds that an ask may wait."""
    per_user: PerUser = PerUser()
    per_address: PerAddress = PerAddress()
    max_message_chars: Positive = 32_000
    """Characters of an ask."""
    max_frame_bytes: Positive = 262_144
    """Bytes of a frame after inflation; above it the socket is closed with 1009."""


class Deadlines(Section):
    """How long each wait may take, in seconds on the monotonic clock."""

    first_token_s: Seconds = 30
    """Model call to first token."""
    inter_token_s: Seconds = 20
    """One token to the next."""
    turn_s: Seconds = 120
    """A whole turn."""
    send_s: Seconds = 10
    """Hand-over of one frame to a reader; then its socket is aborted."""
    idle_s: Seconds = 1800
    """A socket without an ask."""
    heartbeat_s: Seconds = 15
    """Silence after which a heartbeat is sent (native protocol)."""
    drain_s: Seconds = 25
    """Running turns at SIGTERM; then they are cancelled."""


class Server(Section):
    """The WebSocket server and the interpreter."""

    ws_per_message_deflate: bool = False
    """Compress frames: 27 KB of memory more for each idle socket."""
    gc_freeze: bool = True
    """Take what exists after start out of garbage collection."""
    ping_interval_s: Seconds = 20
    """Seconds between keepalive pings."""
    ping_timeout_s: Seconds = 20
    """Seconds to wait for the pong."""
    http_compression: Literal["none", "gzip", "zstd", "auto"] = "auto"
    """Encodings that REST answers of 1 KiB and more may have, as `Accept-Encoding` asks; `auto`: zstd, else gzip."""


class HistorySettings(Section):
    """What is kept of conversations: in memory, and for how long."""

    cache_mb: Count = 64
    """MiB of restored history in all; 0 = read it each time."""
    retention_days: Annotated[int, Field(ge=0, le=36_500)] = 0
    """Days without a turn after which a session is deleted with all that hangs on it; 0 = kept for ever."""


class AgenticSettings(ServiceSettings):
    """The whole configuration of the agentic service."""

    env_overrides: ClassVar[dict[str, tuple[str, ...]]] = {
        "FRED_POSTGRES_PASSWORD": ("storage.postgres.password",),
        "OPENAI_API_KEY": ("ai.default_chat_model.settings.api_key", "ai.default_language_model.settings.api_key"),
        "OPENAI_MODEL": ("ai.default_chat_model.name", "ai.default_language_model.name"),
        "TURNWISE_SPOOL_DIR": ("persistence.spool_dir",),
        "OPENAI_BASE_URL": ("ai.default_chat_model.settings.base_url", "ai.default_language_model.settings.base_url"),
    }

    app: AgenticApp = AgenticApp()
    security: AgenticSecurity = AgenticSecurity()
    ai: Ai
    mcp: Mcp = Mcp()
    storage: Storage
    persistence: PersistenceSettings = PersistenceSettings()
    limits: Limits = Limits()
    deadlines: Deadlines = Deadlines()
    server: Server = Server()
    history: HistorySettings = HistorySettings()

    @model_validator(mode="after")
    def _tool_servers_are_there(self) -> "AgenticSettings":
        known = {server.id for server in self.mcp.servers}
        for place, agent in enumerate(self.ai.agents):
            for index, used in enumerate(agent.tuning.mcp_servers):
                if used.id not in known:
                    where = ("ai", "agents", place, "tuning", "mcp_servers", index, "id")
                    raise SettingsRefused("is the id of no entry of mcp.servers", *where)
        return self

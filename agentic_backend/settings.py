"""Settings of the agentic service: one frozen object, read once at start (docs/configuration.md lists every key)."""

import os
import re
from collections.abc import Collection, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal
from urllib.parse import unquote, urlsplit, urlunsplit

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, PrivateAttr, SecretStr, model_validator

from agentic_backend.branding import Branding, FrontendSettings
from agentic_backend.langgraph_json import read_langgraph_json
from backend_kit.settings import (
    App,
    BasePath,
    Count,
    Hosts,
    HttpClientLimits,
    HttpUrl,
    Listed,
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

DEFAULT_MODEL: Final = "default"
"""Id of `ai.default_chat_model` in agents, asks and preferences."""

ANY_MODEL: Final = "*"
"""In `further_models`: every configured model."""

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


MaxTokensName = Literal["max_tokens", "max_completion_tokens"]


def refuse_twice(names: list[str], last: str, *path: str) -> None:
    """Raise `SettingsRefused` at the second of two equal names."""
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            raise SettingsRefused("is used twice", *path, index, last)
        seen.add(name)


class AgenticApp(App):
    """The process of the agentic service."""

    name: Text = "Agentic Backend"
    base_url: BasePath = "/agentic/v1"
    port: Port = 8000
    metrics_port: Port = 9005


class AgenticSecurity(Security):
    """Authentication of callers and of the web pages they use."""

    ignored_keys: ClassVar[tuple[str, ...]] = ("m2m", "rebac")

    allow_query_token: bool = False
    """Whether a WebSocket may send its token as `?token=`, which proxies and browser histories record. If not, such a
    token is ignored."""
    public_links: bool = False
    """Whether a conversation may be shared with anybody who has its link, without signing in. If not, such links are
    refused with 403, and those that were made before are for signed-in readers."""


class FieldSpec(Section):
    """One value of an agent that operators may change."""

    key: Text
    """Dotted name, such as `prompts.system`."""
    type: FieldType = "string"
    """Type of the value, and how a form shows it."""
    title: str = ""
    """Label in a form, and in the schema of an assistant's context."""
    description: str | None = None
    """What the value does, in a form and in that schema."""
    required: bool = False
    """Whether the value may not be empty."""
    default: JsonValue = None
    """The value in force; none = the default of the agent's module."""
    enum: Annotated[tuple[str, ...], Listed] | None = None
    """The allowed values of a text; none = any."""
    min: float | None = None
    """Smallest allowed number; none = no bound."""
    max: float | None = None
    """Largest allowed number; none = no bound."""
    pattern: str | None = None
    """Regular expression that the whole text must match; none = any text."""
    item_type: FieldType | None = None
    """Type of the items of an `array`; none = `string`."""
    ui: dict[str, JsonValue] = Field(default_factory=dict)
    """Hints for a form. Handed through to clients of `GET /agents`."""


class McpServerRef(Section):
    """An MCP server that an agent uses."""

    ignored_keys: ClassVar[tuple[str, ...]] = ("require_tools",)

    id: Text
    """`id` of an entry of `mcp.servers`."""


class AgentTuning(Section):
    """How an agent presents itself, and what of it may be changed."""

    role: str = ""
    """One line under the agent's name. Handed through to clients of `GET /agents`."""
    description: str = ""
    """What the agent is for, in lists of agents and of assistants."""
    tags: Annotated[tuple[str, ...], Listed] = ()
    """Words to group agents by. Handed through to clients of `GET /agents`."""
    fields: Annotated[tuple[FieldSpec, ...], Listed] = ()
    mcp_servers: Annotated[tuple[McpServerRef, ...], Listed] = ()


class ChatOptions(Section):
    """Controls that a client offers for an agent. Handed through to clients of `GET /agents`."""

    ignored_keys: ClassVar[tuple[str, ...]] = ("record_audio_files",)

    search_policy_selection: bool = False
    """Offer a choice of search policy. Handed through to clients of `GET /agents`."""
    libraries_selection: bool = False
    """Offer a choice of document libraries. Handed through to clients of `GET /agents`."""
    include_corpus_in_search: bool = False
    """Offer to leave out the corpus. Handed through to clients of `GET /agents`."""
    attach_files: bool = False
    """Offer attachments, as the service's page does. Handed through to clients of `GET /agents`."""
    search_rag_scoping: bool = False
    """Offer a choice of retrieval scope. Handed through to clients of `GET /agents`."""
    documents_selection: bool = False
    """Offer a choice of single documents. Handed through to clients of `GET /agents`."""
    deep_search_delegate: bool = False
    """Offer deep search to clients of `GET /agents`. No agent that ships with the service searches deeper, nor does a
    hosted graph: for these the log of the start names the key."""


Restart = Literal["never", "from_question", "from_checkpoint"]
"""Whether the service runs a turn of an agent again that the end of a process cut off, and from where."""

OWN_NAMES: Final = frozenset({"Georges", "Rico", "Sammy"})
"""A `class_path` that ends in one of these means the agent of that name that ships with the service."""
_OWN_PACKAGE: Final = "agentic_backend."

MAX_STARTERS: Final = 6
MAX_STARTER_CHARS: Final = 200


class AgentSettings(Section):
    """One agent: its graph and the values it runs with. `GET /agents` returns the same shape."""

    # No agent leads others or hands over to them. Its servers are those of its tuning.
    ignored_keys: ClassVar[tuple[str, ...]] = ("metadata", "crew", "mcp_servers")

    id: Text
    """Identifier in asks and sessions; left out = the name."""
    name: Text
    """Name in the chat page."""
    enabled: bool = True
    """Whether clients may ask the agent."""
    class_path: Text | None = None
    """Python module with the agent's `build`; none = the plain agent (`agentic_backend.agent.plain`)."""
    graph: Text | None = None
    """A LangGraph graph instead of an agent module: `package.module:name`, `package.module` for its `graph`, or
    `./path/file.py:name`, relative to the working directory. The object is a compiled graph, a `StateGraph`, or a
    function that makes one."""
    durability: Literal["exit", "async", "sync"] = "async"
    """When a hosted graph's state is stored (`graph`): `exit` = at the end of a turn, `async` = after each step, while
    the next one runs, `sync` = after each step, before the next one."""
    context: dict[str, JsonValue] = Field(default_factory=dict)
    """What a hosted graph gets with each turn (`graph`): in `configurable`, and as its context where it has a schema
    for one."""
    type: Text = "agent"
    """Kind of agent. One created over REST without `class_path` is the built-in agent of this name, else the plain
    one."""
    model: Text = DEFAULT_MODEL
    """Model that answers: `default` is `ai.default_chat_model`, any other the id of an entry of `ai.chat_models`."""
    further_models: Annotated[tuple[Text, ...], Listed] = ()
    """Ids of models that a turn may choose instead; `*` = all, none = no choice."""
    restart: Restart | None = None
    """What becomes of a turn that a kill of the service cut off, at the next start: `from_question` = the service runs
    it again, once; `from_checkpoint` = it goes on where its graph was, for hosted graphs; `never` = it stays
    interrupted until its user asks again; none = `from_question` for the plain agent and Rico
    (`agentic_backend.agent.rag`), `never` for Sammy (`agentic_backend.agent.tools`), what a module of your own
    declares, else `never`; for a hosted graph `from_checkpoint`, with `durability: exit` `never`."""
    client_tools: bool = False
    """Whether the model may call functions that a client offers with its question (an OpenAI client's `tools`): the
    answer then ends with these calls, and the client's next question has their results. For the plain agent, and for a
    module of your own that declares `CLIENT_TOOLS`; refused for any other agent, and for a hosted graph."""
    images: bool = False
    """Whether a hosted graph takes questions with images (`graph`): the content of their message is then a list, the
    text first, and an `image_url` with a data URL for each image. Refused for any other agent: its module says so
    itself (`IMAGES`), and its model (`vision`)."""
    starters: Annotated[
        tuple[Annotated[str, Field(max_length=MAX_STARTER_CHARS, pattern=r"\S")], ...],
        Listed,
        Field(max_length=MAX_STARTERS),
    ] = ()
    """Questions that the chat page suggests for a new conversation: at most 6 of 200 characters."""
    tuning: AgentTuning = AgentTuning()
    chat_options: ChatOptions = ChatOptions()
    _graph_base: Path | None = PrivateAttr(None)

    @classmethod
    def hosted(cls, name: str, graph: str, base: Path, description: str = "") -> "AgentSettings":
        """An agent of a `langgraph.json`, with the directory that its graph's path is relative to."""
        agent = cls(id=name, name=name, graph=graph, tuning=AgentTuning(description=description))
        agent._graph_base = base
        return agent

    @property
    def graph_base(self) -> Path | None:
        """The directory that the path of `graph` is relative to; None for the working directory."""
        return self._graph_base

    @property
    def is_own(self) -> bool:
        """Whether its code ships with the service. Another's is tried before the service starts."""
        path = self.class_path
        return self.graph is None and (
            path is None or path.startswith(_OWN_PACKAGE) or path.rpartition(".")[2] in OWN_NAMES
        )

    @model_validator(mode="before")
    @classmethod
    def _id_is_the_name_where_left_out(cls, data: Any) -> Any:
        if isinstance(data, dict) and "id" not in data and "name" in data:
            return {**data, "id": data["name"]}
        return data

    @model_validator(mode="after")
    def _has_one_source(self) -> "AgentSettings":
        if self.graph is not None and self.class_path is not None:
            raise SettingsRefused("is set beside class_path", "graph")
        return self

    @model_validator(mode="after")
    def _nothing_is_there_twice(self) -> "AgentSettings":
        refuse_twice([field.key for field in self.tuning.fields], "key", "tuning", "fields")
        if len(set(self.starters)) != len(self.starters):
            raise SettingsRefused("holds one twice", "starters")
        return self

    def unknown_model(self, known: Collection[str]) -> Literal["model", "further_models"] | None:
        """The first key that names an unknown model; None if there is none."""
        if self.model not in known:
            return "model"
        return (
            "further_models" if any(name not in known and name != ANY_MODEL for name in self.further_models) else None
        )

    def tuned(self, key: str, fallback: Any) -> Any:
        """The value of a field, or `fallback` if the agent does not list it or leaves it empty."""
        for field in self.tuning.fields:
            if field.key == key and field.default is not None:
                return field.default
        return fallback


Provider = Literal[
    "openai",
    "openai_responses",
    "azure_openai",
    "anthropic",
    "ollama",
    "bedrock_converse",
    "google_genai",
    "mistralai",
    "groq",
]
_OPENAI: Final = (None, "openai", "openai_responses")
"""Providers whose models, keys and addresses OpenAI's variables set."""
_NEEDED: Final = {
    "openai_responses": ("langchain_openai", 'pip install "turnwise[agentic,langchain]"'),
    "azure_openai": ("azure.identity", 'pip install "turnwise[azure]"'),
    "anthropic": ("langchain_anthropic", 'pip install "turnwise[anthropic]"'),
    "ollama": ("langchain_ollama", 'pip install "turnwise[ollama]"'),
    "bedrock_converse": ("langchain_aws", "pip install langchain-aws"),
    "google_genai": ("langchain_google_genai", "pip install langchain-google-genai"),
    "mistralai": ("langchain_mistralai", "pip install langchain-mistralai"),
    "groq": ("langchain_groq", "pip install langchain-groq"),
}
"""The module that a provider needs beside `langchain`, and how it is installed."""
_UNTESTED: Final = frozenset({"bedrock_converse", "google_genai", "mistralai", "groq"})
"""Providers whose classes bring HTTP clients of their own."""
_OF_THE_SESSION: Final = {
    "timeout": ("connect", "pool"),
    "http_client_limits": ("max_connections", "max_keepalive_connections", "keepalive_expiry_seconds"),
}
"""What belongs to connections, which models of one HTTP session share."""
_OURS: Final = frozenset(
    {"api_key", "base_url", "cache", "callbacks", "disable_streaming", "max_retries", "metadata", "model", "name",
     "rate_limiter", "streaming", "tags", "timeout", "verbose"}
)  # fmt: skip
"""Arguments of LangChain's classes that the service sets itself."""


def installed(provider: str) -> str:
    """The provider. Raises `SettingsRefused`, which says what to install, where its package is missing."""
    if provider not in _NEEDED:
        return provider
    module, how = _NEEDED[provider]
    package = module.partition(".")[0]
    if not (find_spec(package) and find_spec(module)):
        raise SettingsRefused(f"needs {module}, which is not installed: {how}")
    if not find_spec("langchain"):
        raise SettingsRefused('needs langchain, which is not installed: pip install "turnwise[langchain]"')
    return provider


def _not_ours(options: dict[str, Any]) -> dict[str, Any]:
    for name in sorted(_OURS & options.keys()):
        raise SettingsRefused("is set by the service", name)
    return options


ProviderOptions = Annotated[dict[str, Any], AfterValidator(_not_ours)]


class ClientTimeout(Section):
    """Deadlines of the knowledge-flow client, in seconds. At the deadline the call fails."""

    connect: Seconds = 20
    """Seconds to open a connection."""
    read: Seconds = 60
    """Seconds without a byte of the answer. A search has 5 s at most in all, a file that is attached the time that its
    indexing takes."""


class ChatModelSettings(Section):
    """How a model is called."""

    base_url: HttpUrl | None = None
    """Endpoint, as its provider's clients want it: OpenAI's with the version path, Anthropic's and Ollama's without.
    OPENAI_BASE_URL overrides that of a model of OpenAI's providers. Without either: the provider's own."""
    further_urls: Annotated[tuple[HttpUrl, ...], Listed] = ()
    """Further endpoints of the same model, with the same key: each call goes to the one that has the fewest calls, and
    each has a circuit of its own."""
    api_key: SecretStr | None = None
    """API key of the endpoint; set through OPENAI_API_KEY for a model of OpenAI's providers. Without it, requests of
    these carry no key, and those of other providers the one that their own environment variable has."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    """Sampling temperature; 0 = the most likely tokens. Sent to another provider than `openai` only where it is set
    here: some models refuse it."""
    options: ProviderOptions = {}
    """Further arguments of the provider's class in LangChain, such as `thinking` or `reasoning`
    (docs/agents.md#which-model-answers); not for `openai`, and no place for a secret."""
    max_tokens: Positive | None = None
    """Tokens of an answer, those of reasoning included; there it is cut, with `finish_reason` `length`. None = as many
    as the endpoint lets. Only for `openai`: for another provider it is one of its `options`."""
    max_tokens_name: MaxTokensName | None = None
    """Name under which the endpoint takes `max_tokens`; none = `max_completion_tokens` for api.openai.com, else
    `max_tokens`. Only for `openai`."""
    max_retries: Annotated[int, Field(ge=0, le=10)] = 2
    """Further attempts before the first token, after random waits of up to 0.25 s, doubling to 1 s; 0 = none. None
    begins later than 10 s after the first, nor after `deadlines.first_token_s`."""
    timeout: ModelTimeout = ModelTimeout()
    http_client_limits: HttpClientLimits = HttpClientLimits()


class ChatModel(Section):
    """A model, and whose it is."""

    provider: Annotated[Provider, AfterValidator(installed)] = "openai"
    """Whose protocol the endpoint speaks. `openai` is every endpoint that is compatible with OpenAI's chat completions;
    the others need packages of their own (docs/agents.md#which-model-answers). The last four are handed to LangChain
    untested."""
    name: Text
    """Model name sent to the endpoint; OPENAI_MODEL overrides that of a model of OpenAI's providers."""
    settings: ChatModelSettings = ChatModelSettings()

    @model_validator(mode="after")
    def _options_have_an_effect(self) -> "ChatModel":
        if self.provider == "openai" and self.settings.options:
            raise SettingsRefused("has no effect with the provider openai", "settings", "options")
        return self

    @property
    def endpoints(self) -> tuple["ChatModel", ...]:
        """The model at each of its endpoints."""
        how = self.settings
        if not how.further_urls:
            return (self,)
        urls = dict.fromkeys((*([how.base_url] if how.base_url else []), *how.further_urls))
        changed = ({"base_url": url, "further_urls": ()} for url in urls)
        return tuple(self.model_copy(update={"settings": how.model_copy(update=change)}) for change in changed)


class DefaultChatModel(ChatModel):
    """The model of agents and turns that name no other."""

    title: str = ""
    """Label in the chat page; none = the name."""
    description: str = ""
    """What it is good for, as the chat page says beside the label."""
    vision: bool = False
    """Whether it takes images: a question with images to a model that does not is refused, with `model_without_vision`.
    """
    fallbacks: Annotated[tuple[Text, ...], Listed] = ()
    """Ids of `ai.chat_models` that are asked one after the other where the model is unavailable, limits its rate or is
    silent, before its first token only. Of `deadlines.first_token_s` each has half of what is left, the last one all of
    it."""

    @property
    def shown(self) -> tuple[str, str]:
        """Its label for people, and what it is good for."""
        return self.title or self.name, self.description

    def called_as(self, _default: ChatModel) -> ChatModel:
        """The model itself: it leaves nothing to another."""
        return self


class OfferedModelSettings(Section):
    """How a further model is called. What is left out is taken from `ai.default_chat_model`; of a model of another
    provider only `max_retries` is.

    Its connections have the timeouts and limits of `ai.default_chat_model`, and are shared by all models on one server.
    """

    ignored_keys: ClassVar[tuple[str, ...]] = ("timeout", "http_client_limits")

    base_url: HttpUrl | None = None
    """Endpoint; none = that of `ai.default_chat_model`."""
    further_urls: Annotated[tuple[HttpUrl, ...], Listed] | None = None
    """Further endpoints of the same model; none = those of `ai.default_chat_model`, but no others if `base_url` is set
    here."""
    api_key: SecretStr | None = None
    """API key of the endpoint; none = that of `ai.default_chat_model`, but no key if `base_url` or `further_urls` is
    set here."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """Sampling temperature; none = that of `ai.default_chat_model`."""
    max_tokens: Positive | None = None
    """Tokens of an answer, those of reasoning included; none = those of `ai.default_chat_model`."""
    max_tokens_name: MaxTokensName | None = None
    """Name under which the endpoint takes `max_tokens`; none = as for `ai.default_chat_model`, but by its address if
    `base_url` is set here."""
    max_retries: Annotated[int, Field(ge=0, le=10)] | None = None
    """Further attempts before the first token; none = those of `ai.default_chat_model`."""
    options: ProviderOptions | None = None
    """Further arguments of the provider's class in LangChain; none = those of `ai.default_chat_model`."""


class OfferedModel(Section):
    """A further model that agents and turns may choose."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$")]
    """Identifier in agents, asks and preferences."""
    title: str = ""
    """Label in the chat page; none = the id."""
    description: str = ""
    """What it is good for, as the chat page says beside the label."""
    vision: bool = False
    """Whether it takes images, as for `ai.default_chat_model`."""
    fallbacks: Annotated[tuple[Text, ...], Listed] = ()
    """Ids of models that are asked in its place, as for `ai.default_chat_model`; `default` is that one."""
    provider: Annotated[Provider, AfterValidator(installed)] | None = None
    """Whose protocol the endpoint speaks; none = that of `ai.default_chat_model`."""
    name: Text
    """Model name sent to the endpoint."""
    settings: OfferedModelSettings = OfferedModelSettings()

    @model_validator(mode="after")
    def _id_is_not_taken(self) -> "OfferedModel":
        if self.id == DEFAULT_MODEL:
            raise SettingsRefused("is the id of ai.default_chat_model", "id")
        return self

    @property
    def shown(self) -> tuple[str, str]:
        """Its label for people, and what it is good for."""
        return self.title or self.id, self.description

    def called_as(self, default: ChatModel) -> ChatModel:
        """The model with what it leaves to the default one."""
        own = self.settings.model_dump(exclude_none=True)
        if "base_url" in own or "further_urls" in own:
            own = {"base_url": None, "further_urls": (), "api_key": None, "max_tokens_name": None, **own}
        provider, shared = self.provider or default.provider, default.settings
        if provider != default.provider:
            # Its address, key and options are another's: a key must not go to who did not issue it.
            kept = ("max_retries", "timeout", "http_client_limits")
            shared = ChatModelSettings(**{name: getattr(shared, name) for name in kept})
        return ChatModel(provider=provider, name=self.name, settings=shared.model_copy(update=own))


class ModelPrice(Section):
    """The price of a model's tokens. A model without an entry costs nothing."""

    model: Text
    """Model name as it is sent to the endpoint."""
    input_per_million: Annotated[float, Field(ge=0)] = 0.0
    """Price of a million input tokens, in `ai.currency`."""
    cached_input_per_million: Annotated[float, Field(ge=0)] | None = None
    """Price of a million input tokens that the endpoint read from its cache; none = `input_per_million`."""
    output_per_million: Annotated[float, Field(ge=0)] = 0.0
    """Price of a million output tokens, in `ai.currency`."""


class Recursion(Section):
    """Bound of a graph's loop."""

    recursion_limit: Positive = 40
    """Steps of one run of the graph; above it the turn fails. An agent with tools answers with what it has."""


def _check_fallbacks(model_id: str, fallbacks: Collection[str], known: Mapping[str, bool], *path: str | int) -> None:
    """Raise `SettingsRefused` for a fallback that is none. `known`: the ids of all models, and which have vision."""
    seen = {model_id}
    for place, name in enumerate(fallbacks):
        if name in seen or name not in known:
            said = "is named already" if name in seen else "names a model that is not among chat_models"
            raise SettingsRefused(said, *path, "fallbacks", place)
        if known[model_id] and not known[name]:
            raise SettingsRefused(
                "names a model that takes no images, in place of one that does", *path, "fallbacks", place
            )
        seen.add(name)


class Ai(Section):
    """The agents, their models and the knowledge-flow service."""

    knowledge_flow_url: HttpUrl = "http://127.0.0.1:8111/knowledge-flow/v1"
    """Base URL of the knowledge-flow service."""
    timeout: ClientTimeout = ClientTimeout()
    restore_max_exchanges: Count = 20
    """Latest exchanges of a session that the agent sees; 0 = none."""
    max_concurrent_agents: Positive = 1024
    """Compiled graphs kept in memory; above it the least recently used one is dropped."""
    max_concurrent_sessions_per_user: Count = 0
    """Sessions a user may have; a further one gets 403. 0 = no limit."""
    max_attached_files_per_user: Count = 20
    """Attachments a user may have; a further one gets `attachment_limit_reached`. 0 = no uploads: they get
    `attachments_disabled`."""
    max_attached_file_size_mb: Positive = 50
    """Largest attachment in MiB; a larger one gets `attachment_too_large`, as does an image above 10. Knowledge flow's
    `processing.max_file_mb` should not be less."""
    attachments_dir: Text | None = None
    """Directory for files while they are uploaded, at most eight at a time, two of a user; none = the system's for
    temporary files (`TMPDIR`). It should not be on the disk of `persistence.spool_dir`, which turns wait for: where it
    is, the log of the start says so."""
    use_static_config_only: bool = True
    """Whether agents come from this file only. If not, agents may also be created over REST."""
    max_made_agents: Count = 100
    """Agents that may be created over REST, by all users together; a further one is refused with 400. 0 = none."""
    agent_editor_roles: Annotated[tuple[Text, ...], Listed] = ("admin",)
    """Roles that may create, change and delete agents over REST. Without authentication everybody may."""
    default_chat_model: DefaultChatModel
    chat_models: Annotated[tuple[OfferedModel, ...], Listed] = ()
    default_language_model: ChatModel | None = None
    """Model that writes the title of a session after its first answer; none = the first question is the title. Its
    connections are those of `ai.default_chat_model`: of its timeouts and limits only `timeout.read` and `timeout.write`
    count; the log of the start names others that differ."""
    prices: Annotated[tuple[ModelPrice, ...], Listed] = ()
    """What tokens cost. A model without an entry costs nothing."""
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "USD"
    """Currency of the prices (ISO 4217)."""
    recursion: Recursion = Recursion()
    graph_connections: Positive = 8
    """Connections to Postgres for the state of hosted graphs, and for runs that wait for a person."""
    agents: Annotated[tuple[AgentSettings, ...], Listed] = ()
    agents_path: Text = "./agents"
    """Directory, relative to the working directory, from which agent modules and graphs are imported too; it need not
    exist."""
    langgraph_json: Text | None = None
    """A `langgraph.json`, relative to the working directory: each of its `graphs` becomes an agent of that name. Its
    `env` is set for the graphs alone, where the environment has no such variable; directories among its
    `dependencies` are imported from, packages must be installed. Its other keys are ignored. none = no such file."""

    @property
    def called_models(self) -> tuple[ChatModel, ...]:
        """Every model that is called, each with all its settings."""
        further = (model.called_as(self.default_chat_model) for model in self.chat_models)
        titles = () if self.default_language_model is None else (self.default_language_model,)
        return (self.default_chat_model, *further, *titles)

    @model_validator(mode="after")
    def _graphs_become_agents(self) -> "Ai":
        if self.langgraph_json is not None:
            listed = read_langgraph_json(Path(self.langgraph_json))
            given = [agent for agent in self.agents if agent.graph_base is None]  # validated again, it has them already
            hosted = [AgentSettings.hosted(one.name, one.spec, listed.base, one.description) for one in listed.graphs]
            object.__setattr__(self, "agents", (*given, *hosted))
        return self

    @property
    def models_in_use(self) -> set[str]:
        """Ids of the models that turns may have."""
        known = {DEFAULT_MODEL, *(model.id for model in self.chat_models)}
        if not self.use_static_config_only or any(ANY_MODEL in agent.further_models for agent in self.agents):
            return known
        return {name for agent in self.agents for name in (agent.model, *agent.further_models)}

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

    @model_validator(mode="after")
    def _fallbacks_are_there(self) -> "Ai":
        known = {
            DEFAULT_MODEL: self.default_chat_model.vision,
            **{model.id: model.vision for model in self.chat_models},
        }
        _check_fallbacks(DEFAULT_MODEL, self.default_chat_model.fallbacks, known, "default_chat_model")
        for place, model in enumerate(self.chat_models):
            _check_fallbacks(model.id, model.fallbacks, known, "chat_models", place)
        return self


class McpServer(Section):
    """A tool server (Model Context Protocol)."""

    ignored_keys: ClassVar[tuple[str, ...]] = ("sse_read_timeout", "auth_mode", "name", "description")

    id: Text
    """Identifier in agents, logs and metrics."""
    enabled: bool = True
    """Whether agents may use it."""
    transport: Literal["streamable_http", "stdio"] = "streamable_http"
    """`streamable_http` = a server at `url`, `stdio` = a program that the service starts; others are refused."""
    url: HttpUrl | None = None
    """URL of its endpoint (`streamable_http`)."""
    command: Text | None = None
    """Program to start (`stdio`), by its path or by a name on PATH. It starts at the first question that needs it, ends
    with the service, and is started again when it has ended, at the earliest 0.5 s later, doubling to 30 s."""
    args: Annotated[tuple[str, ...], Listed] = ()
    """Arguments of the program."""
    env: dict[Text, str] = Field(default_factory=dict)
    """Variables of the program, beside HOME, LOGNAME, PATH, SHELL, TERM and USER: it gets no other of the service."""
    env_from: Annotated[tuple[Text, ...], Listed] = ()
    """Names of variables of the service that the program gets as well, such as a key. A start without one of them is
    refused. Their values, and those of `env`, are hidden in the log, which has what it writes to stderr (`debug`)."""
    cwd: Text | None = None
    """Directory in which the program runs; none = the service's."""
    forward_token: bool = False
    """Whether requests carry the token of the user who asked (`streamable_http`). The tools are listed with the token
    of the first one."""
    approved_tools: Annotated[tuple[Text, ...], Listed] = ()
    """Tools that run without asking the user, although they are not declared read-only."""
    tools_to_approve: Annotated[tuple[Text, ...], Listed] = ()
    """Tools that run only after the user has agreed, although they are declared read-only; `*` = all."""

    @model_validator(mode="after")
    def _is_a_url_or_a_program(self) -> "McpServer":
        if self.transport == "streamable_http":
            if self.url is None:
                raise SettingsRefused("is required where transport is streamable_http", "url")
            for key in ("command", "args", "env", "env_from", "cwd"):
                if getattr(self, key):
                    raise SettingsRefused("needs transport: stdio", key)
            return self
        if self.command is None:
            raise SettingsRefused("is required where transport is stdio", "command")
        for key in ("url", "forward_token"):
            if getattr(self, key):
                raise SettingsRefused("needs transport: streamable_http", key)
        if not all(name in os.environ for name in self.env_from):
            raise SettingsRefused("names a variable that is not set", "env_from")
        if any("\0" in text for text in (self.command, *self.args, *self.env, *self.env.values())):
            raise SettingsRefused("must not hold NUL", "command")
        return self

    @model_validator(mode="after")
    def _approval_is_one_or_the_other(self) -> "McpServer":
        if set(self.approved_tools) & set(self.tools_to_approve):
            raise SettingsRefused("names a tool that is also among approved_tools", "tools_to_approve")
        return self

    def needs_approval(self, tool: str, *, read_only: bool) -> bool:
        """Whether a tool may run only after the user has agreed; `read_only` is what it declares about itself."""
        if tool in self.approved_tools:
            return False
        return not read_only or tool in self.tools_to_approve or "*" in self.tools_to_approve


class Mcp(Section):
    """Tool servers that agents may use."""

    servers: Annotated[tuple[McpServer, ...], Listed] = ()
    discover_s: Seconds = 5
    """Seconds to connect to a server and list its tools; then the turn goes on without them."""
    call_s: Seconds = 20
    """Seconds for one call of a tool; then the model is given an error as its result."""
    tools_ttl_s: Seconds = 300
    """Seconds after which a server's tools are listed again, in the background."""
    max_result_chars: Positive = 20_000
    """Characters of a tool's result that the model is given; the rest is cut off."""

    @model_validator(mode="after")
    def _servers_are_unique(self) -> "Mcp":
        refuse_twice([server.id for server in self.servers], "id", "servers")
        return self


class Storage(Section):
    """Where sessions and their history are stored."""

    # Only knowledge flow speaks to OpenSearch; the tables have fixed names.
    ignored_keys: ClassVar[tuple[str, ...]] = ("*_store", "opensearch")

    postgres: Postgres


class PersistenceSettings(Section):
    """How a finished turn reaches Postgres."""

    ack: Literal["spool", "db", "none"] = "spool"
    """What `final` waits for: `spool` = the local disk, `db` = Postgres, `none` = nothing, so a crash may lose
    turns."""
    replicas: Literal["single", "many"] = "single"
    """`many` if other instances use the same database; `ack` is then `db` unless it is set to `spool`, where a session
    whose instance has died waits for the spool of that instance. With `single` a second instance ends with exit code
    3."""
    spool_dir: Text = ".turnwise/spool"
    """Directory of the spool, used by one process only, on a volume that outlives it."""
    max_records: Positive = 20_000
    """Finished turns that may wait for Postgres; above it new turns get `storage_full`."""
    max_bytes_mb: Positive = 512
    """MiB of finished turns that may wait for Postgres; above it new turns get `storage_full`."""
    batch_max_records: Annotated[int, Field(ge=1, le=64)] = 64
    """Turns written in one transaction; the rest waits for the next one."""
    batch_linger_ms: Count = 200
    """Milliseconds that the first turn of a batch waits for others; 0 = none. With `ack: db` at most 5."""

    @model_validator(mode="before")
    @classmethod
    def _many_wait_for_postgres(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("replicas") == "many":
            return {"ack": "db", **values}
        return values

    @model_validator(mode="after")
    def _promises_are_kept(self) -> "PersistenceSettings":
        """Refuse several instances without a promise: the next one would not know what was answered."""
        if self.replicas == "many" and self.ack == "none":
            raise SettingsRefused("replicas: many needs ack: db or spool", "ack")
        return self


class RedisSettings(Section):
    """Redis 7 or Valkey, of which instances use publish and subscribe alone: nothing is kept there."""

    host: Hosts
    """Host name or address; with `sentinel_set` those of the Sentinels, separated by commas."""
    port: Port = 6379
    """TCP port; with `sentinel_set` that of each Sentinel, mostly 26379."""
    username: Text | None = None
    """User of the access control list; none = the default user. It needs `+@connection +publish +subscribe
    +unsubscribe` and the channels `&PREFIX:fleet*`."""
    password: SecretStr | None = None
    """Password of the user; set through TURNWISE_REDIS_PASSWORD."""
    tls: bool = False
    """Whether connections are encrypted, those to Sentinels too. The certificate must be that of the host."""
    ca_file: Text | None = None
    """File of the certificates by which that one is judged; none = those of the machine."""
    sentinel_set: Text | None = None
    """Name under which Sentinels know the primary, such as `mymaster`; none = `host` is the server."""
    sentinel_username: Text | None = None
    """User at the Sentinels; none = the default user."""
    sentinel_password: SecretStr | None = None
    """Password at the Sentinels; set through TURNWISE_REDIS_SENTINEL_PASSWORD."""
    prefix: Text = "turnwise"
    """Begin of the channels' names: another one for each database that shares the server."""

    @model_validator(mode="after")
    def _one_server_or_sentinels(self) -> "RedisSettings":
        if self.sentinel_set is None and "," in self.host:
            raise SettingsRefused("must be one host, or sentinel_set be set", "host")
        return self

    @model_validator(mode="after")
    def _certificates_need_tls(self) -> "RedisSettings":
        """Who names a certificate believes in TLS."""
        if self.ca_file is not None and not self.tls:
            raise SettingsRefused("needs tls: true", "ca_file")
        for name in ("sentinel_username", "sentinel_password"):
            if getattr(self, name) is not None and self.sentinel_set is None:
                raise SettingsRefused("needs sentinel_set", name)
        return self


class FleetSettings(Section):
    """How the instances of `persistence.replicas: many` reach one another."""

    url: HttpUrl | None = None
    """Where the other instances reach this one, e.g. `http://10.0.0.5:8000`; none = its own address, or where it
    listens on all of them that by which it reaches Postgres. It must not lead to a balancer."""
    bus: Literal["postgres", "redis"] = "postgres"
    """What carries the short messages of one instance to others: `postgres` is enough for 4 instances and 200 messages
    a second; `redis` needs `pip install "turnwise[redis]"`. While Redis is away Postgres carries them."""
    redis: RedisSettings | None = None

    @model_validator(mode="after")
    def _the_bus_is_there(self) -> "FleetSettings":
        if (self.bus == "redis") != (self.redis is not None):
            what = "is needed for bus: redis" if self.redis is None else "is set, and bus is not redis"
            raise SettingsRefused(what, "redis")
        if self.redis is not None and not find_spec("redis"):
            raise SettingsRefused('needs redis, which is not installed: pip install "turnwise[redis]"', "bus")
        return self


class PerUser(Section):
    """Limits of one user, over all instances together (`persistence.replicas: many`: within a fifth); 0 = no limit."""

    sockets: Count = 0
    """Open sockets and event streams. A further socket closes the oldest with 4409; a further stream gets 429. 0 = no
    limit."""
    turns: Count = 0
    """Turns in progress; a further ask gets `too_many_turns`. 0 = no limit."""
    asks_per_min: Count = 0
    """Average asks per minute; above it asks get `rate_limited`. 0 = no limit."""
    burst: Count = 0
    """Asks that may arrive at once within that rate; at least 1 where there is one."""

    @model_validator(mode="after")
    def _rate_has_a_burst(self) -> "PerUser":
        if self.asks_per_min and not self.burst:
            raise SettingsRefused("must be at least 1 where asks_per_min is set", "burst")
        return self


class PerAddress(Section):
    """Limits of one client address; 0 = no limit."""

    sockets: Count = 0
    """Open sockets and event streams; further ones get 429. 0 = no limit."""


class Limits(Section):
    """Admission of sockets and turns; 0 = no limit."""

    max_sockets: Count = 6000
    """Open sockets and event streams; further ones get 503. 0 = no limit."""
    max_turns: Count = 2000
    """Turns in progress; further asks wait in the queue. 0 = no limit."""
    model_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Part of `max_turns`, and of `queue_length`, that turns of one model may hold where agents may use several: a
    model that stalls leaves room for the others. Further asks for it wait in the queue. 1 = no bound of its own."""
    queue_length: Count = 100
    """Asks that may wait for a turn; further ones get `overloaded`. 0 = no queue."""
    queue_deadline_s: Seconds = 2
    """Seconds that an ask may wait for a turn; then it gets `overloaded`."""
    per_user: PerUser = PerUser()
    per_address: PerAddress = PerAddress()
    max_message_chars: Positive = 32_000
    """Characters of a question; a longer one gets `message_too_long`."""
    max_frame_bytes: Positive = 262_144
    """Bytes of a WebSocket message after decompression; a larger one closes the socket with 1009."""


class Deadlines(Section):
    """Deadlines in seconds, measured on the monotonic clock."""

    first_token_s: Seconds = 30
    """Seconds from the call of the model to its first token; then the turn fails with `llm_timeout`."""
    inter_token_s: Seconds = 20
    """Seconds between two tokens; then the turn fails with `llm_timeout`."""
    turn_s: Seconds = 120
    """Seconds for a whole turn; then it fails with `turn_deadline`."""
    send_s: Seconds = 10
    """Seconds that a client may take to receive a frame; then its connection is cut. Its turn goes on."""
    idle_s: Seconds = 1800
    """Seconds that a socket may be open without an ask; then it is closed with 4408."""
    heartbeat_s: Seconds = 15
    """Seconds of silence after which a heartbeat is sent (native protocol)."""
    drain_s: Seconds = 25
    """Seconds that running turns may take after SIGTERM; then they are cancelled and stored as interrupted."""


class Server(Section):
    """The WebSocket server and the interpreter."""

    ws_per_message_deflate: bool = False
    """Whether frames are compressed, which costs 27 KB of memory for each idle socket."""
    gc_freeze: bool = True
    """Whether objects that exist after the start are excluded from garbage collection."""
    ping_interval_s: Seconds = 20
    """Seconds between two keepalive pings."""
    ping_timeout_s: Seconds = 20
    """Seconds to wait for a pong; then the connection is closed."""
    http_compression: Literal["none", "gzip", "zstd", "auto"] = "auto"
    """Encoding of REST answers of 1 KiB and more, if `Accept-Encoding` allows it; `auto` = zstd, else gzip. `none`
    where every client is on the same host or network: from 1 Gbit/s on compressing only costs."""


class HistorySettings(Section):
    """What is kept of conversations: in memory, and for how long."""

    cache_mb: Count = 64
    """MiB of recent history kept in memory, the least recently used dropped first; 0 = read from Postgres for each
    turn."""
    retention_days: Annotated[int, Field(ge=0, le=36_500)] = 0
    """Days without a turn after which a session is deleted with everything that belongs to it; 0 = kept until a user
    deletes it."""
    keep_thoughts: bool = False
    """Store what models say while they reason, as messages of the conversation. Off: it is streamed to those who follow
    the turn, and stored nowhere."""


class Doors(Section):
    """Further doors of the same agents, for clients that speak another protocol."""

    openai: bool = True
    """Whether OpenAI's API is served: `/v1/models`, `/v1/chat/completions`, `/v1/responses`."""
    agui: bool = True
    """Whether AG-UI is served: `/agui/{agent}`."""
    langgraph: bool = True
    """Whether LangGraph's Agent Server API is served: `/assistants`, `/threads`, `/runs`, `/store`."""
    mcp: bool = True
    """Whether the agents are tools of an MCP server: `/mcp`. It takes half a second and 20 MB more to start."""
    mcp_sessions_per_user: Count = 8
    """Sessions of one user's MCP clients; the next one ends the one that was not used for longest. In a session agents
    can ask their user in a form of the client's; a balancer must then send requests of one `Mcp-Session-Id` to one
    instance. 0 = no sessions: a question is the answer, and the next call replies. Clients of the protocol of
    2026-07-28 have none, and forms all the same."""
    mcp_session_idle_s: Seconds = 1800
    """Seconds after which a session of an MCP client that nobody uses ends; the client then begins another."""
    public_url: HttpUrl | None = None
    """Address at which people open the chat page, for the links in answers of other front ends; none = the address to
    which the request was sent."""
    background_s: Seconds = 3600
    """Seconds for a turn that a client runs in the background, in place of `deadlines.turn_s`."""


def _number(value: Any) -> Any:
    """What a variable says as a number; anything else is left to the check of the type."""
    if not isinstance(value, str):
        return value
    return int(value) if re.fullmatch(r"\d{1,9}", value) else float(value) if _DECIMAL.fullmatch(value) else value


def _is_true(value: Any) -> Any:
    """What a variable says as OpenTelemetry reads it: `true` in any case, all else is no."""
    return value.lower() == "true" if isinstance(value, str) else value


OTLP_PROTOCOL: Final = "http/protobuf"
Sampler = Literal[
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
]
"""The samplers of OTEL_TRACES_SAMPLER that need no server."""
_DECIMAL: Final = re.compile(r"\d{0,9}\.\d{1,9}")
_Whole = Annotated[int, Field(ge=1, le=10_000_000), BeforeValidator(_number)]


def pairs_of(text: str) -> dict[str, str]:
    """`key=value` with commas between, values percent-encoded, as OpenTelemetry writes headers and attributes. Raises
    `SettingsRefused`."""
    pairs: dict[str, str] = {}
    for entry in text.split(","):
        name, equals, value = entry.partition("=")
        if not entry.strip():
            continue
        if not equals or not name.strip():
            raise SettingsRefused("must be key=value, several of them with commas between")
        pairs[unquote(name.strip())] = unquote(value.strip())
    return pairs


def _header_pairs(value: SecretStr) -> SecretStr:
    for name, text in pairs_of(value.get_secret_value()).items():
        if not (_HEADER_NAME.fullmatch(name) and _HEADER_TEXT.fullmatch(text)):
            raise SettingsRefused("must be headers: a name as HTTP allows it, a value of visible ASCII")
    return value


def _attribute_pairs(value: str) -> str:
    pairs_of(value)
    return value


_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_HEADER_TEXT: Final = re.compile(r"[\x20-\x7e]{0,8192}")


class TracingSettings(Section):
    """Turns as traces of OpenTelemetry, sent to an OTLP endpoint when they have ended. Without an endpoint nothing is
    sent, and nothing of it is loaded. The standard variables of OpenTelemetry set what they name."""

    endpoint: HttpUrl | None = None
    """Base address of the OTLP/HTTP endpoint, to whose path `/v1/traces` is added; none = no traces."""
    traces_endpoint: HttpUrl | None = None
    """Whole address for traces, in place of the one that `endpoint` gives."""
    protocol: Text = OTLP_PROTOCOL
    """Protocol of the endpoint: `http/protobuf`, and no other; without an endpoint it does not matter."""
    headers: Annotated[SecretStr, AfterValidator(_header_pairs)] | None = None
    """Headers of each request, as `name=value` with commas between, values percent-encoded; usually credentials."""
    compression: Literal["none", "gzip"] = "none"
    """Encoding of what is sent."""
    timeout_ms: _Whole = 10_000
    """Milliseconds for one request, its answer included."""
    exporter: Literal["otlp", "none"] = "otlp"
    """`none` = no traces, whatever else is set."""
    disabled: Annotated[bool, BeforeValidator(_is_true)] = False
    """No traces, whatever else is set."""
    service_name: Text = "turnwise-agentic"
    """Name of the service in traces (`service.name`)."""
    resource_attributes: Annotated[str, AfterValidator(_attribute_pairs)] = ""
    """Further attributes of the service, such as `deployment.environment.name=test`, as `headers` are written."""
    sampler: Sampler = "parentbased_always_on"
    """Which turns become traces: all, none, or a share; `parentbased_` = as the `traceparent` of the ask says, where it
    came with one. What goes out with the turn's calls says the same."""
    sampler_arg: Annotated[float, Field(ge=0, le=1), BeforeValidator(_number)] = 1.0
    """Share of traces that `traceidratio` takes, 0 to 1."""
    errors: bool = True
    """Whether failed turns become traces whatever the sampler says."""
    slow_ms: Annotated[float, Field(ge=0)] = 0
    """Milliseconds from which on a turn becomes a trace whatever the sampler says; 0 = none for its length."""
    content: bool = False
    """Whether the question and the answer are in the trace: everyone who reads traces then sees what people write and
    read."""
    user_id: Literal["hashed", "plain", "none"] = "hashed"
    """How users are named: by a hash of their id, which anyone who knows the id can compute, by the id itself, or not
    at all."""
    max_queue_size: _Whole = 2048
    """Spans that wait to be sent; those of further turns are dropped and counted. A turn has about a dozen."""
    max_export_batch_size: _Whole = 512
    """Spans in one request; a turn's are never parted."""
    schedule_delay_ms: _Whole = 5_000
    """Milliseconds that spans wait for others, where they are less than a batch."""
    callbacks: Annotated[tuple[Text, ...], Listed] = ()
    """Callback handlers of LangChain, each `package.module:Class`, made without arguments at the start; they hear of
    every step of every agent, independent of the endpoint. Agents then run through LangChain's engine and callbacks,
    token by token, which costs several times the CPU."""

    @property
    def url(self) -> str | None:
        """Where traces go; None where there are none."""
        if self.disabled or self.exporter == "none":
            return None
        if self.traces_endpoint is not None:
            return self.traces_endpoint
        if self.endpoint is None:
            return None
        base = urlsplit(self.endpoint)
        return urlunsplit(base._replace(path=f"{base.path.rstrip('/')}/v1/traces", fragment=""))

    @model_validator(mode="after")
    def _sent_as_asked(self) -> "TracingSettings":
        if self.url is not None and self.protocol != OTLP_PROTOCOL:
            raise SettingsRefused(f"must be {OTLP_PROTOCOL}, which is all that is sent here", "protocol")
        return self


class AgenticSettings(ServiceSettings):
    """The whole configuration of the agentic service."""

    env_overrides: ClassVar[dict[str, tuple[str, ...]]] = {
        "FRED_POSTGRES_PASSWORD": ("storage.postgres.password",),
        "TURNWISE_KEYS_PASSWORD": ("security.api_keys.postgres.password",),
        "OPENAI_API_KEY": ("ai.default_chat_model.settings.api_key", "ai.default_language_model.settings.api_key"),
        "OPENAI_MODEL": ("ai.default_chat_model.name", "ai.default_language_model.name"),
        "TURNWISE_LANGGRAPH_JSON": ("ai.langgraph_json",),
        "TURNWISE_REDIS_PASSWORD": ("fleet.redis.password",),
        "TURNWISE_REDIS_SENTINEL_PASSWORD": ("fleet.redis.sentinel_password",),
        "TURNWISE_SPOOL_DIR": ("persistence.spool_dir",),
        "OPENAI_BASE_URL": ("ai.default_chat_model.settings.base_url", "ai.default_language_model.settings.base_url"),
        "OTEL_SDK_DISABLED": ("tracing.disabled",),
        "OTEL_TRACES_EXPORTER": ("tracing.exporter",),
        "OTEL_SERVICE_NAME": ("tracing.service_name",),
        "OTEL_RESOURCE_ATTRIBUTES": ("tracing.resource_attributes",),
        "OTEL_TRACES_SAMPLER": ("tracing.sampler",),
        "OTEL_TRACES_SAMPLER_ARG": ("tracing.sampler_arg",),
        "OTEL_BSP_MAX_QUEUE_SIZE": ("tracing.max_queue_size",),
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": ("tracing.max_export_batch_size",),
        "OTEL_BSP_SCHEDULE_DELAY": ("tracing.schedule_delay_ms",),
        "OTEL_EXPORTER_OTLP_ENDPOINT": ("tracing.endpoint",),
        "OTEL_EXPORTER_OTLP_PROTOCOL": ("tracing.protocol",),
        "OTEL_EXPORTER_OTLP_HEADERS": ("tracing.headers",),
        "OTEL_EXPORTER_OTLP_COMPRESSION": ("tracing.compression",),
        "OTEL_EXPORTER_OTLP_TIMEOUT": ("tracing.timeout_ms",),
        # Later ones win: those for traces alone.
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": ("tracing.traces_endpoint",),
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": ("tracing.protocol",),
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": ("tracing.headers",),
        "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": ("tracing.compression",),
        "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": ("tracing.timeout_ms",),
    }

    renamed_keys: ClassVar[dict[str, str]] = {
        "ai.agentic_restore_max_exchanges": "ai.restore_max_exchanges",
        "frontend_settings.properties.siteDisplayName": "branding.name",
        "ai.default_chat_model.settings.request_timeout": "ai.default_chat_model.settings.timeout.read",
        "ai.default_language_model.settings.request_timeout": "ai.default_language_model.settings.timeout.read",
    }

    ignored_keys: ClassVar[tuple[str, ...]] = ("scheduler",)

    env_where: ClassVar[dict[str, tuple[str, tuple[Any, ...]]]] = {
        f"ai.{model}.{key}": (f"ai.{model}.provider", _OPENAI)
        for model in ("default_chat_model", "default_language_model")
        for key in ("name", "settings.api_key", "settings.base_url")
    }

    app: AgenticApp = AgenticApp()
    security: AgenticSecurity = AgenticSecurity()
    ai: Ai
    mcp: Mcp = Mcp()
    storage: Storage
    persistence: PersistenceSettings = PersistenceSettings()
    fleet: FleetSettings = FleetSettings()
    limits: Limits = Limits()
    deadlines: Deadlines = Deadlines()
    server: Server = Server()
    history: HistorySettings = HistorySettings()
    doors: Doors = Doors()
    tracing: TracingSettings = TracingSettings()
    branding: Branding = Branding()
    frontend_settings: FrontendSettings = FrontendSettings()

    def of_worker(self, number: int) -> "AgenticSettings":
        """The settings of one of several workers, from 0: with a metrics port and a spool of its own. The first one has
        the spool of a service without others."""
        kept = self.persistence
        if number:
            directory = Path(kept.spool_dir) / f"worker-{number}"
            kept = kept.model_copy(update={"spool_dir": str(directory)})
        return self.model_copy(update={"app": self.app.of_worker(number), "persistence": kept})

    def without_effect(self) -> Iterator[tuple[str | int, ...]]:
        """See `RootSection`."""
        ai = self.ai
        if (titles := ai.default_language_model) is not None and titles.provider == "openai":
            for part, names in _OF_THE_SESSION.items():
                own, shared = (getattr(model.settings, part) for model in (titles, ai.default_chat_model))
                differing = (name for name in names if getattr(own, name) != getattr(shared, name))
                yield from (("ai", "default_language_model", "settings", part, name) for name in differing)
        for where, model in (("default_chat_model", ai.default_chat_model), ("default_language_model", titles)):
            if model is not None and model.provider in _UNTESTED:
                for part, names in _OF_THE_SESSION.items():
                    yield from (("ai", where, "settings", part, name) for name in names)
                yield ("ai", where, "settings", "timeout", "write")
        for place, agent in enumerate(ai.agents):
            if agent.chat_options.deep_search_delegate and (agent.is_own or agent.graph is not None):
                yield ("ai", "agents", place, "chat_options", "deep_search_delegate")

    @model_validator(mode="before")
    @classmethod
    def _workers_are_instances(cls, values: Any) -> Any:
        """Of several workers each is an instance of its own, whatever else there is."""
        app, kept = (values.get(name) for name in ("app", "persistence")) if isinstance(values, dict) else (None, None)
        if isinstance(app, dict) and app.get("workers", 1) != 1 and isinstance(kept, dict | None):
            return {**values, "persistence": {"replicas": "many", **(kept or {})}}
        return values

    @model_validator(mode="after")
    def _workers_know_of_each_other(self) -> "AgenticSettings":
        if self.app.workers > 1 and self.persistence.replicas != "many":
            raise SettingsRefused("app.workers above 1 needs replicas: many", "persistence", "replicas")
        return self

    @model_validator(mode="after")
    def _a_bus_has_somewhere_to_go(self) -> "AgenticSettings":
        if self.fleet.bus != "postgres" and self.persistence.replicas != "many":
            raise SettingsRefused("redis needs persistence.replicas: many", "fleet", "bus")
        return self

    @model_validator(mode="after")
    def _tool_servers_are_there(self) -> "AgenticSettings":
        known = {server.id for server in self.mcp.servers}
        for place, agent in enumerate(self.ai.agents):
            for index, used in enumerate(agent.tuning.mcp_servers):
                if used.id not in known:
                    where = ("ai", "agents", place, "tuning", "mcp_servers", index, "id")
                    raise SettingsRefused("is the id of no entry of mcp.servers", *where)
        return self

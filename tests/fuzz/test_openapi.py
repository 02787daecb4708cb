"""docs/trust.md#G2: both services against their own OpenAPI documents: what fits is answered as told, the rest is
refused."""

import contextlib
import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
import yaml
from fastapi import Depends, FastAPI
from fastapi.security import HTTPBearer
from hypothesis import HealthCheck, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import APIOperation, BaseSchema, Case, GenerationMode
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from tests.fuzz.budget import WITHIN_LIMIT, long, seeds
from tests.support.agentic import CLEAN
from tests.support.mock_llm import MockModel
from tests.support.patience import PATIENCE_S
from tests.support.people import SECRET, headers_of
from tests.support.ports import free_port
from tests.support.postgres import new_database
from tests.support.processes import ForkedModule
from tests.support.standing import standing_service
from turnwise.postgres import EmbeddedPostgres

EXAMPLES = 60 if long() else 24
CASES = 800
"""Of each service and seed at least; the agentic one has some 1,200, knowledge flow 870."""
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
    ignored_auth,
]
OPENAI = "/v1/"
AGUI = "/agui/"
LANGGRAPH = ("/assistants", "/threads", "/runs", "/store/", "/ok", "/info")
ENDLESS = ("/threads/{thread_id}/stream", "/threads/{thread_id}/stream/events")
"""Streams of a thread that is there."""
AWAY = {"kf_unavailable"}
"""Failures of others that may be told with a 5xx."""
QUICK = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)


@contextmanager
def knowledge_flow(postgres: EmbeddedPostgres, mock_llm: MockModel, directory: Path) -> Iterator[str]:
    """Knowledge flow as a process with authentication; where it is."""
    port = free_port()
    model = {"provider": "openai", "name": "mock", "settings": {"base_url": mock_llm.base_url}}
    with new_database(postgres) as database:
        sections = {
            "app": {"port": port, "metrics_enabled": False, "kpi_log_summary_interval_sec": 0},
            "security": {"user": {"enabled": True}, "hs256_secret_env": "TEST_SECRET"},
            "embedding_model": model,
            "storage": {"postgres": database.settings()},
            "deadlines": {"drain_s": 5},
        }
        file = directory / "knowledge-flow.yaml"
        file.write_text(yaml.safe_dump(sections))
        environment = {"CONFIG_FILE": str(file), "TEST_SECRET": SECRET, **CLEAN}
        with ForkedModule("knowledge_flow_backend", env=environment) as process:
            process.wait_for_http(f"http://127.0.0.1:{port}/knowledge-flow/v1/ready")
            yield f"http://127.0.0.1:{port}"


@contextmanager
def agentic(postgres: EmbeddedPostgres, mock_llm: MockModel, directory: Path) -> Iterator[str]:
    """The agentic service; where it is."""
    with standing_service(postgres, mock_llm, directory, limits={"max_message_chars": 2000}) as running:
        yield f"http://127.0.0.1:{running.port}"


def known_ids(url: str) -> dict[str, str]:
    """Ids that exist, so that not every answer is `not found`."""
    made = requests.post(
        f"{url}/agentic/v1/chatbot/session", json={"title": "T"}, headers=headers_of("ann"), timeout=PATIENCE_S
    )
    if made.status_code != 200:
        return {}
    session_id = made.json()["id"]
    return {"session_id": session_id, "thread_id": session_id}


def operations_of(schema: BaseSchema) -> list[APIOperation]:
    """Its operations, whose cases have no token of their own.

    Ours would replace it, and what the check of negative data calls wrong (no header, another scheme) would never have
    been sent. Whether a token is asked for at all is what `ignored_auth` checks.
    """
    schema.config.generation.update(with_security_parameters=False)
    return [found.ok() for found in schema.get_all_operations()]


def explore(operation: APIOperation, ids: dict[str, str], number: int, faults: dict[str, str]) -> int:
    """Send examples of both modes, to any id and to known ones; what breaks a check is entered under the operation.

    Returns how many were sent.
    """
    sent = 0
    ann = headers_of("ann")
    named = {one.name for one in operation.path_parameters} if operation.full_path not in ENDLESS else set()
    mine = {name: value for name, value in ids.items() if name in named}
    for mode, known in itertools.product(MODES, ({}, mine) if mine else ({},)):

        @seed(number)
        @QUICK
        @given(case=operation.as_strategy(generation_mode=mode, path_parameters=known or None))
        def holds(case: Case) -> None:
            nonlocal sent
            sent += 1
            answer = case.call(headers=ann, timeout=PATIENCE_S)
            # It is told which headers are ours: `ignored_auth` asks again without them, and with a wrong token.
            case.validate_response(answer, checks=CHECKS, headers=ann, transport_kwargs={"timeout": PATIENCE_S})
            expect_our_shape(operation.path, answer.status_code, answer.content)

        # A route without parameters has nothing that could be wrong.
        with contextlib.suppress(Unsatisfiable):
            try:
                holds()
            except (Failure, FailureGroup, AssertionError) as failure:
                faults[f"{operation.label} {mode.value}"] = told(failure)
    return sent


def expect_our_shape(path: str, status: int, body: bytes) -> None:
    """A refusal is `{"detail": …}`, at the door of OpenAI's API `{"error": …}`, and tells nothing of our insides."""
    if status < 400:
        return
    detail = json.loads(body)["error" if path.startswith(OPENAI) else "detail"]
    assert isinstance(detail, str) or {"code", "message"} <= set(detail)
    # There is no knowledge flow behind the agentic service here, and no model behind knowledge flow that reranks.
    assert status < 500 or detail["code"] in AWAY, body
    for word in (b"Traceback", b"psycopg", b"sqlalchemy", b"pydantic", b"/site-packages/"):
        assert word not in body


def told(failure: BaseException) -> str:
    """What is wrong, with how to see it again."""
    if isinstance(failure, FailureGroup):
        return "\n".join(str(one) for one in failure.exceptions)
    return f"{type(failure).__name__}: {failure}"


@WITHIN_LIMIT
@pytest.mark.parametrize(("start", "path"), [(agentic, "/agentic/v1"), (knowledge_flow, "/knowledge-flow/v1")])
def test_the_service_is_what_its_document_says(
    start: Any, path: str, postgres: EmbeddedPostgres, mock_llm: MockModel, tmp_path: Path
) -> None:
    doors = {OPENAI, AGUI, *LANGGRAPH} if start is agentic else set()
    with start(postgres, mock_llm, tmp_path) as url:
        schema: BaseSchema = schemathesis.openapi.from_url(f"{url}/openapi.json", headers=headers_of("ann"))
        operations = operations_of(schema)
        assert len(operations) > 10
        assert sum(bool(operation.definition.raw.get("security")) for operation in operations) > 10
        beside = [one.full_path for one in operations if not one.full_path.startswith(path)]
        assert {door for door in doors for one in beside if one.startswith(door)} == doors
        assert all(one.startswith(tuple(doors)) for one in beside), beside
        for number in seeds(path):
            faults: dict[str, str] = {}
            sent = sum(explore(operation, known_ids(url), number, faults) for operation in operations)
            assert sent >= CASES
            print(f"{path}: {sent} cases, {len(operations)} operations")
            assert faults == {}, "\n\n".join(f"{name}:\n{fault}" for name, fault in faults.items())
        health = requests.get(f"{url}{path}/healthz", timeout=PATIENCE_S)
        assert health.status_code == 200


def test_a_route_that_only_declares_that_it_wants_a_token_is_found() -> None:
    app = FastAPI()

    @app.get("/declared", dependencies=[Depends(HTTPBearer(auto_error=False))])
    def declared(number: int = 0) -> int:
        return number

    [operation] = operations_of(schemathesis.openapi.from_asgi("/openapi.json", app))
    faults: dict[str, str] = {}
    explore(operation, {}, 1, faults)
    assert "without authentication" in faults["GET /declared positive"]

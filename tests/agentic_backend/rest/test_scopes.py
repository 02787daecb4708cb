"""Every route of both services says which API keys it takes."""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.routing import Mount, Route, WebSocketRoute

from agentic_backend.app import AgenticService
from agentic_backend.rest import scopes as of_agentic
from agentic_backend.settings import AgenticSettings
from agentic_backend.surfaces.openai.errors import Unrouted
from backend_kit.auth import PUBLIC, KeyScope, RouteScopes
from backend_kit.http import Cost
from knowledge_flow_backend import scopes as of_knowledge_flow
from knowledge_flow_backend.app import KnowledgeFlowService
from knowledge_flow_backend.settings import KnowledgeFlowSettings

POSTGRES = {"host": "127.0.0.1", "port": 1, "database": "none", "username": "nobody"}
MODEL = {"name": "mock", "settings": {"base_url": "http://127.0.0.1:1/v1"}}
AGENTIC = {
    "app": {"port": 1, "metrics_port": 2},
    "security": {"user": {"enabled": True}, "hs256_secret": "a secret of at least thirty-two bytes"},
    "ai": {"default_chat_model": MODEL, "agents": [{"name": "Georges", "class_path": "agentic_backend.agent.plain"}]},
    "storage": {"postgres": POSTGRES},
    # With the routes that only several instances have.
    "persistence": {"ack": "db", "replicas": "many"},
}
KNOWLEDGE = {"security": AGENTIC["security"], "storage": {"postgres": POSTGRES}}
FILES = {"/web"}
"""What is mounted is the page's files, which are anybody's."""


def made(service: str) -> tuple[FastAPI, dict[str, Any], str]:
    """The application of a service that does not run, its table, and its base path."""
    if service == "agentic":
        settings = AgenticSettings.model_validate(AGENTIC)
        return AgenticService(settings).app, of_agentic.SCOPES, settings.app.base_url
    wanted = KnowledgeFlowSettings.model_validate(KNOWLEDGE)
    return KnowledgeFlowService(wanted).app, of_knowledge_flow.SCOPES, wanted.app.base_url


def rows_of(app: FastAPI, base: str) -> Iterator[str]:
    """The row that each route needs."""
    for route in app.routes:
        if isinstance(route, Mount):
            assert route.path in FILES, route.path
            continue
        if isinstance(route, Unrouted):
            continue  # it says that there is nothing
        assert isinstance(route, Route | WebSocketRoute)
        methods = {"WS"} if isinstance(route, WebSocketRoute) else set(route.methods or ()) - {"HEAD"}
        path = route.path.removeprefix(base) if route.path.startswith(f"{base}/") else f"/{route.path}"
        yield from (f"{method} {path}" for method in methods)


@pytest.mark.parametrize("service", ["agentic", "knowledge flow"])
def test_every_route_has_a_row_and_every_row_a_route(service: str) -> None:
    app, table, base = made(service)
    routes = set(rows_of(app, base))
    assert routes - set(table) == set(), "say which scope a key needs for it"
    assert set(table) - routes == set(), "no such route"


@pytest.mark.parametrize("table", [of_agentic, of_knowledge_flow])
def test_every_route_says_what_it_costs_and_only_who_asks_nobody_is_free(table: ModuleType) -> None:
    assert set(table.ROUTE_COSTS) == set(table.SCOPES)
    assert not {row for row, cost in table.ROUTE_COSTS.items() if cost is Cost.PAGE and table.SCOPES[row] is not PUBLIC}
    free = {row for row, cost in table.ROUTE_COSTS.items() if cost is Cost.FREE and not row.startswith("WS ")}
    # Their token is that of the instance: whoever has another is turned away before anything is done.
    assert free <= {"GET /fleet/turns", "GET /fleet/kpi/{name}"}, "what is free is bounded by nothing"


@pytest.mark.parametrize("service", ["agentic", "knowledge flow"])
def test_what_changes_something_takes_no_key_that_only_reads(service: str) -> None:
    _, table, base = made(service)
    rows = RouteScopes(table, base)
    reading = {KeyScope.READ, KeyScope.SEARCH}
    writes = [row for row in table if row.split()[0] in {"PUT", "DELETE"}]
    assert writes
    for row in writes:
        method, path = row.split()
        needs = rows.needs(method, base + path)
        assert needs is not PUBLIC
        assert isinstance(needs, frozenset)
        assert needs.isdisjoint(reading), row

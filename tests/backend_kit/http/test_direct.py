"""Routes whose endpoints are called as they are."""

import itertools
from typing import Annotated

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.routing import Match

from backend_kit.auth import Identity
from backend_kit.http import DirectRoute


async def identify(request: Request) -> Identity:
    uid = request.headers["x-user"]
    return Identity(uid, uid)


Caller = Annotated[Identity, Depends(identify)]
router = APIRouter(route_class=DirectRoute)


@router.post("/both/{place:path}")
async def both(place: str, request: Request, identity: Caller) -> Response:
    return Response(f"{place} {identity.uid} {(await request.body()).decode()}")


@router.get("/caller")
async def caller(identity: Caller) -> Response:
    return Response(identity.uid)


@router.get("/request")
async def asked(request: Request) -> Response:
    return Response(request.url.query)


@pytest.mark.parametrize(
    ("method", "path", "answer"),
    [("POST", "/both/a/b", "a/b ada body"), ("GET", "/caller", "ada"), ("GET", "/request?x=1", "x=1")],
)
async def test_an_endpoint_gets_what_it_names(method: str, path: str, answer: str) -> None:
    app = FastAPI()
    app.include_router(router)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        got = await client.request(
            method, path, content=b"body" if method == "POST" else None, headers={"x-user": "ada"}
        )
    assert (got.status_code, got.text) == (200, answer)


@pytest.mark.parametrize("root_path", ["", "/behind/a/proxy"])
@pytest.mark.parametrize("prefix", ["", "/api/v1"])
def test_a_route_that_begins_otherwise_is_passed_over_and_no_other(prefix: str, root_path: str) -> None:
    given = APIRouter(route_class=DirectRoute, prefix=prefix)
    for path in ("/one", "/one/{name}", "/one/{name}/end", "/rest/{path:path}"):
        given.add_api_route(path, caller, methods=["GET"])
    asked = [
        "/",
        "/one",
        "/one/",
        "/on",
        "/one/1",
        "/one/1/end",
        "/one/1/2/end",
        "/rest/",
        "/rest",
        "/rest/a/b",
        "/a/one",
    ]
    matched = 0
    for route, path, method in itertools.product(given.routes, asked, ("GET", "POST")):
        for before in {"", prefix, root_path, root_path + prefix}:
            scope = {"type": "http", "path": before + path, "root_path": root_path, "method": method, "headers": []}
            found, _ = route.matches(dict(scope))
            assert found == APIRoute.matches(route, dict(scope))[0], (route.path, scope)
            matched += found is not Match.NONE
    assert matched > 0

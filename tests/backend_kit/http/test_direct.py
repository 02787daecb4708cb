"""Routes whose endpoints are called as they are."""

from typing import Annotated

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Request, Response

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

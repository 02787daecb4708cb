"""Model servers: there or not, with this key or not, with this model or not; never asked a question."""

import pytest
from aiohttp import web
from pydantic import SecretStr
from yarl import URL

from backend_kit.doctor.checks import Check, Diagnosis, Health, examine
from backend_kit.doctor.models import ModelKeys, ModelListing, look_at_address, look_at_models
from tests.backend_kit.client.server import Handler, serving
from tests.backend_kit.doctor.silence import silent_port
from tests.support.mock_llm import MockModel
from tests.support.ports import free_port

pytestmark = pytest.mark.servers

KEYS = ModelKeys("base_url", "api_key", "name")
SECRET = "sk-of-nobody-else"


async def found(handler: Handler, *names: str, key: str = SECRET) -> tuple[Health, str, str]:
    async with serving(handler) as url:
        server = ModelListing.of_openai(URL(url) / "v1", SecretStr(key))
        (one,) = await look_at_models("model", server, names or ["m"], KEYS)
    assert SECRET not in str(one)
    return one.state, one.figure, one.remedy


def listing(*names: str, known: tuple[str, ...] = ()) -> Handler:
    async def answer(request: web.Request) -> web.Response:
        assert request.method == "GET", "nothing is asked that could cost tokens"
        if request.headers.get("Authorization") != f"Bearer {SECRET}":
            return web.json_response({"error": SECRET}, status=401)
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": name} for name in names]})
        return web.json_response({}, status=200 if request.path in {f"/v1/models/{name}" for name in known} else 404)

    return answer


def status(code: int, body: bytes = b"") -> Handler:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(status=code, body=body)

    return answer


async def test_a_server_that_lists_the_model_is_ok() -> None:
    state, figure, _ = await found(listing("m", "n"), "m", "n")
    assert state is Health.OK
    assert figure.endswith("it has the models")


async def test_a_model_that_it_does_not_list_is_asked_for_by_name() -> None:
    assert (await found(listing("n", known=("m",))))[0] is Health.OK
    state, figure, remedy = await found(listing("n"))
    assert state is Health.WRONG
    assert figure.endswith("has no model m")
    assert remedy.startswith("name:")


async def test_a_key_that_it_refuses_is_wrong() -> None:
    state, figure, remedy = await found(listing("m"), key="another")
    assert (state, remedy) == (Health.WRONG, "api_key: a key that it takes")
    assert figure.endswith("refuses the key (HTTP 401)")


@pytest.mark.parametrize(
    ("code", "body", "state"),
    [(404, b"", Health.OK), (405, b"", Health.OK), (200, b"<html>", Health.OK), (200, b'{"data": [1]}', Health.OK),
     (429, b"", Health.SLOW), (500, b"", Health.AWAY), (503, SECRET.encode(), Health.AWAY)],
)  # fmt: skip
async def test_what_lists_no_models_is_judged_by_its_status(code: int, body: bytes, state: Health) -> None:
    seen, figure, _ = await found(status(code, body))
    assert seen is state
    if state is Health.OK:
        assert figure.endswith("key and name show with the first question")


async def test_nobody_there_is_away_and_silence_too() -> None:
    server = ModelListing.of_openai(URL(f"http://127.0.0.1:{free_port()}/v1"), None)
    (nobody,) = await look_at_models("model", server, ["m"], KEYS)
    assert (nobody.state, nobody.figure.startswith("nothing answers at 127.0.0.1:")) == (Health.AWAY, True)
    async with silent_port() as port:
        silent = ModelListing.of_openai(URL(f"http://127.0.0.1:{port}/v1"), None)
        check = Check("model", lambda: look_at_models("model", silent, ["m"], KEYS), "base_url")
        assert await examine([check], 0.1) == [Diagnosis("model", Health.AWAY, "no answer within 0.1 s", "base_url")]


async def test_a_server_without_a_list_only_has_to_answer() -> None:
    async with serving(status(404)) as url:
        (there,) = await look_at_address("reranker", URL(url), "base_url")
    (gone,) = await look_at_address("reranker", URL(url), "base_url")
    assert (there.state, gone.state) == (Health.OK, Health.AWAY)


async def test_the_mock_model_has_every_model(mock_llm: MockModel) -> None:
    server = ModelListing.of_openai(URL(mock_llm.base_url), None)
    (one,) = await look_at_models("model", server, ["mock", "mock;ttft=3000;tokens=5"], KEYS)
    assert one.state is Health.OK

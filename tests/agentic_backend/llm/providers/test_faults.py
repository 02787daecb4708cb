"""Which of our errors an exception of a provider's library is: the real classes of those that are installed."""

from typing import Any

import anthropic
import httpx
import httpx2
import ollama
import openai
import pytest

from agentic_backend.errors import LlmProtocol, LlmRateLimited, LlmTimeout, LlmUnavailable, TurnFailed
from agentic_backend.llm.providers.faults import failure_of

REQUEST = httpx2.Request("POST", "http://a/")


def refused(status: int, **headers: str) -> httpx2.Response:
    return httpx2.Response(status, request=REQUEST, headers=headers)


def caused(failure: Exception, cause: Exception) -> Exception:
    failure.__context__ = cause
    return failure


class Botocore(Exception):
    """The shape of botocore's ClientError."""

    response = {"ResponseMetadata": {"HTTPStatusCode": 503}}


class Google(Exception):
    """The shape of google-genai's APIError."""

    code = 429


class HTTPClientError(Exception):
    """The name that botocore's errors of connections inherit."""


TOO_MANY = httpx.Response(429, request=httpx.Request("POST", "http://a/"), headers={"retry-after": "7"})
FAILURES: dict[str, tuple[Exception, type[TurnFailed]]] = {
    "openai 429": (openai.RateLimitError("secret", response=refused(429), body=None), LlmRateLimited),
    "openai 500": (openai.InternalServerError("secret", response=refused(500), body=None), LlmUnavailable),
    "openai 401": (openai.AuthenticationError("secret", response=refused(401), body=None), LlmProtocol),
    "openai redirect": (openai.APIStatusError("secret", response=refused(307), body=None), LlmProtocol),
    "openai connection": (openai.APIConnectionError(request=REQUEST), LlmUnavailable),
    "openai time": (openai.APITimeoutError(REQUEST), LlmUnavailable),
    "openai in the stream": (openai.APIError("secret", REQUEST, body={"code": "rate_limit_exceeded"}), LlmRateLimited),
    "anthropic 529": (anthropic.InternalServerError("secret", response=refused(529), body=None), LlmUnavailable),
    "anthropic in the stream": (
        anthropic.APIStatusError("secret", response=refused(200), body={"error": {"type": "overloaded_error"}}),
        LlmUnavailable,
    ),
    "ollama 404": (ollama.ResponseError("secret", 404), LlmProtocol),
    "ollama in the stream": (ollama.ResponseError("secret"), LlmUnavailable),
    "httpx status": (httpx.HTTPStatusError("secret", request=TOO_MANY.request, response=TOO_MANY), LlmRateLimited),
    "httpx silence": (httpx.ReadTimeout("secret"), LlmTimeout),
    "openai silence": (caused(openai.APITimeoutError(REQUEST), httpx2.ReadTimeout("secret")), LlmTimeout),
    "anthropic backlog": (caused(anthropic.APITimeoutError(REQUEST), httpx2.WriteTimeout("secret")), LlmTimeout),
    "httpx connection": (httpx.ConnectError("secret"), LlmUnavailable),
    "httpx2 cut": (httpx2.RemoteProtocolError("secret"), LlmUnavailable),
    "behind another": (caused(RuntimeError("secret"), httpx2.ReadError("secret")), LlmUnavailable),
    "system": (OSError("secret"), LlmUnavailable),
    "botocore": (Botocore("secret"), LlmUnavailable),
    "botocore connection": (HTTPClientError("secret"), LlmUnavailable),
    "google": (Google("secret"), LlmRateLimited),
    "anything": (ZeroDivisionError("secret"), LlmProtocol),
}


@pytest.mark.parametrize(("failure", "error"), FAILURES.values(), ids=FAILURES)
def test_before_the_first_token(failure: Exception, error: type[TurnFailed]) -> None:
    found = failure_of(failure, begun=False)
    assert type(found.error) is error
    assert found.retry is (error is not LlmProtocol)
    assert "secret" not in f"{found}{found.error!r}{found.error}"


@pytest.mark.parametrize("failure", [httpx.ReadError("secret"), openai.APIConnectionError(request=REQUEST), OSError()])
def test_a_connection_that_is_lost_in_the_answer_is_no_answer(failure: Exception) -> None:
    found = failure_of(failure, begun=True)
    assert (type(found.error), found.retry) == (LlmProtocol, False)


@pytest.mark.parametrize(
    "failure",
    [
        openai.RateLimitError("secret", response=refused(429, **{"retry-after": "7"}), body=None),
        caused(
            ollama.ResponseError("secret", 429), httpx.HTTPStatusError("", request=TOO_MANY.request, response=TOO_MANY)
        ),
    ],
)
def test_how_long_to_wait_is_kept(failure: Exception) -> None:
    assert failure_of(failure, begun=False).error.retry_after_s == 7


def test_a_chain_that_bites_its_tail_ends() -> None:
    one: Any = RuntimeError()
    one.__context__ = other = RuntimeError()
    other.__context__ = one
    assert type(failure_of(one, begun=False).error) is LlmProtocol

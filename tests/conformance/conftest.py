"""The service that the cases are for, and another client whose turn runs meanwhile."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from tests.conformance.cases import MAX_FRAME_BYTES
from tests.support.following import ask_frame
from tests.support.mock_llm import MockModel
from tests.support.people import token_of
from tests.support.service import ServiceClient, hear_until, say
from tests.support.standing import Standing, standing_service
from turnwise.postgres import EmbeddedPostgres

MODEL = "mock;ttft=10;gap=5;tokens=12"
APP = "https://app.example.com"
"""The one page of another address that may come in."""


@pytest.fixture(scope="package")
def standing(
    postgres: EmbeddedPostgres, mock_llm: MockModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Standing]:
    """One process for all cases: what one of them breaks, the next one sees."""
    limits = {"max_frame_bytes": MAX_FRAME_BYTES, "max_message_chars": 8000}
    sections = {"limits": limits, "security": {"authorized_origins": [APP], "allow_query_token": False}}
    with standing_service(postgres, mock_llm, tmp_path_factory.mktemp("frames"), MODEL, **sections) as running:
        yield running


@pytest.fixture(scope="package")
def deflating(
    postgres: EmbeddedPostgres, mock_llm: MockModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Standing]:
    """The same with compression of frames."""
    sections = {"limits": {"max_frame_bytes": MAX_FRAME_BYTES}, "server": {"ws_per_message_deflate": True}}
    with standing_service(postgres, mock_llm, tmp_path_factory.mktemp("deflate"), MODEL, **sections) as running:
        yield running


@asynccontextmanager
async def bystander(standing: Standing) -> AsyncIterator[None]:
    """Another client is in the middle of an answer while the block runs, and gets all of it; the service is healthy."""
    async with standing.client("bystander") as http:
        service = ServiceClient(port=standing.port, http=http)
        session_id = await service.create_session()
        async with service.native(token_of("bystander")) as socket:
            await say(socket, **ask_frame(session_id, f"of-{session_id}"))
            await hear_until(socket, "delta")
            yield
            assert len((await hear_until(socket, "final"))[-1]["messages"]) == 2
        assert await service.get("/healthz") == {"status": "ok"}

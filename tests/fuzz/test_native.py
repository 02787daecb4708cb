"""docs/trust.md#D13: clients that do anything the native protocol allows, and what it does not, in any order."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.fuzz.budget import WITHIN_LIMIT, long, seeds
from tests.fuzz.native import NativeMachine
from tests.support.mock_llm import MockModel
from tests.support.standing import Standing, standing_service
from turnwise.postgres import EmbeddedPostgres

MODEL = "mock;ttft=15;gap=3;tokens=8"
"""A turn of some 40 ms: what is sent next comes before it, into it and after it."""


@pytest.fixture(scope="module")
def standing(
    postgres: EmbeddedPostgres, mock_llm: MockModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Standing]:
    with standing_service(postgres, mock_llm, tmp_path_factory.mktemp("native"), MODEL) as running:
        yield running


@WITHIN_LIMIT
def test_whatever_clients_do_each_turn_has_one_end_and_history_is_what_was_told(standing: Standing) -> None:
    machine = type("Machine", (NativeMachine,), {"standing": standing})
    chosen = settings(
        max_examples=60 if long() else 12,
        stateful_step_count=40 if long() else 25,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    for number in seeds("native"):
        run_state_machine_as_test(seed(number)(machine), settings=chosen)

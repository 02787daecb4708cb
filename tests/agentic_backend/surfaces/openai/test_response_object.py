import pytest

from agentic_backend.surfaces.openai.response_object import ResponseId

SESSION, EXCHANGE = "744847b8-7b2a-4925-8902-d2d3ad07d7e9", "8956446a-326e-44c8-8844-5749e2de3b61"
HEX = ResponseId(SESSION, EXCHANGE)


@pytest.mark.parametrize("rank", [None, 0, 7])
def test_an_id_says_where_its_response_is(rank):
    name = ResponseId(SESSION, EXCHANGE, rank)
    assert ResponseId.read(str(name)) == name
    assert str(name).startswith("resp_")


def test_the_items_of_two_responses_of_one_exchange_have_other_names():
    assert ResponseId(SESSION, EXCHANGE).key != ResponseId(SESSION, EXCHANGE, 3).key


@pytest.mark.parametrize(
    "text",
    [
        "",
        "resp_",
        "resp_1",
        str(HEX).upper(),
        str(HEX).removeprefix("resp_"),
        f"{HEX}_",
        f"{HEX}_x",
        f"{HEX}_-1",
        f"{HEX}_01",
        f"{HEX}_{'1' * 11}",
        f"{str(HEX)[:-1]}g",
        f"{HEX}a",
        f"resp_{'é' * 64}",
    ],
)
def test_what_this_door_never_made_is_no_id(text):
    assert ResponseId.read(text) is None

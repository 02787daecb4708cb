"""Every call of the recording, made by the SDK at our door: the same statuses, keys and events, or a reason why not."""

from tests.langgraph.allowed import ALLOWED, not_allowed, unused
from tests.langgraph.recorded import found, walked
from tests.langgraph.stage import AGENTS, BEARER, url_of

WHOSE = {"hosted": "agent", "ours": "Georges"}


async def test_it_is_as_recorded(start_service):
    all_found = []
    for of, agent in WHOSE.items():
        async with (
            start_service("mock;gap=20", **AGENTS) as service,
            walked(url_of(service), BEARER, agent=agent) as walk,
        ):
            all_found += [(one, of) for one in found(walk)]
    rest = [f"{of:6} {one}" for one, of in all_found if not_allowed([one], of)]
    for one, of in all_found:
        print("    " if not_allowed([one], of) else "ok  ", f"{of:6}", one)
    assert rest == [], "\n" + "\n".join(rest)
    assert unused(all_found) == []


def test_each_reason_is_told():
    assert all(entry.reason for entry in ALLOWED)

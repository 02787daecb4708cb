"""Places: who gives way at which bound, what is counted and what is said."""

import pytest
from prometheus_client import CollectorRegistry

from backend_kit.http.connections import ConnectionMetrics, ConnectionPlace, OpenConnections
from backend_kit.settings import ConnectionBounds
from tests.support.clock import Clock


class Crowd:
    """`OpenConnections`, the names of who has been ended in order, and the places by name."""

    def __init__(self, *, descriptors: int = 1024, surplus: int = 2, **bounds: object) -> None:
        self.registry = CollectorRegistry()
        self.clock = Clock()
        self.ended: list[str] = []
        self.places: dict[str, ConnectionPlace] = {}
        settings = ConnectionBounds.model_validate(bounds)
        metrics = ConnectionMetrics(self.registry)
        self.among = OpenConnections(settings, descriptors, metrics, surplus=surplus, clock=self.clock)

    def enter(self, name: str, peer: str = "192.0.2.1") -> ConnectionPlace:
        """A new connection."""
        place = self.among.enter(peer, lambda: self.ended.append(name))
        self.places[name] = place
        return place

    def count(self, reason: str) -> float:
        """`app_connections_refused_total` of a reason."""
        return self.registry.get_sample_value("app_connections_refused_total", {"reason": reason}) or 0.0

    @property
    def open(self) -> float:
        """`app_connections`."""
        return self.registry.get_sample_value("app_connections") or 0.0


def test_at_the_bound_the_longest_waiting_of_the_address_with_most_gives_way() -> None:
    crowd = Crowd(max_open=5)
    for number in range(3):
        crowd.enter(f"flood-{number}", "192.0.2.66")
    crowd.enter("ann", "192.0.2.1")
    crowd.enter("bob", "192.0.2.2")
    crowd.places["flood-0"].works()
    assert crowd.enter("carl", "192.0.2.3").refuses is None
    crowd.places["flood-0"].waits()
    crowd.enter("dora", "192.0.2.4")
    assert crowd.ended == ["flood-1", "flood-2"]
    assert (crowd.count("max_open"), crowd.open) == (2, 5)


def test_one_that_waits_again_waits_shortest() -> None:
    crowd = Crowd(max_open=3)
    for name in ("one", "two", "three"):
        crowd.enter(name)
    crowd.places["one"].waits()
    crowd.enter("four")
    crowd.enter("five")
    assert crowd.ended == ["two", "three"]


def test_where_none_waits_a_new_one_is_surplus_and_of_these_the_oldest_gives_way() -> None:
    crowd = Crowd(max_open=2, surplus=2)
    for name in ("one", "two"):
        crowd.enter(name).works()
    late = [crowd.enter(f"late-{number}", f"192.0.2.{number + 5}") for number in range(3)]
    assert [place.refuses for place in late] == ["max_open"] * 3
    assert (crowd.ended, crowd.open) == (["late-0"], 4)
    late[1].leave()
    crowd.enter("late-3")
    assert crowd.ended == ["late-0"]
    crowd.places["two"].leave()
    assert crowd.enter("three").refuses is None


def test_the_bound_of_an_address_takes_from_that_address() -> None:
    crowd = Crowd(per_address=2)
    crowd.enter("other", "192.0.2.9")
    crowd.enter("one")
    crowd.enter("two").works()
    crowd.enter("three").works()
    assert crowd.ended == ["one"]
    assert crowd.enter("four").refuses == "per_address"
    assert crowd.enter("another", "192.0.2.9").refuses is None
    assert crowd.count("per_address") == 1  # what "four" may not have is counted when it asks


def test_an_address_of_ipv6_is_its_network() -> None:
    crowd = Crowd(per_address=2)
    for number in range(3):
        crowd.enter(str(number), f"2001:db8::{number + 1}")
    crowd.enter("other", "2001:db8:0:1::1")
    crowd.enter("link", "fe80::1%eth0")
    assert crowd.ended == ["0"]


def test_each_connection_of_a_trusted_proxy_is_an_address_of_its_own() -> None:
    crowd = Crowd(per_address=2, max_open=6, trusted_proxies=["10.0.0.0/8", "2001:db8::1"])
    for number in range(3):
        assert crowd.enter(f"proxied-{number}", "10.1.2.3").refuses is None
    assert crowd.enter("proxied-6", "2001:db8::1").refuses is None
    for number in range(2):
        crowd.enter(f"direct-{number}", "192.0.2.1")
    crowd.enter("last", "")
    assert crowd.ended == ["direct-0"]


def test_what_left_is_not_ended_and_leaves_once() -> None:
    crowd = Crowd(max_open=2)
    crowd.enter("one").leave()
    crowd.places["one"].leave()
    crowd.places["one"].waits()
    crowd.enter("two")
    crowd.enter("three")
    assert (crowd.ended, crowd.open) == ([], 2)
    crowd.enter("four")
    crowd.places["two"].leave()
    assert (crowd.ended, crowd.open) == (["two"], 2)


@pytest.mark.parametrize(
    ("descriptors", "chosen", "most"), [(1024, 0, 512), (1_000_000, 0, 10_000), (1024, 20, 20), (256, 0, 128)]
)
def test_the_bound_comes_from_the_descriptors_unless_it_is_chosen(descriptors: int, chosen: int, most: int) -> None:
    crowd = Crowd(descriptors=descriptors, max_open=chosen)
    for number in range(most):
        crowd.enter(str(number), f"192.0.2.{number % 250}")
    assert crowd.ended == []
    crowd.enter("late")
    assert len(crowd.ended) == 1


def test_each_bound_is_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    crowd = Crowd(max_open=1)
    for number in range(5):
        crowd.enter(str(number))
    crowd.places["4"].refused("body")
    crowd.clock.now += 59.0
    crowd.enter("five")
    crowd.clock.now += 1.0
    crowd.enter("six")
    begun = "a connection from 192.0.2.1 was refused or ended: "
    assert [record.getMessage().removeprefix(begun) for record in caplog.records] == [
        "connections.max_open is reached",
        "a body came more slowly than connections.body_bytes_per_s",
        "connections.max_open is reached (4 more like this not logged)",
    ]

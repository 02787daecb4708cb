"""Which ports are free, said before anything starts."""

import socket

import pytest

from tests.support.ports import free_port
from turnwise.errors import PortTaken
from turnwise.ports import WantedPort, require_free_ports

pytestmark = pytest.mark.servers


def test_free_ports_pass() -> None:
    require_free_ports([WantedPort("a", "127.0.0.1", free_port())])


def test_every_taken_port_is_named_with_what_wanted_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        first, second = one.getsockname()[1], two.getsockname()[1]
        with pytest.raises(PortTaken) as refusal:
            require_free_ports([WantedPort("agentic", "127.0.0.1", first), WantedPort("Postgres", "127.0.0.1", second)])
    named = sorted([(first, "agentic"), (second, "Postgres")])
    each = ", ".join(f"{port} ({purpose})" for port, purpose in named)
    assert str(refusal.value) == f"each of these ports is taken: {each}"


def test_one_taken_port_is_said_with_its_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
        with pytest.raises(PortTaken) as refusal:
            require_free_ports([WantedPort("agentic", "127.0.0.1", port), WantedPort("a", "127.0.0.1", free_port())])
    assert str(refusal.value) == f"port {port} (127.0.0.1), wanted by agentic, is taken"


def test_a_port_that_two_want_is_refused() -> None:
    port = free_port()
    with pytest.raises(PortTaken, match=f"port {port} is wanted by both agentic and agentic metrics"):
        require_free_ports([WantedPort("agentic", "127.0.0.1", port), WantedPort("agentic metrics", "127.0.0.1", port)])


def test_a_listener_on_all_addresses_takes_the_port_too() -> None:
    with socket.create_server(("0.0.0.0", 0)) as everywhere:  # noqa: S104 - that is the case in question
        port = everywhere.getsockname()[1]
        with pytest.raises(PortTaken):
            require_free_ports([WantedPort("agentic", "127.0.0.1", port)])


def test_a_connection_in_time_wait_does_not_take_the_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = server.accept()
            accepted.close()  # the server's side closes first and is left in TIME_WAIT
    require_free_ports([WantedPort("agentic", "127.0.0.1", port)])

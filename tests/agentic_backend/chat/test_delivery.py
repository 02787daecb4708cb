"""How long a socket takes to take the end of a turn is told once a turn, also of a socket that never takes it."""

from tests.agentic_backend.chat.told_hub import accept, delta, finish, told_hub, until


async def test_the_end_of_a_turn_that_is_read_is_told_once() -> None:
    async with told_hub() as room:
        peer = await room.opened()
        turn = await room.asked(peer, "e1")
        accept(turn)
        delta(turn, "Hello")
        assert room.delivered == []
        finish(turn)
        await until(lambda: len(room.delivered) == 1)
        assert 0 <= room.delivered[0] < 5
        assert room.hub.behind_s() == []
        peer.leave()


async def test_a_socket_that_goes_before_the_end_has_none_to_take() -> None:
    async with told_hub() as room:
        peer = await room.opened()
        turn = await room.asked(peer, "e1")
        accept(turn)
        peer.leave()
        await until(lambda: len(room.hub) == 0)
        finish(turn)
    assert room.delivered == []


async def test_an_end_that_nobody_reads_waits_and_is_told_when_the_socket_is_cut() -> None:
    async with told_hub() as room:
        peer = await room.opened()
        turn = await room.asked(peer, "e1")
        peer.reads.clear()
        accept(turn)
        finish(turn)
        await until(lambda: peer.sending == 1)
        [waiting] = room.hub.behind_s()
        assert waiting >= 0
        assert room.delivered == []
        peer.abort()
        await until(lambda: len(room.hub) == 0)
        assert len(room.delivered) == 1
        assert room.delivered[0] >= waiting

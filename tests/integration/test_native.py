from tests.support.held_model import held_model
from tests.support.service import WAITS_FOR_THE_DISK, hear, hear_until, say


async def test_a_turn_streams_and_ends_with_the_answer_and_its_ledger(start_service):
    async with start_service(parts=WAITS_FOR_THE_DISK) as service:
        session_id = await service.create_session(title=None)
        async with service.native() as socket:
            assert socket.subprotocol == "turnwise.v1"
            await say(
                socket, type="ask", session_id=session_id, agent_id="Georges", message="Hello", client_exchange_id="e1"
            )
            heard = await hear_until(socket, "final")
        types = [frame["type"] for frame in heard]
        assert types[:2] == ["accepted", "message"]
        assert types[-2:] == ["session", "final"]
        assert set(types[2:-2]) == {"delta"}
        assert {(frame["session_id"], frame["exchange_id"]) for frame in heard} == {(session_id, "e1")}
        final = heard[-1]
        user, answer = final["messages"]
        assert (user["role"], user["rank"], answer["role"], answer["rank"]) == ("user", 0, "assistant", 1)
        assert "".join(frame["text"] for frame in heard if frame["type"] == "delta") == answer["parts"][0]["text"]
        assert final["durable"] == ("spool" if len(service.instances) == 1 else "db")
        assert final["session"]["next_rank"] == 2
        assert final["session"]["title"] == "Hello"
        phases = {row["phase"] for row in final["ledger"]}
        assert {"agent_init", "history_restore", "stream_agent_response", "llm_invoke"} <= phases
        assert await service.history(session_id) == final["messages"]


async def test_ping_is_answered_during_a_turn(start_service):
    async with held_model() as model, start_service(ai=model.ai) as service:
        session_id = await service.create_session()
        async with service.native() as socket:
            await say(socket, type="ask", session_id=session_id, agent_id="Georges", message="Hello")
            await hear_until(socket, "message")
            await say(socket, type="ping")
            assert (await hear(socket))["type"] == "pong"
            model.go.set()
            await hear_until(socket, "final")

"""What a scripted model says when it wants tools, as the steps of `tests.agentic_backend.llm.scripted`."""

from tests.agentic_backend.llm.scripted import DONE, Step, event, finish, streams, token, usage


def wants(*calls: tuple[str, str, str], text: str = "") -> Step:
    """An answer that calls tools: (id, name, arguments as JSON text), each in pieces, as real models send them."""
    pieces = [token(text)] if text else []
    for index, (call_id, name, arguments) in enumerate(calls):
        half = len(arguments) // 2
        begun = {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
        pieces.append(event({"choices": [{"index": 0, "delta": {"tool_calls": [begun]}}]}))
        for part in (arguments[:half], arguments[half:]):
            more = {"index": index, "function": {"arguments": part}}
            pieces.append(event({"choices": [{"index": 0, "delta": {"tool_calls": [more]}}]}))
    return streams(*pieces, finish("tool_calls"), usage(10, 5), DONE)


def says(*texts: str) -> Step:
    """An answer in so many pieces."""
    return streams(*map(token, texts), finish(), usage(20, 4), DONE)

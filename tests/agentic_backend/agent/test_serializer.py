"""docs/trust.md#F8: what a checkpoint may make of its bytes: plain values, and nothing that the bytes name."""

import pickle
from pathlib import PurePosixPath

import ormsgpack
import pytest
from langgraph.checkpoint.serde.jsonplus import EXT_CONSTRUCTOR_SINGLE_ARG

from agentic_backend.agent.interrupts import strict_serializer


class Planted:
    """Would write a file, were it unpickled."""

    def __init__(self, place: str) -> None:
        self.place = place

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, (f"open({self.place!r}, 'w').close()",)


def test_a_plain_value_comes_back() -> None:
    serializer = strict_serializer()
    value = {"messages": ["a", 1, None, {"b": [1.5, True]}]}
    assert serializer.loads_typed(serializer.dumps_typed(value)) == value


def test_pickled_bytes_are_refused(tmp_path: PurePosixPath) -> None:
    place = tmp_path / "planted"
    with pytest.raises(Exception, match="pickle"):
        strict_serializer().loads_typed(("pickle", pickle.dumps(Planted(str(place)))))
    assert not place.exists()  # type: ignore[attr-defined]  # a real path


def test_bytes_that_name_a_class_make_none_of_it(tmp_path: PurePosixPath) -> None:
    name = ("subprocess", "Popen", ["touch", str(tmp_path / "planted")])
    named = ormsgpack.packb(ormsgpack.Ext(EXT_CONSTRUCTOR_SINGLE_ARG, ormsgpack.packb(name)))
    made = strict_serializer().loads_typed(("msgpack", named))
    assert type(made).__module__ == "builtins"
    assert not (tmp_path / "planted").exists()  # type: ignore[attr-defined]  # a real path

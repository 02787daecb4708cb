import pytest

from tests.checks.source import Module, module_of, modules
from tests.checks.structure import names_of_two, shape_of

CLASS = "class Pool:\n    pass\n"


def test_a_class_name_means_one_thing() -> None:
    """Twice in a package, or in the kit and in a package, is one name for two things."""
    assert names_of_two(modules()) == {}


@pytest.mark.parametrize(
    ("paths", "count"),
    [
        (("ws_bench/a.py", "ws_bench/b/c.py"), 1),
        (("backend_kit/a.py", "turnwise/a.py"), 1),
        (("agentic_backend/a.py", "knowledge_flow_backend/a.py"), 0),
        (("ws_bench/a.py",), 0),
    ],
)
def test_a_name_of_two_things_is_found(paths: tuple[str, ...], count: int) -> None:
    assert len(names_of_two([module_of(CLASS, path) for path in paths])) == count


def test_a_private_name_may_stand_twice() -> None:
    private = CLASS.replace("Pool", "_Pool")
    assert names_of_two([module_of(private, path) for path in ("ws_bench/a.py", "ws_bench/b.py")]) == {}


def test_the_figures_of_a_package() -> None:
    def made(path: str, text: str) -> Module:
        return module_of(text, f"ws_bench/{path}")

    shape = shape_of(
        "ws_bench",
        [
            made("__init__.py", '"""Says."""\n'),
            made("errors.py", "class A:\n    pass\n"),
            made("load/__init__.py", '"""Says."""\n'),
            made("load/run.py", "from ws_bench.errors import A\nfrom ws_bench.load import client\n" + "x = A\n" * 60),
            made("load/client.py", "import ws_bench.errors\n\n# why\ny = 1\n"),
        ],
    )
    assert (shape.modules, shape.short, shape.rooms, shape.arrows) == (3, 2, 2, 1)
    assert shape.code == 2 + 62 + 2

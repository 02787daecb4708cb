"""backend_kit holds what at least two packages use, and nothing else (decision 45)."""

import pytest

from tests.checks.kit import KIT, used_by_one
from tests.checks.source import PACKAGES, module_of, modules


def test_nothing_is_in_the_kit_that_fewer_than_two_packages_use() -> None:
    assert used_by_one(modules(KIT), modules(*(package for package in PACKAGES if package != KIT))) == {}


KIT_TEXT = """
from backend_kit.deep import helped

LIMIT = 3


class Shared:
    def grow(self):
        return helped(LIMIT)


def alone():
    return _private()


def _private():
    return 1
"""
DEEP_TEXT = "BOUND = 2\n\n\ndef helped(value: int = BOUND):\n    return value\n"


@pytest.mark.parametrize(
    ("agentic", "bench", "found"),
    [
        ("from backend_kit.part import Shared, alone", "from backend_kit.part import Shared, alone", {}),
        (
            "from backend_kit.part import Shared, alone",
            "from backend_kit.part import Shared",
            {"backend_kit.part.alone": ["agentic_backend"]},
        ),
        # Through a package that passes names on, and as attributes of a module.
        ("from backend_kit import Shared, alone", "from backend_kit import part\npart.Shared; part.alone()", {}),
        ("from backend_kit import part as p\np.Shared", "from backend_kit.part import Shared as S, alone as a", {
            "backend_kit.part.alone": ["ws_bench"],
        }),
        # What a shared name needs is shared; to import a module uses none of its names.
        (
            "from backend_kit.part import alone\nfrom backend_kit import part",
            "from backend_kit.part import alone",
            {
                "backend_kit.deep.BOUND": [],
                "backend_kit.deep.helped": [],
                "backend_kit.part.LIMIT": [],
                "backend_kit.part.Shared": [],
            },
        ),
    ],
)  # fmt: skip
def test_what_one_package_uses_is_found(agentic: str, bench: str, found: dict[str, list[str]]) -> None:
    kit = [
        module_of("from backend_kit.part import Shared, alone", "backend_kit/__init__.py"),
        module_of(KIT_TEXT, "backend_kit/part.py"),
        module_of(DEEP_TEXT, "backend_kit/deep.py"),
    ]
    others = [module_of(agentic, "agentic_backend/a.py"), module_of(bench, "ws_bench/b.py")]
    assert used_by_one(kit, others) == found

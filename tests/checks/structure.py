"""The shape of the code in figures, and one thing a name: `python -m tests.checks.structure [ROOT]` prints a table.

A room of a package is a folder in it or a module beside them; an arrow is one room that imports another of the package.
"""

import ast
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.checks.source import PACKAGES, ROOT, Module, code_lines, modules

KIT: Final = "backend_kit"
SHORT: Final = 60
"""Lines below which a module is counted as short."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One package. `short` modules have fewer than 60 lines; `__init__.py` files of a docstring alone do not count."""

    package: str
    modules: int
    short: int
    code: int
    rooms: int
    arrows: int


def shape_of(package: str, found: list[Module]) -> Shape:
    """The figures of a package, from its modules."""
    arrows = {
        (_room(module), room) for module in found for room in _imported_rooms(module) if room not in ("", _room(module))
    }
    bodies = [module for module in found if module.tree.body[1:] or module.path.name != "__init__.py"]
    return Shape(
        package=package,
        modules=len(bodies),
        short=sum(len(module.text.splitlines()) < SHORT for module in bodies),
        code=sum(map(code_lines, found)),
        rooms=len({_room(module) for module in found} - {""}),
        arrows=len({(source, target) for source, target in arrows if source}),
    )


def names_of_two(found: list[Module]) -> dict[str, list[str]]:
    """Public classes of one name: twice in a package, or in the kit and in a package; with where they stand."""
    places: dict[str, list[Module]] = defaultdict(list)
    for module in found:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module)
    return {
        name: [str(module.path) for module in there]
        for name, there in sorted(places.items())
        if len({module.package for module in there}) < len(there) or (len(there) > 1 and _in_kit(there))
    }


def _in_kit(there: list[Module]) -> bool:
    return any(module.package == KIT for module in there)


def _room(module: Module) -> str:
    """The folder or the module of its package that a module belongs to; empty for the package's own file."""
    part = module.path.parts[1]
    return "" if part == "__init__.py" else part.removesuffix(".py")


def _imported_rooms(module: Module) -> set[str]:
    rooms = set()
    for node in module.nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        rooms |= {name.split(".")[1] for name in names if name.startswith(f"{module.package}.")}
    return rooms


def main(root: Path) -> None:
    """Print the table of a checkout."""
    row = "{:<24}{:>9}{:>7}{:>8}{:>7}{:>8}".format
    print(row("package", "modules", "short", "code", "rooms", "arrows"))
    found = modules(root=root)
    shapes = [shape_of(package, [m for m in found if m.package == package]) for package in PACKAGES]
    for shape in shapes:
        print(row(shape.package, shape.modules, shape.short, shape.code, shape.rooms, shape.arrows))
    totals = [sum(getattr(shape, name) for shape in shapes) for name in ("modules", "short", "code", "rooms", "arrows")]
    print(row("together", *totals))
    print(f"public class names of two things: {len(names_of_two(found))}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else ROOT)

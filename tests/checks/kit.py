"""Which packages use each public name of backend_kit, directly or through other names of the kit."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from tests.checks.source import Module

KIT = "backend_kit"


class Name(NamedTuple):
    """A top-level name of a module of the kit."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


class Kit:
    """The top-level names of the kit's modules, and where they are imported from."""

    def __init__(self, modules: list[Module]) -> None:
        self._modules = {_dotted(module): module for module in modules}
        self.definitions = {
            Name(module, name): node
            for module, parsed in self._modules.items()
            for node in parsed.tree.body
            for name in _defined(node)
        }
        self._imported = {module: self._imports(parsed) for module, parsed in self._modules.items()}

    def used_in(self, module: Module) -> set[Name]:
        """The names that a module outside of the kit imports, or takes from a module that it imports."""
        imported = self._imports(module)
        whole = {alias: found.name for alias, found in imported.items() if not found.module}
        return {self._resolved(name) for name in imported.values()} | set(self._attributes(module.nodes, whole))

    def needs(self, name: Name) -> set[Name]:
        """The names of the kit that the definition of a name refers to."""
        imported = self._imported[name.module]
        whole = {alias: found.name for alias, found in imported.items() if not found.module}
        nodes = list(ast.walk(self.definitions[name]))
        loaded = {node.id for node in nodes if isinstance(node, ast.Name)}
        return {self._resolved(imported.get(word, Name(name.module, word))) for word in loaded} | set(
            self._attributes(nodes, whole)
        )

    def _imports(self, module: Module) -> dict[str, Name]:
        """What a module imports from the kit, by the names it has there; a module of the kit is `Name("", module)`."""
        found = {}
        for node in module.nodes:
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == KIT:
                for alias in node.names:
                    name = Name(str(node.module), alias.name)
                    whole = f"{node.module}.{alias.name}"
                    is_module = whole in self._modules and self._resolved(name) not in self.definitions
                    found[alias.asname or alias.name] = Name("", whole) if is_module else name
        return found

    def _resolved(self, name: Name) -> Name:
        """Where a name is defined that modules may pass on."""
        while name not in self.definitions and (passed_on := self._passed_on(name)) is not None:
            name = passed_on
        return name

    def _passed_on(self, name: Name) -> Name | None:
        module = self._modules.get(name.module)
        for node in module.tree.body if module is not None else ():
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    found = Name(str(node.module), alias.name)
                    if (alias.asname or alias.name) == name.name and found != name:
                        return found
        return None

    def _attributes(self, nodes: "list[ast.AST] | tuple[ast.AST, ...]", whole: dict[str, str]) -> Iterator[Name]:
        for node in nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in whole:
                yield self._resolved(Name(whole[node.value.id], node.attr))


def used_by_one(kit_modules: list[Module], others: list[Module]) -> dict[str, list[str]]:
    """Public names of the kit that fewer than two of the other packages use, with those that do.

    A package uses what it imports, and what the definition of that refers to in turn.
    """
    kit = Kit(kit_modules)
    users: dict[Name, set[str]] = defaultdict(set)
    for module in others:
        ahead = list(kit.used_in(module))
        while ahead:
            name = ahead.pop()
            if name in kit.definitions and module.package not in users[name]:
                users[name].add(module.package)
                ahead += kit.needs(name)
    return {
        str(name): sorted(users[name])
        for name in kit.definitions
        if not name.name.startswith("_") and len(users[name]) < 2
    }


def _dotted(module: Module) -> str:
    return ".".join(part for part in module.path.with_suffix("").parts if part != "__init__")


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]

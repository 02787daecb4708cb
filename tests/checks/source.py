"""The project's own source, parsed, and what the style rules look for in it. Pure functions over syntax trees."""

import ast
import io
import re
import tokenize
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("agentic_backend", "backend_kit", "deploy", "knowledge_flow_backend", "turnwise", "ws_bench")
SERVICES = ("agentic_backend", "knowledge_flow_backend")

_EXPLAINED = re.compile(r"noqa: [A-Z]+[0-9]+(, [A-Z]+[0-9]+)* +[-#] ?\w")
_ASSIGNED_METHOD = re.compile(r"type: ignore\[[a-z,-]*method-assign")
_PATCHING = ("setattr", "delattr", "setitem", "delitem")
Function = ast.FunctionDef | ast.AsyncFunctionDef
_LAYOUT = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
)


@dataclass(frozen=True)
class Module:
    """One file: its path from the root, its text, its tree."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """The top-level package."""
        return self.path.parts[0]

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of its tree. Found once: to walk a tree costs as much as to parse it."""
        return tuple(ast.walk(self.tree))

    def at(self, node: ast.AST) -> str:
        """`file:line` of a node."""
        return f"{self.path}:{getattr(node, 'lineno', 1)}"

    def lines(self, node: ast.AST, count: int) -> str:
        """The text of `count` lines from the one on which a node begins."""
        first = getattr(node, "lineno", 1) - 1
        return "\n".join(self.text.splitlines()[first : first + count])


def module_of(text: str, path: str = "agentic_backend/sample.py") -> Module:
    """A module from its text."""
    return Module(Path(path), text, ast.parse(text))


def modules(*packages: str, root: Path = ROOT) -> list[Module]:
    """Every module of the packages (of all, when none is named). There is always one, or the checks look nowhere."""
    found = [_read(file, root) for package in packages or PACKAGES for file in sorted((root / package).rglob("*.py"))]
    assert found, f"no module found in {packages}"
    return found


@cache
def _read(file: Path, root: Path) -> Module:
    # Parsed once, not once a rule: no rule changes a tree.
    return module_of(file.read_text(), str(file.relative_to(root)))


def functions(module: Module) -> list[Function]:
    """Every function and method, nested ones included."""
    return [node for node in module.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def length(function: Function) -> int:
    """Lines from `def` to the end, the docstring included, decorators not."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def stray_tasks(module: Module) -> list[str]:
    """Tasks that nobody holds: `create_task` or `ensure_future` on anything but a TaskGroup of this module."""
    groups = _task_group_names(module)
    strays = []
    for node in module.nodes:
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        if name not in ("create_task", "ensure_future"):
            continue
        held = isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id in groups
        if not held:
            strays.append(f"{module.at(node)}: {ast.unparse(called)}")
    return strays


def broad_excepts(module: Module) -> list[ast.ExceptHandler]:
    """Handlers of everything that keep what they caught; one that ends in a bare `raise` only cleans up."""
    return [
        node
        for node in module.nodes
        if isinstance(node, ast.ExceptHandler) and _is_broad(node.type) and not _raises_again(node)
    ]


def prints(module: Module) -> list[str]:
    """Calls of `print`."""
    return [
        module.at(node)
        for node in module.nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]


def unexplained(module: Module) -> list[str]:
    """Suppressed findings (`noqa`) without a rule's code, or without the reason behind it."""
    if "noqa" not in module.text:
        return []
    comments = [
        token for token in tokenize.generate_tokens(io.StringIO(module.text).readline) if token.type == tokenize.COMMENT
    ]
    return [
        f"{module.path}:{token.start[0]}"
        for token in comments
        if "noqa" in token.string and not _EXPLAINED.search(token.string)
    ]


def patches(module: Module) -> list[str]:
    """Where a test changes what is not its own: monkeypatch (but for its environment and directory), `unittest.mock`,
    a method that is assigned to, a private attribute that is set from outside."""
    found = []
    for node in module.nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            is_patch = "unittest.mock" in ast.unparse(node).replace("unittest import mock", "unittest.mock")
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            is_patch = any(map(_is_anothers, targets)) or bool(_ASSIGNED_METHOD.search(module.lines(node, 1)))
        else:
            called = node.func if isinstance(node, ast.Call) else None
            is_patch = isinstance(called, ast.Attribute) and called.attr in _PATCHING
        if is_patch:
            found.append(node)
    return [f"{module.at(node)}: {ast.unparse(node).splitlines()[0]}" for node in found]


def code_lines(module: Module) -> int:
    """Lines that hold code: no blank lines, no comments, no docstrings."""
    told = {
        line
        for node in module.nodes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    written = {
        line
        for token in tokenize.generate_tokens(io.StringIO(module.text).readline)
        if token.type not in _LAYOUT
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(written - told)


def _is_anothers(target: ast.expr) -> bool:
    """Whether what is assigned to is private to something other than `self`: `service._x`, `store._rows[1].at`."""
    private = False
    while not isinstance(target, ast.Name):
        if isinstance(target, ast.Attribute):
            private = private or (target.attr.startswith("_") and not target.attr.startswith("__"))
            target = target.value
        elif isinstance(target, ast.Subscript | ast.Starred):
            target = target.value
        elif isinstance(target, ast.Call):
            target = target.func
        else:
            return private
    return private and target.id not in ("self", "cls")


def _task_group_names(module: Module) -> set[str]:
    """Names bound by `async with TaskGroup() as name`, or of parameters annotated as one."""
    names = set()
    for node in module.nodes:
        if isinstance(node, ast.withitem) and isinstance(node.optional_vars, ast.Name):
            if isinstance(node.context_expr, ast.Call) and "TaskGroup" in ast.unparse(node.context_expr.func):
                names.add(node.optional_vars.id)
        elif isinstance(node, ast.arg) and node.annotation is not None and "TaskGroup" in ast.unparse(node.annotation):
            names.add(node.arg)
    return names


def _is_broad(caught: ast.expr | None) -> bool:
    if caught is None:
        return True
    options = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(ast.unparse(option).split(".")[-1] in ("Exception", "BaseException") for option in options)


def _raises_again(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None

"""Finds the graph that a configuration names, and says in one line why it cannot be used."""

import ast
import asyncio
import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
import sysconfig
import traceback
import typing
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final, Literal, NoReturn

from langchain_core.runnables import RunnableConfig
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel

from agentic_backend.agent.graph_input import MESSAGES
from backend_kit.settings.source import one_line

AnyGraph = Pregel[Any, Any, Any, Any]
"""A compiled graph, whatever its state, context, input and output."""

NAME: Final = "graph"
"""What a module's graph is called where the specification names no name."""
_SHOWN: Final = 8
_HERE: Final = Path(__file__).resolve().parents[3]
_PYTHON: Final = tuple(sysconfig.get_path(name) + "/" for name in ("stdlib", "platstdlib"))
_INSTALLED: Final = tuple(sysconfig.get_path(name) + "/" for name in ("purelib", "platlib"))
_PACKAGES: Final = ("agentic_backend", "backend_kit", "knowledge_flow_backend", "turnwise", "ws_bench")
_OURS: Final = tuple(f"{_HERE / package}/" for package in _PACKAGES)


class GraphUnusable(ValueError):
    """A graph that cannot be imported, made or served. The text is one line: file and line, where they are known, and
    the cause."""


class GraphFailed(GraphUnusable):
    """The user's own code raised."""


class LoadedGraph:
    """A graph by its specification: `static` once there is one graph for all runs, built for each run otherwise.

    `start` and `aclose` belong into one task, since what a builder opens may have to be closed where it was opened.
    """

    def __init__(self, spec: str, found: Any, place: "_Place") -> None:
        """`found` is the object of that name. Use `load_graph`."""
        self.spec = spec
        self._place = place
        self._builder: Callable[..., Any] | None = None
        self._argument: str | Literal[0] | None = None
        self._stack = AsyncExitStack()
        self._starting = asyncio.Lock()
        self.static: AnyGraph | None = _compiled(found, place)
        """The one graph of all runs. None before `start` where its builder is asynchronous, and always where the
        builder takes the run's configuration."""
        if self.static is not None:
            self._check(self.static)
            return
        if not callable(found):
            place.refuse(f"{place.name} is {_kind(found)}, neither a graph nor a function that makes one")
        self._builder = found
        self._argument = _argument_of(found, place)
        if self._argument is None and not inspect.iscoroutinefunction(found):
            self._build_now(found)

    @property
    def per_run(self) -> bool:
        """Whether the builder takes the configuration of a run, and so is called for each."""
        return self._argument is not None

    async def start(self) -> None:
        """Make the graph whose builder takes no configuration, once; further calls do nothing.

        Raises `GraphUnusable`.
        """
        async with self._starting:
            if self.static is None and not self.per_run:
                self.static = await self._build_graph(self._stack)

    @asynccontextmanager
    async def for_run(self, config: RunnableConfig) -> AsyncIterator[AnyGraph]:
        """The graph for a run; what its builder opened is closed afterwards. Raises `GraphUnusable`."""
        if self.static is None and not self.per_run:
            await self.start()
        if self.static is not None:
            yield self.static
            return
        async with AsyncExitStack() as stack:
            yield await self._build_graph(stack, config)

    async def aclose(self) -> None:
        """Close what builders opened."""
        await self._stack.aclose()

    def _build_now(self, builder: Callable[..., Any]) -> None:
        """Call a synchronous builder. What is not a graph yet is left to `start`, which calls it again."""
        with self._place.user_code():
            made = builder()
        if inspect.iscoroutine(made):
            made.close()
        elif not _opens(made) and not inspect.isawaitable(made):
            self.static = self._checked(made)

    async def _build_graph(self, stack: AsyncExitStack, config: RunnableConfig | None = None) -> AnyGraph:
        builder = self._builder
        assert builder is not None
        with self._place.user_code():
            if self._argument is None:
                made = builder()
            elif self._argument == 0:
                made = builder(config)
            else:
                made = builder(**{self._argument: config})
            if inspect.isawaitable(made):
                made = await made
            if hasattr(made, "__aenter__"):
                made = await stack.enter_async_context(made)
            elif hasattr(made, "__enter__"):
                made = stack.enter_context(made)
        return self._checked(made)

    def _checked(self, made: Any) -> AnyGraph:
        graph = _compiled(made, self._place)
        if graph is None:
            self._place.refuse(f"{self._place.name} makes {_kind(made)}, not a graph")
        self._check(graph)
        return graph

    def _check(self, graph: AnyGraph) -> None:
        """Refuse a graph that no door serves: one without messages in its state and in its input."""
        channels = sorted(name for name in graph.channels if _is_public(name))
        if graph.interrupt_before_nodes or graph.interrupt_after_nodes:
            self._place.refuse("is compiled with interrupt_before or interrupt_after: call interrupt() in a node")
        if MESSAGES not in channels:
            self._place.refuse(f"has no {MESSAGES} channel: {_listed('its channels are', channels, 'it has none')}")
        taken = input_channels(graph)
        if MESSAGES not in taken:
            self._place.refuse(f"takes no {MESSAGES}: {_listed('its input has', taken, 'its input is empty')}")


def load_graph(spec: str, *, base: Path | None = None) -> LoadedGraph:
    """The graph that `spec` names: `package.module:name`, `package.module` (its `graph`), or `./path/file.py:name`.

    The object is a compiled graph, a `StateGraph`, or a builder of one: a function, synchronous or not, or a factory of
    context managers, without an argument or with a run's `RunnableConfig`. A path is relative to `base`, else to the
    working directory. Imports the module, whose code runs. A synchronous builder without an argument is called here,
    any other by `LoadedGraph`. Raises `GraphUnusable`.
    """
    where, name = _parts(spec)
    module = _file_module(where, base) if _is_path(where) else _named_module(where)
    place = _Place(module, name)
    return LoadedGraph(spec, place.attribute(), place)


def import_agent(path: str) -> ModuleType:
    """The agent module that a `class_path` names. Raises `GraphUnusable` if it cannot be imported or has no `build`."""
    module = _named_module(path)
    if callable(getattr(module, "build", None)):
        return module
    place = f"{module.__file__ or path}:1"
    if hasattr(module, NAME):
        raise GraphUnusable(one_line(f"{place}: has a graph and no build(settings, kit): write graph: {path}:{NAME}"))
    raise GraphUnusable(one_line(f"{place}: has no build(settings, kit): {_has(module)}"))


def input_channels(graph: AnyGraph) -> list[str]:
    """The channels that a caller of the graph may fill, sorted."""
    if isinstance(builder := getattr(graph, "builder", None), StateGraph):
        return sorted(builder.schemas[builder.input_schema])
    taken = graph.input_channels
    return [taken] if isinstance(taken, str) else sorted(taken)


class _Place:
    """A name in a module of the user's, as error messages quote it."""

    def __init__(self, module: ModuleType, name: str) -> None:
        self.name = name
        self._module = module
        self._file = module.__file__ or module.__name__

    def attribute(self) -> Any:
        """The object of that name, which may be dotted. Raises `GraphUnusable`."""
        with self.user_code():
            found: Any = self._module
            for part in self.name.split("."):
                found = getattr(found, part, _NOTHING)
        if found is _NOTHING:
            raise GraphUnusable(one_line(f"{self._file}:1: has no {self.name}: {_has(self._module)}"))
        return found

    def refuse(self, cause: str) -> NoReturn:
        """Raise `GraphUnusable` with the place and the cause."""
        raise GraphUnusable(one_line(f"{self._file}:{_line_of(self._file, self.name)}: {cause}"))

    def user_code(self) -> "_UserCode":
        """A context in which the user's code runs."""
        return _UserCode(self._file)


class _UserCode:
    """Turns whatever a user's code raises into `GraphFailed`, except for an interrupted or cancelled program."""

    def __init__(self, file: str) -> None:
        self._file = file

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, GraphUnusable | KeyboardInterrupt | asyncio.CancelledError):
            return
        raise GraphFailed(one_line(f"{_place_of(error, self._file)}: {_cause_of(error)}")) from error


_NOTHING: Final = object()


def _parts(spec: str) -> tuple[str, str]:
    """Module or file, and name."""
    where, colon, name = spec.rpartition(":")
    if not colon:
        where, name = spec, NAME
    if not where or not all(part.isidentifier() for part in name.split(".")):
        raise GraphUnusable(one_line(f"{spec}: must be package.module:name or ./path/file.py:name"))
    return where, name


def _is_path(where: str) -> bool:
    return where.endswith(".py") or "/" in where


def _named_module(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise GraphUnusable(one_line(f"{name}: must be a module, as package.module"))
    with _UserCode(name):
        return importlib.import_module(name)


def _file_module(where: str, base: Path | None) -> ModuleType:
    """The module of a file, by the name that an import of it has where it has one: then its code runs only once, and
    what it pickles can be read elsewhere."""
    file = ((base or Path.cwd()) / where).resolve()
    if not file.is_file():
        raise GraphUnusable(one_line(f"{file}: is not there"))
    for root, name in _import_names(file):
        if str(root) not in sys.path:
            sys.path.append(str(root))
        with _UserCode(str(file)):
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.origin is not None and Path(spec.origin).resolve() == file:
                return importlib.import_module(name)
    return _lonely_module(file, where)


def _import_names(file: Path) -> Iterator[tuple[Path, str]]:
    """Names by which a file may be importable, each with the directory that has to be on the path for it: as part of
    its package, from what is on the path already, from its own directory."""
    dotted = file.parent if file.stem == "__init__" else file.with_suffix("")
    package = file.parent
    while (package / "__init__.py").is_file():
        package = package.parent
    on_path = {Path(entry).resolve() for entry in sys.path}
    roots = [package] if package != file.parent else []
    roots += [root for root in file.parents if root in on_path]
    for root in dict.fromkeys([*roots, file.parent]):
        parts = dotted.relative_to(root).parts
        if parts and all(part.isidentifier() for part in parts):
            yield root, ".".join(parts)


def _lonely_module(file: Path, where: str) -> ModuleType:
    """The module of a file that no import finds. Its name follows from how the file was named, not from where this
    machine has it."""
    name = f"turnwise_graph_{hashlib.sha256(where.encode()).hexdigest()[:8]}_{file.stem}"
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(file):
        return known
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _UserCode(str(file)):
            spec.loader.exec_module(module)
    except GraphUnusable:
        del sys.modules[name]
        raise
    return module


def _compiled(found: Any, place: _Place) -> AnyGraph | None:
    if isinstance(found, StateGraph):
        with place.user_code():
            return found.compile()
    return found if isinstance(found, Pregel) else None


def _argument_of(builder: Callable[..., Any], place: _Place) -> str | Literal[0] | None:
    """How a builder takes the run's configuration: by position (0), by a keyword, or not at all.

    It does if the argument is required, called `config` or annotated as a `RunnableConfig`.
    """
    try:
        signature = inspect.signature(builder)
    except (TypeError, ValueError):
        return None
    hints = _hints(builder)
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    taken = [one for one in signature.parameters.values() if one.kind not in variadic]
    if any("ServerRuntime" in str(hints.get(one.name, "")) for one in taken):
        place.refuse(f"{place.name} takes the ServerRuntime of LangSmith's server: let it take a RunnableConfig")
    required = [one.name for one in taken if one.default is inspect.Parameter.empty]
    if required[:2] == ["settings", "kit"]:
        place.refuse(f"{place.name}(settings, kit) is an agent's: name its module by class_path instead of {NAME}")
    if len(required) > 1:
        place.refuse(f"{place.name} requires {', '.join(required)}: a builder takes nothing or a run's RunnableConfig")
    for index, one in enumerate(taken):
        if one.name in required or one.name == "config" or "RunnableConfig" in str(hints.get(one.name, "")):
            return 0 if index == 0 and one.kind is not inspect.Parameter.KEYWORD_ONLY else one.name
    return None


def _hints(builder: Callable[..., Any]) -> Mapping[str, Any]:
    target = builder.func if isinstance(builder, functools.partial) else builder
    target = target if inspect.isroutine(target) else getattr(type(target), "__call__", target)  # noqa: B004 - its method
    target = inspect.unwrap(target)
    try:
        return typing.get_type_hints(target)
    except (NameError, TypeError, AttributeError):  # names that exist for type checkers only
        return getattr(target, "__annotations__", {})


def _opens(made: Any) -> bool:
    return hasattr(made, "__aenter__") or hasattr(made, "__enter__")


def _is_public(name: str) -> bool:
    return not name.startswith("__") and ":" not in name


def _kind(found: Any) -> str:
    name = type(found).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _listed(words: str, names: list[str], nothing: str) -> str:
    shown = ", ".join(names[:_SHOWN]) + (" …" if len(names) > _SHOWN else "")
    return f"{words} {shown}" if names else nothing


def _has(module: ModuleType) -> str:
    """The names of a module that may have been meant: its graphs, and its functions and classes."""
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    graphs = [name for name, value in public.items() if isinstance(value, Pregel | StateGraph)]
    own = [name for name, value in public.items() if getattr(value, "__module__", None) == module.__name__]
    return _listed("it has", graphs + own, "it defines nothing")


def _line_of(file: str, name: str) -> int:
    """The line that defines a name at the top level of a file, 1 if none does."""
    try:
        body = ast.parse(Path(file).read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return 1
    first = name.partition(".")[0]
    return next((node.lineno for node in reversed(body) if first in _bound(node)), 1)


def _bound(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name for alias in node.names}
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)}


def _place_of(error: BaseException, otherwise: str) -> str:
    """File and line of the user's own code that raised: the deepest frame that is neither a library's nor ours; of an
    installed package, the deepest one."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno or 1}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_pythons(frame.filename)]
    own = [frame for frame in frames if not frame.filename.startswith(_INSTALLED)]
    found = own or frames
    return f"{found[-1].filename}:{found[-1].lineno}" if found else otherwise


def _is_pythons(filename: str) -> bool:
    """Whether a frame's file is of Python itself or of this service."""
    if filename.startswith(("<", *_OURS)):
        return True
    return filename.startswith(_PYTHON) and not filename.startswith(_INSTALLED)


def _cause_of(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg}"
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"no module {error.name} is installed or on the path"
    if isinstance(error, SystemExit):
        return "it ends the program"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__

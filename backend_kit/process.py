"""The first steps of a service's process: arguments, log, settings. Imports nothing heavy."""

import argparse
import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from backend_kit.settings import ServiceSettings, load_or_exit

S = TypeVar("S", bound=ServiceSettings)


def arguments(package: str, description: str) -> argparse.ArgumentParser:
    """The parser of `python -m package`, which a service may add to."""
    parser = argparse.ArgumentParser(prog=f"python -m {package}", description=description)
    parser.add_argument("--check", action="store_true", help="only say whether the configuration can be used")
    return parser


def configure(model: type[S], *, check: bool, speaker: str = "") -> S:
    """Open the log on stderr and load the settings; each line of the log begins with `speaker`.

    Raises SystemExit: 2 for unusable settings, 0 after a successful `check`.
    """
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s %(levelname)s %(name)s {speaker}%(message)s")
    settings = load_or_exit(model)
    if check:
        raise SystemExit(0)
    logging.getLogger().setLevel(settings.app.log_level.upper())
    logging.getLogger("alembic").setLevel(logging.WARNING)  # we log the schema's revision ourselves
    return settings


@contextmanager
def heavy_imports() -> Iterator[None]:
    """Pause garbage collection during imports: they leave no garbage, and the search takes a twelfth of their time."""
    gc.disable()
    yield
    gc.enable()

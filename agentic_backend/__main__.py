"""The process of the agentic service: settings, the port and what is its alone first, then everything heavy."""

import argparse
import gc
import logging
import sys

from agentic_backend.settings import AgenticSettings
from backend_kit.settings import load_or_exit


def main() -> int:
    """Serve until a signal ends it.

    Exit codes: 0 drained, 1 forced, 2 bad configuration, taken port or unusable spool directory, 3 another process has
    the spool directory or the database (after a wait of up to 10 s at the start; drained where it is found out later).
    """
    parser = argparse.ArgumentParser(prog="python -m agentic_backend", description="The agentic service.")
    parser.add_argument("--check", action="store_true", help="only say whether the configuration can be used")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    settings = load_or_exit(AgenticSettings)
    if options.check:
        return 0
    logging.getLogger().setLevel(settings.app.log_level.upper())
    logging.getLogger("alembic").setLevel(logging.WARNING)  # we say ourselves which revision the schema is at
    from agentic_backend.spool.claim import EXIT_TAKEN, DatabaseTaken, take
    from agentic_backend.spool.spooldir import SpoolTaken, SpoolUnusable
    from backend_kit.http import CannotListen, listen

    try:
        sock = listen(settings.app.address, settings.app.port)
        possessions = take(settings)
    except (CannotListen, SpoolUnusable) as error:
        logging.getLogger(__name__).critical("%s", error)
        return 2
    except (SpoolTaken, DatabaseTaken) as error:
        logging.getLogger(__name__).critical("%s", error)
        return EXIT_TAKEN
    # Imports of LangGraph and SQLAlchemy take seconds: what can be known without them must not wait for them.
    # They leave nothing to collect, and to look for it would take a twelfth of their time.
    gc.disable()
    from agentic_backend.app import serve_app

    gc.enable()
    return serve_app(settings, sock, possessions)


if __name__ == "__main__":
    sys.exit(main())

"""The process of the agentic service: loads settings, binds the port, takes its locks, then imports the rest."""

import logging
import sys

from agentic_backend.settings import AgenticSettings
from backend_kit.process import arguments, configure, heavy_imports


def main() -> int:
    """Serve until a signal ends it.

    Exit codes: 0 drained, 1 forced, 2 bad configuration, taken port or unusable spool directory, 3 another process has
    the spool directory or the database (after a wait of up to 10 s at the start; after a drain if detected later).
    """
    options = arguments("agentic_backend", "The agentic service.").parse_args()
    settings = configure(AgenticSettings, check=options.check)
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
    # Importing LangGraph and SQLAlchemy takes seconds: errors that can be found without them must not wait for them.
    with heavy_imports():
        from agentic_backend.app import serve_app
    return serve_app(settings, sock, possessions)


if __name__ == "__main__":
    sys.exit(main())

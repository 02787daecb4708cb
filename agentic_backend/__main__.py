"""The process of the agentic service: settings first, then the port, then everything heavy."""

import logging
import sys

from agentic_backend.settings import AgenticSettings
from backend_kit.settings import load_or_exit


def main() -> int:
    """Serve until a signal ends it. Exit codes: 0 drained, 1 forced, 2 bad configuration or a taken port."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    settings = load_or_exit(AgenticSettings)
    logging.getLogger().setLevel(settings.app.log_level.upper())
    from backend_kit.http import CannotListen, listen

    try:
        sock = listen(settings.app.address, settings.app.port)
    except CannotListen as error:
        logging.getLogger(__name__).critical("%s", error)
        return 2
    # Imports of LangGraph and SQLAlchemy take seconds: a typo in the file or a taken port must not wait for them.
    from agentic_backend.app import serve_app

    return serve_app(settings, sock)


if __name__ == "__main__":
    sys.exit(main())

"""The process of the knowledge-flow service: settings first, then the port, then everything heavy."""

import logging
import os
import socket
import sys

from backend_kit.http import CannotListen, listen
from backend_kit.process import arguments, configure, end_at_once, heavy_imports
from backend_kit.workers import EXIT_REFUSED, bind_beside_others, end_with, serve_workers
from knowledge_flow_backend.settings import KnowledgeFlowSettings

_KILL_AFTER_DRAIN_S = 10.0


def main() -> int:
    """Serve until a signal ends it. Exit codes: 0 drained, 1 forced, 2 bad configuration or a taken port."""
    parser = arguments("knowledge_flow_backend", "The knowledge-flow service.")
    options = parser.parse_args()
    settings = configure(KnowledgeFlowSettings, check=options.check, worker=options.worker)
    app = settings.app
    try:
        if options.worker is not None:
            return _work(settings, options.worker, options.lifeline)
        if app.workers > 1:
            # This process only watches: it imports nothing heavy and serves nothing.
            kill_after_s = settings.deadlines.drain_s + _KILL_AFTER_DRAIN_S
            return serve_workers("knowledge_flow_backend", app, kill_after_s=kill_after_s)
        sock = listen(app.address, app.port)
    except CannotListen as error:
        logging.getLogger(__name__).critical("%s", error)
        return EXIT_REFUSED
    return _serve(settings, sock)


def _work(settings: KnowledgeFlowSettings, number: int, lifeline: int) -> int:
    end_with(lifeline)
    sock = bind_beside_others(settings.app.address, settings.app.port)
    return _serve(settings.model_copy(update={"app": settings.app.of_worker(number)}), sock)


def _serve(settings: KnowledgeFlowSettings, sock: socket.socket) -> int:
    # The tokenizer would start threads of its own beside ours.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Imports of onnxruntime and SQLAlchemy take seconds: a typo in the file must not wait for them.
    with heavy_imports():
        from knowledge_flow_backend.app import serve_app
    code = serve_app(settings, sock)
    end_at_once()
    return code


if __name__ == "__main__":
    sys.exit(main())

"""The process of the knowledge-flow service: settings first, then the port, then everything heavy."""

import argparse
import asyncio
import logging
import os
import socket
import sys

from backend_kit.http import CannotListen, listen
from backend_kit.process import arguments, configure, heavy_imports
from knowledge_flow_backend.settings import KnowledgeFlowSettings
from knowledge_flow_backend.supervise import EXIT_REFUSED, Workers, end_with, hold_port, listen_beside_others

_KILL_AFTER_DRAIN_S = 10.0


def main() -> int:
    """Serve until a signal ends it. Exit codes: 0 drained, 1 forced, 2 bad configuration or a taken port."""
    parser = arguments("knowledge_flow_backend", "The knowledge-flow service.")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--lifeline", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    speaker = "" if options.worker is None else f"[worker {options.worker}] "
    settings = configure(KnowledgeFlowSettings, check=options.check, speaker=speaker)
    try:
        if options.worker is not None:
            return _work(settings, options.worker, options.lifeline)
        if settings.app.workers > 1:
            return _supervise(settings)
        sock = listen(settings.app.address, settings.app.port)
    except CannotListen as error:
        logging.getLogger(__name__).critical("%s", error)
        return EXIT_REFUSED
    return _serve(settings, sock)


def _supervise(settings: KnowledgeFlowSettings) -> int:
    """This process only watches: it imports nothing heavy and serves nothing."""

    def command(number: int, lifeline: int) -> list[str]:
        module = [sys.executable, "-m", "knowledge_flow_backend"]
        return [*module, "--worker", str(number), "--lifeline", str(lifeline)]

    async def run() -> int:
        kill_after_s = settings.deadlines.drain_s + _KILL_AFTER_DRAIN_S
        return await Workers(settings.app.workers, command, kill_after_s=kill_after_s).supervise_workers()

    with hold_port(settings.app.address, settings.app.port):
        return asyncio.run(run())


def _work(settings: KnowledgeFlowSettings, number: int, lifeline: int) -> int:
    end_with(lifeline)
    sock = listen_beside_others(settings.app.address, settings.app.port)
    # Each process has a metrics port of its own: one registry and one scrape target a process.
    app = settings.app.model_copy(update={"metrics_port": settings.app.metrics_ports[number]})
    return _serve(settings.model_copy(update={"app": app}), sock)


def _serve(settings: KnowledgeFlowSettings, sock: socket.socket) -> int:
    # The tokenizer would start threads of its own beside ours.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Imports of onnxruntime and SQLAlchemy take seconds: a typo in the file must not wait for them.
    with heavy_imports():
        from knowledge_flow_backend.app import serve_app
    return serve_app(settings, sock)


if __name__ == "__main__":
    sys.exit(main())

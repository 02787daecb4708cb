"""`python -m deploy.grafana.annotate COMMAND …` marks on Grafana's dashboards when a load test began and ended."""

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from typing import Any

from deploy.grafana.model import BENCH_TAG

_TIMEOUT_S = 10.0
TOKEN_VARIABLE = "GRAFANA_TOKEN"  # noqa: S105 - the name of a variable


class Annotations:
    """The annotations of one Grafana. Its methods raise OSError if it cannot be reached or refuses."""

    def __init__(self, url: str, token: str | None) -> None:
        """`url` is its root; `token` belongs to a service account that may write annotations, None if anyone may."""
        self._url = url.rstrip("/") + "/api/annotations"
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def mark_begin(self, text: str, tags: Sequence[str]) -> int:
        """Mark this moment and return the mark's id. Raises KeyError or ValueError for an answer without one."""
        body = {"time": _now_ms(), "tags": [BENCH_TAG, *tags], "text": text}
        return int(self._send("POST", self._url, body)["id"])

    def mark_end(self, mark: int, text: str) -> None:
        """Make the mark a region that ends now, with another text."""
        self._send("PATCH", f"{self._url}/{mark}", {"timeEnd": _now_ms(), "text": text})

    def _send(self, method: str, url: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(url, json.dumps(body).encode(), self._headers, method=method)  # noqa: S310 - as below
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - the operator's own URL
            return json.load(answer)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command between two marks and return its exit code. It runs even if Grafana does not answer."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.grafana.annotate",
        description=f"Run a command and mark it on the dashboards. {TOKEN_VARIABLE}: token of a service account.",
    )
    parser.add_argument("--url", default="http://127.0.0.1:3000", help="Grafana (default: %(default)s)")
    parser.add_argument("--text", help="what the mark says; the command where it is left out")
    parser.add_argument("--tag", action="append", default=[], help=f"a tag beside {BENCH_TAG}; may be given again")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command and its arguments")
    options = parser.parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("a command is required")
    grafana = Annotations(options.url, os.environ.get(TOKEN_VARIABLE))
    text = options.text or shlex.join(command)
    mark = _begin(grafana, text, options.tag)
    code = _run(command)
    if mark is not None:
        _end(grafana, mark, f"{text} (exit code {code})")
    return code


def _run(command: Sequence[str]) -> int:
    """The exit code as a shell reports it: 127 if the program cannot be run, 128 + N after signal N."""
    try:
        process = subprocess.Popen(command)  # noqa: S603 - the operator's own command
    except OSError as error:
        _say(f"{command[0]}: {error.strerror}")
        return 127
    while True:
        try:
            code = process.wait()
            return code if code >= 0 else 128 - code
        except KeyboardInterrupt:
            # Ctrl-C reached the command too: wait for it to end in its own way, then mark the end.
            continue


def _begin(grafana: Annotations, text: str, tags: Sequence[str]) -> int | None:
    try:
        return grafana.mark_begin(text, tags)
    except (OSError, ValueError, KeyError) as error:
        _say(f"the begin is not marked: {error}")
        return None


def _end(grafana: Annotations, mark: int, text: str) -> None:
    try:
        grafana.mark_end(mark, text)
    except (OSError, ValueError) as error:
        _say(f"the end is not marked: {error}")


def _say(text: str) -> None:
    sys.stderr.write(f"annotate: {text}\n")


def _now_ms() -> int:
    return round(time.time() * 1000)


if __name__ == "__main__":
    sys.exit(main())

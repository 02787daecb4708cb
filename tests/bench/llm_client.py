"""CPU of the model client per 50-token turn: ChatOpenAI as it comes against ours.

Hypothesis: dict chunks over aiohttp cost at most a quarter of the default client (docs/libraries.md#the-openai-client).
Control: the same `ChatOpenAI.astream`, one shared instance, keep-alive on, `stream_usage` on, the same mock model.
Command: `python -m tests.bench.llm_client [--rounds 5] [--turns 160]`. Exit code 1 where the paced ratio is above 0.25.

"apart" is ours with a chunk for every token (`coalesce=False`); "ours" makes one chunk of texts that arrived in one
read, which a paced stream on an idle loop never does, so the bound is on the paced mode.

All are run in turn in one process, so that a slow phase of the machine hits all; the mock model is a process of its
own and not in the figures. The least of the rounds counts: other work on the machine only ever adds. Every turn's
text is compared before it may count.
"""

import argparse
import asyncio
import gc
import sys
import time

import uvloop
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from agentic_backend.llm import Endpoint, ModelPool
from tests.support.ports import free_port
from tests.support.processes import ModuleProcess

BOUND = 0.25
TOKENS = 50
CONCURRENT = 16
MODES = {"burst": f"mock;tokens={TOKENS}", "paced": f"mock;tokens={TOKENS};gap=5"}


async def turn(model: BaseChatModel) -> str:
    """One turn's whole text."""
    pieces = [str(chunk.content) async for chunk in model.astream("Hello")]
    return "".join(pieces)


async def cpu_ms(model: BaseChatModel, turns: int, text: str) -> float:
    """CPU milliseconds a turn over `turns` turns, `CONCURRENT` at once."""

    async def client() -> None:
        for _ in range(turns // CONCURRENT):
            assert await turn(model) == text

    started = time.process_time()
    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENT):
            group.create_task(client())
    return (time.process_time() - started) * 1e3 / (turns // CONCURRENT * CONCURRENT)


async def measure(base_url: str, rounds: int, turns: int) -> float:
    """Print a table; return the ratio of the paced mode, the one that a real model resembles."""
    pool = ModelPool()
    ratio = 1.0
    print(f"{TOKENS} tokens a turn, {CONCURRENT} at once, {turns} turns a round, least of {rounds} rounds")
    print(f"{'mode':8}{'default ms':>12}{'apart ms':>12}{'ours ms':>12}{'ratio apart':>14}{'ratio ours':>13}")
    for mode, name in MODES.items():
        models: dict[str, BaseChatModel] = {
            "default": ChatOpenAI(model=name, base_url=base_url, api_key=SecretStr("none"), stream_usage=True),
            "apart": pool.chat_model(Endpoint(base_url, name, coalesce=False)),
            "ours": pool.chat_model(Endpoint(base_url, name)),
        }
        text = await turn(models["default"])
        gc.collect()
        gc.freeze()
        samples: dict[str, list[float]] = {key: [] for key in models}
        for _ in range(rounds):
            for key, model in models.items():
                samples[key].append(await cpu_ms(model, turns, text))
        default, apart, ours = (min(samples[key]) for key in models)
        ratio = ours / default
        print(f"{mode:8}{default:12.2f}{apart:12.2f}{ours:12.2f}{apart / default:14.3f}{ratio:13.3f}")
    await pool.aclose()
    return ratio


def main() -> int:
    """Run against a mock model of our own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turns", type=int, default=160)
    options = parser.parse_args()
    port = free_port()
    with ModuleProcess("ws_bench", "mock-llm", "--port", str(port)) as process:
        process.wait_for_http(f"http://127.0.0.1:{port}/v1/models")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            ratio = runner.run(measure(f"http://127.0.0.1:{port}/v1", options.rounds, options.turns))
    print(f"paced ratio {ratio:.3f}, bound {BOUND}")
    return 0 if ratio <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())

"""A tiny model with a tokenizer, and ways to ask an engine that serves it."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import torch

from recipes.quickstart.tokenizer import build_tokenizer
from slime.backends.embedded.decoding import Generation
from slime.backends.embedded.engine import EmbeddedEngine
from slime.backends.embedded.sampling import SamplingParams
from slime.backends.embedded.server import EmbeddedServer
from tests.tiny import save_tiny_model

# Matrices this small gain nothing from threads, and on a busy machine threads that wait for each other cost a lot.
torch.set_num_threads(1)

T = TypeVar("T")
TIMEOUT_SECONDS = 60
CONTEXT = 128


def save_chat_model(folder: Path, seed: int = 0, **config: Any) -> Path:
    """A checkpoint folder of two layers, whose tokenizer has one token a character and a chat template."""
    tokenizer = build_tokenizer()
    settings = {"eos_token_id": tokenizer.eos_token_id, "max_position_embeddings": CONTEXT, **config}
    save_tiny_model(folder, seed=seed, vocab_size=len(tokenizer), **settings)
    tokenizer.save_pretrained(folder)
    return folder


@contextmanager
def open_engine(folder: Path) -> Iterator[EmbeddedEngine]:
    """An engine without a server."""
    engine = EmbeddedEngine(str(folder), seed=1, bf16=False)
    try:
        yield engine
    finally:
        engine.scheduler.close()


@contextmanager
def open_server(folder: Path) -> Iterator[EmbeddedServer]:
    """An engine behind HTTP."""
    server = EmbeddedServer(EmbeddedEngine(str(folder), seed=1, bf16=False))
    try:
        yield server
    finally:
        server.close()


def generate(engine: EmbeddedEngine, prompts: Sequence[list[int]], *params: SamplingParams) -> list[Generation]:
    """Generate from all prompts together; one SamplingParams serves them all, or each has its own."""
    each = params * len(prompts) if len(params) == 1 else params
    futures = [
        engine.scheduler.submit(engine.generation(f"request {i}", prompt, own))
        for i, (prompt, own) in enumerate(zip(prompts, each, strict=True))
    ]
    return [future.result(TIMEOUT_SECONDS) for future in futures]


async def ask(server: EmbeddedServer, path: str, json: Any = None, method: str = "POST") -> tuple[int, Any]:
    """Status and answer of one HTTP request."""
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)) as session,
        session.request(method, f"http://{server.host}:{server.port}{path}", json=json) as answer,
    ):
        is_json = answer.content_type == "application/json"
        return answer.status, await (answer.json() if is_json else answer.text())


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run asynchronous work, for a limited time."""
    return asyncio.run(asyncio.wait_for(work, TIMEOUT_SECONDS))


def wait_until(condition: Callable[[], bool]) -> None:
    """Return once the condition holds, which another thread will bring about."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class GatedModel:
    """A model that computes a token only when the test lets it."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self.model, engine.scheduler.model = engine.model, self
        self.permits, self.begun = threading.Semaphore(0), threading.Semaphore(0)
        self.error: Exception | None = None
        self.rows: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, **inputs: Any) -> Any:
        self.rows.append(len(inputs["input_ids"]))
        self.begun.release()
        assert self.permits.acquire(timeout=TIMEOUT_SECONDS)
        if self.error is not None:
            raise self.error
        return self.model(**inputs)

    def open(self) -> None:
        """Let everything through from now on."""
        self.permits.release(10**6)

    def wait_for_step(self) -> None:
        """Return once a token is about to be computed."""
        assert self.begun.acquire(timeout=TIMEOUT_SECONDS)

"""Engines that write down what they are asked, and answer as they are told."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from slime.backends.engines import Engines

Answers = dict[str, tuple[int, Any]]


class FakeEngine:
    """SGLang's addresses for weights, without weights. `answers` overrides by path; None as the status is no such address."""

    def __init__(self, answers: Answers | None = None) -> None:
        self.answers, self.asked = answers or {}, list[tuple[str, Any]]()
        self.version = "0"
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.url = asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()

    async def _open(self) -> str:
        app = web.Application(client_max_size=2**30)
        app.add_routes([web.route("*", "/{path:.*}", self._answer)])
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _answer(self, request: web.Request) -> web.Response:
        body: Any = await request.json() if request.method == "POST" else None
        self.asked.append((request.path, body))
        if request.path in self.answers:
            status, answer = self.answers[request.path]
            return web.json_response(answer, status=status)
        if request.path == "/update_weight_version":
            self.version = body["new_version"]
        if request.path == "/update_weights_from_disk":
            self.version = body["weight_version"]
        return web.json_response({"success": True, "weight_version": self.version})

    def paths(self) -> list[str]:
        """What was asked, in order."""
        return [path for path, _ in self.asked]

    def close(self) -> None:
        """No longer reachable."""
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()


@contextmanager
def open_engines(*answers: Answers) -> Iterator[list[FakeEngine]]:
    """One for each dict of answers."""
    engines = [FakeEngine(each) for each in answers]
    try:
        yield engines
    finally:
        for engine in engines:
            engine.close()


class FakeCluster(Engines):
    """Puts a new engine in the place of each that is not reachable."""

    def __init__(self, engines: list[FakeEngine]) -> None:
        self.engines, self.urls = engines, [engine.url for engine in engines]
        self.replaced: list[tuple[str, int]] = []
        self.dead: list[int] = []

    def replace_dead(self, folder: Callable[[], str], version: int, patience: float = 0.0) -> list[str]:
        """Those whose places are in `dead`."""
        for place in self.dead:
            self.replaced.append((folder(), version))
            self.engines[place].close()
            self.engines[place] = FakeEngine()
            self.engines[place].version = str(version)
            self.urls[place] = self.engines[place].url
        died, self.dead = [str(place) for place in self.dead], []
        return died

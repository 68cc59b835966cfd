"""One address for several engines: each request goes to the next one in turn, and stays here while an engine is replaced."""

import asyncio
import itertools
import threading
from collections.abc import Sequence

import aiohttp
from aiohttp import web

_PAUSE = 0.1


class Router:
    """Forwards POST /generate on loopback. Weight updates and the like go to the engines themselves."""

    def __init__(self, engine_urls: Sequence[str], host: str = "127.0.0.1") -> None:
        """Takes a free port; see `host` and `port`."""
        self.host = host
        self._urls = list(engine_urls)
        self._turns = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="router", daemon=True)
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()

    async def _open(self) -> int:
        no_limit = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(connector=no_limit, timeout=aiohttp.ClientTimeout(total=None))
        app = web.Application(client_max_size=64 * 1024**2)
        app.add_routes([web.post("/generate", self._forward)])
        # A client that goes away takes its request to the engine with it.
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, self.host, 0, backlog=4096).start()
        port: int = self._runner.addresses[0][1]
        return port

    def replace(self, old: str, new: str) -> None:
        """Send to engine `new` what would have gone to `old`."""
        self._urls[self._urls.index(old)] = new

    async def _forward(self, request: web.Request) -> web.Response:
        """What an engine took with it when it died is asked again: of the next one, until one answers or the client goes."""
        body = await request.read()
        while True:
            url = f"{self._urls[next(self._turns) % len(self._urls)]}/generate"
            try:
                async with self._session.post(url, data=body, headers={"Content-Type": "application/json"}) as answer:
                    return web.Response(status=answer.status, body=await answer.read(), content_type=answer.content_type)
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(_PAUSE)

    def close(self) -> None:
        """Stop forwarding."""

        async def stop() -> None:
            await self._runner.cleanup()
            await self._session.close()

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

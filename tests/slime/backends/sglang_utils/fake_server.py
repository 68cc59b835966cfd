"""A program that behaves as an SGLang server does towards whoever starts it: fake_server.py PORT WAY …"""

import asyncio
import os
import signal
import subprocess
import sys

from aiohttp import web


async def serve(port: int) -> None:
    """Warming up for the first two questions, then healthy, for ever."""
    asked = 0

    async def health(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        if asked < 3:
            return web.Response(status=503)
        print("healthy", flush=True)
        return web.Response()

    app = web.Application()
    app.add_routes([web.get("/health_generate", health)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    print("listening", flush=True)
    await asyncio.Event().wait()


def main(port: int, way: str) -> None:
    """`fail`: end with words. `hang`: never listen. `die`: be killed while starting. `serve`: as above, with a child process
    whose id it prints."""
    if way == "fail":
        print("loading\n\nno such model: nowhere", file=sys.stderr)
        sys.exit(3)
    if way == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    child = subprocess.Popen(["sleep", "600"])
    print(f"child {child.pid}", flush=True)
    if way == "hang":
        child.wait()
    asyncio.run(serve(port))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])

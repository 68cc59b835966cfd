"""HTTP from rollout code to engines."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import aiohttp

_RETRY_SECONDS = 1.0
_session: ContextVar[aiohttp.ClientSession | None] = ContextVar("session", default=None)


@asynccontextmanager
async def shared_connections() -> AsyncIterator[None]:
    """Within this, all `post` share one pool of connections. Outside it, each opens one of its own."""
    async with _new_session() as session:
        token = _session.set(session)
        try:
            yield
        finally:
            _session.reset(token)


def _new_session() -> aiohttp.ClientSession:
    # Generation takes as long as it takes, and the number of requests in flight is the caller's to limit.
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), connector=aiohttp.TCPConnector(limit=0))


async def post(url: str, payload: dict[str, Any], max_retries: int = 60, action: str = "post") -> Any:
    """Send JSON and return the JSON answered.

    A server that can't be reached, or answers 5xx, is tried again every second, `max_retries` times in all; then the last
    error is raised. A 4xx answer is our own mistake and is raised at once, with what the server said.
    """
    session = _session.get()
    if session is None:
        async with shared_connections():
            return await post(url, payload, max_retries, action)
    for attempt in range(1, max_retries + 1):
        try:
            return await _send(session, url, payload, action)
        except aiohttp.ClientError:
            if attempt >= max_retries:
                raise
        await asyncio.sleep(_RETRY_SECONDS)
    raise ValueError(f"max_retries must be at least 1, got {max_retries}")


async def _send(session: aiohttp.ClientSession, url: str, payload: dict[str, Any], action: str) -> Any:
    async with session.request(action, url, json=payload) as response:
        if 400 <= response.status < 500:
            raise RuntimeError(f"{url} answered {response.status}: {(await response.text())[:500]}")
        if not response.ok:
            message = (await response.text())[:500] or response.reason or ""
            raise aiohttp.ClientResponseError(response.request_info, response.history, status=response.status, message=message)
        return await response.json()

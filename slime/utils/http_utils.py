"""HTTP from rollout code to engines."""

import asyncio
from typing import Any

import aiohttp

_RETRY_SECONDS = 1.0


async def post(url: str, payload: dict[str, Any], max_retries: int = 60, action: str = "post") -> Any:
    """Send JSON and return the JSON answered.

    A server that can't be reached, or answers 5xx, is tried again every second, `max_retries` times in all; then the last error is
    raised. A 4xx answer is our own mistake and is raised at once, with what the server said.
    """
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        for attempt in range(max_retries):
            try:
                async with session.request(action, url, json=payload) as response:
                    if 400 <= response.status < 500:
                        raise RuntimeError(f"{url} answered {response.status}: {(await response.text())[:500]}")
                    response.raise_for_status()
                    return await response.json()
            except aiohttp.ClientError:
                if attempt == max_retries - 1:
                    raise
                await asyncio.sleep(_RETRY_SECONDS)
    raise ValueError(f"max_retries must be at least 1, got {max_retries}")

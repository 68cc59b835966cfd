"""Questions to several engines at once, in SGLang's HTTP protocol."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp


@dataclass(frozen=True)
class Answer:
    """What an engine said."""

    status: int
    """Of HTTP; 0 if it could not be reached."""
    body: Any
    """Parsed JSON, or text."""

    @property
    def ok(self) -> bool:
        """Whether it did what it was asked."""
        return self.status == 200

    def __str__(self) -> str:
        said = self.body.get("message", self.body) if isinstance(self.body, dict) else self.body
        return f"can't be reached: {said}" if self.status == 0 else f"answered {self.status}: {str(said)[:500]}"


def ask(url: str, path: str, payload: Mapping[str, Any] | None = None, timeout: float | None = None) -> Answer:
    """One engine: POST with a payload, GET without one. `timeout` in seconds, None for as long as it takes."""
    return ask_all([url], path, payload, timeout)[url]


def ask_all(
    urls: Iterable[str], path: str, payload: Mapping[str, Any] | None = None, timeout: float | None = None
) -> dict[str, Answer]:
    """The same question to all; answers by engine."""
    return asyncio.run(_ask_all(list(urls), path, payload, timeout))


async def _ask_all(urls: list[str], path: str, payload: Mapping[str, Any] | None, timeout: float | None) -> dict[str, Answer]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout)) as session:
        answers = await asyncio.gather(*(_ask(session, f"{url}{path}", payload) for url in urls))
    return dict(zip(urls, answers, strict=True))


async def _ask(session: aiohttp.ClientSession, url: str, payload: Mapping[str, Any] | None) -> Answer:
    try:
        async with session.request("GET" if payload is None else "POST", url, json=payload) as response:
            is_json = response.content_type == "application/json"
            return Answer(response.status, await (response.json() if is_json else response.text()))
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        return Answer(0, str(error) or type(error).__name__)

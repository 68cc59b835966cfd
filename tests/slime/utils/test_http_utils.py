"""HTTP from rollout code to engines."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web

from slime.utils import http_utils
from slime.utils.http_utils import post, shared_connections

Handler = Callable[[web.Request], Awaitable[web.Response]]


@pytest.fixture(autouse=True)
def _retry_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_utils, "_RETRY_SECONDS", 0.0)


def with_server(handler: Handler, client: Callable[[str], Awaitable[object]]) -> object:
    """What `client(url)` returns while a server answers by `handler`."""

    async def work() -> object:
        async def answer(request: web.Request) -> web.Response:
            return await handler(request)

        app = web.Application()
        app.add_routes([web.route("*", "/", answer)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            return await client(f"http://127.0.0.1:{runner.addresses[0][1]}/")
        finally:
            await runner.cleanup()

    return asyncio.run(work())


class Answers:
    """A server that answers these statuses one after another, and counts."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.requests: list[tuple[str, object]] = []

    async def __call__(self, request: web.Request) -> web.Response:
        self.requests.append((request.method, await request.json()))
        status = self.statuses.pop(0)
        if status == 200:
            return web.json_response({"answer": 42})
        return web.Response(status=status, text=f"the reason for {status}")


def test_json_goes_out_and_json_comes_back() -> None:
    answers = Answers(200)
    assert with_server(answers, lambda url: post(url, {"a": [1, "é"]})) == {"answer": 42}
    assert answers.requests == [("POST", {"a": [1, "é"]})]


def test_another_method_can_be_named() -> None:
    answers = Answers(200)
    with_server(answers, lambda url: post(url, {}, action="put"))
    assert answers.requests == [("PUT", {})]


@pytest.mark.parametrize("status", [400, 404, 422])
def test_a_mistake_of_ours_is_raised_at_once_with_what_the_server_said(status: int) -> None:
    answers = Answers(status, 200)
    with pytest.raises(RuntimeError, match=rf"answered {status}: the reason for {status}"):
        with_server(answers, lambda url: post(url, {}))
    assert len(answers.requests) == 1


def test_a_server_that_is_not_ready_is_tried_again() -> None:
    answers = Answers(503, 500, 200)
    assert with_server(answers, lambda url: post(url, {})) == {"answer": 42}
    assert len(answers.requests) == 3


def test_after_the_last_try_the_error_says_what_the_server_said() -> None:
    answers = Answers(503, 503, 500, 200)
    with pytest.raises(aiohttp.ClientResponseError, match="the reason for 500") as caught:
        with_server(answers, lambda url: post(url, {}, max_retries=3))
    assert (caught.value.status, len(answers.requests)) == (500, 3)


def test_a_server_that_cannot_be_reached_is_raised_after_the_last_try(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[object] = []
    send = http_utils._send

    async def counted(*args: object) -> object:
        tries.append(args)
        return await send(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(http_utils, "_send", counted)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/"
        with pytest.raises(aiohttp.ClientConnectorError):
            asyncio.run(post(url, {}, max_retries=2))
    assert len(tries) == 2


def test_a_connection_that_breaks_is_tried_again() -> None:
    calls: list[web.Request] = []

    async def handler(request: web.Request) -> web.Response:
        calls.append(request)
        assert request.transport is not None
        if len(calls) == 1:
            request.transport.abort()
        return web.json_response({"answer": 42})

    assert with_server(handler, lambda url: post(url, {})) == {"answer": 42}
    assert len(calls) == 2


def test_no_try_at_all_is_an_error() -> None:
    with pytest.raises(ValueError, match="max_retries must be at least 1"):
        asyncio.run(post("http://127.0.0.1:1/", {}, max_retries=0))


def test_within_shared_connections_posts_use_one_pool_and_after_it_none_is_left() -> None:
    peers: set[object] = set()

    async def handler(request: web.Request) -> web.Response:
        assert request.transport is not None
        peers.add(request.transport.get_extra_info("peername"))
        return web.json_response({})

    async def client(url: str) -> None:
        async with shared_connections():
            for _ in range(3):
                await post(url, {})
        assert len(peers) == 1
        for _ in range(2):
            await post(url, {})
        assert len(peers) == 3

    with_server(handler, client)

"""A reward model behind HTTP, by a real server."""

import asyncio
import re
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from slime.arguments.errors import UserError
from slime.rollout.rm_hub.dispatch import async_rm, batched_async_rm
from slime.utils import http_utils
from slime.utils.types import Sample

SAMPLE = Sample(index=17, prompt="How many?", response="so \\boxed{4}", label={"right": 4})
requests: list[Any] = []


@pytest.fixture(autouse=True)
def _retry_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_utils, "_RETRY_SECONDS", 0.0)
    requests.clear()


def rewards(*answers: Any, rm_type: str = "remote_rm", key: str | None = None, count: int = 1) -> list[Any]:
    """The rewards of `count` samples while a server gives these answers, the last of them again and again."""

    async def answer(request: web.Request) -> web.Response:
        requests.append(await request.json())
        given = answers[min(len(requests), len(answers)) - 1]
        return web.Response(**given.kwargs) if isinstance(given, Broken) else web.json_response(given)

    async def work() -> list[Any]:
        app = web.Application()
        app.add_routes([web.post("/score", answer)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/score"
        args = SimpleNamespace(custom_rm_path=None, rm_type=rm_type, rm_url=url, reward_key=key)
        try:
            return [await async_rm(args, SAMPLE)] if count == 1 else await batched_async_rm(args, [SAMPLE] * count)
        finally:
            await runner.cleanup()

    return asyncio.run(work())


class Broken:
    """An answer that is no JSON."""

    def __init__(self, **kwargs: Any) -> None:
        self.kwargs = kwargs


def test_prompt_response_and_label_are_sent_and_the_number_comes_back() -> None:
    assert rewards(0.25) == [0.25]
    assert requests == [{"prompt": "How many?", "response": "so \\boxed{4}", "label": {"right": 4}}]


def test_with_the_prefix_only_the_boxed_answer_is_sent() -> None:
    assert rewards(1, rm_type="boxed_remote_rm") == [1]
    assert requests == [{"prompt": "How many?", "response": "4", "label": {"right": 4}}]


def test_a_group_is_asked_for_sample_by_sample() -> None:
    assert sorted(rewards(1, 2, 3, count=3)) == [1, 2, 3]


def test_the_reward_key_picks_from_a_dict() -> None:
    assert rewards({"score": 0.5, "why": "short"}, key="score") == [{"score": 0.5, "why": "short"}]


@pytest.mark.parametrize("answer", ["0.5", {"reward": 0.5}, [0.5], None])
def test_an_answer_that_is_no_number_names_url_and_sample(answer: Any) -> None:
    with pytest.raises(UserError) as caught:
        rewards(answer)
    pattern = (
        rf"reward function --rm-type remote_rm at --rm-url http://127\S+/score returned {re.escape(repr(answer))}, no finite"
    )
    assert re.search(pattern, str(caught.value))
    assert "for sample 17" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_server_that_stumbles_is_asked_again() -> None:
    assert rewards(Broken(status=503), Broken(status=500), 0.5) == [0.5]


FAILURES = [
    (Broken(status=500), 10),
    (Broken(status=400, text="bad"), 1),
    (Broken(text="{", content_type="application/json"), 1),
]


@pytest.mark.parametrize(("broken", "tries"), FAILURES)
def test_a_server_that_fails_names_url_and_sample(broken: Broken, tries: int) -> None:
    with pytest.raises(UserError, match=r"--rm-url http://127\S+/score raised on sample 17"):
        rewards(broken)
    assert len(requests) == tries

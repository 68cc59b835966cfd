"""The engine over HTTP, in SGLang's protocol."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from slime.backends.embedded.server import EmbeddedServer
from slime.backends.router import Router
from tests.slime.backends.embedded.engines import TIMEOUT_SECONDS, ask, open_server, run, save_chat_model, wait_until

GREEDY = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}
REQUEST = {"input_ids": [10, 20, 30], "sampling_params": GREEDY, "return_logprob": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_chat_model(tmp_path_factory.mktemp("server") / "model")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[EmbeddedServer]:
    with open_server(folder) as opened:
        yield opened


def post(server: Any, path: str, json: Any = None) -> tuple[int, Any]:
    return run(ask(server, path, json))


def waiting(server: EmbeddedServer) -> int:
    return len(server.engine.scheduler._waiting)


def test_an_answer_has_text_tokens_log_probs_and_sglangs_meta_info(server: EmbeddedServer) -> None:
    status, answer = post(server, "/generate", {**REQUEST, "rid": "mine"})
    assert status == 200
    meta = answer["meta_info"]
    assert (meta["id"], meta["weight_version"], meta["prompt_tokens"], meta["completion_tokens"]) == ("mine", "0", 3, 6)
    assert meta["finish_reason"] == {"type": "length", "length": 6}
    assert [entry[1] for entry in meta["output_token_logprobs"]] == answer["output_ids"]
    assert all(log_prob < 0 and text is None for log_prob, _, text in meta["output_token_logprobs"])
    assert answer["text"] == server.engine.tokenizer.decode(answer["output_ids"], skip_special_tokens=True)


def test_log_probs_come_only_when_asked_for_and_ids_are_made_up_when_not_given(server: EmbeddedServer) -> None:
    request = {"input_ids": [10], "sampling_params": GREEDY}
    first, second = (post(server, "/generate", request)[1]["meta_info"] for _ in range(2))
    assert "output_token_logprobs" not in first
    assert first["id"] != second["id"]


def test_a_prompt_may_be_text(server: EmbeddedServer) -> None:
    ids = server.engine.tokenizer.encode("abc")
    answers = [
        post(server, "/generate", {**prompt, "sampling_params": GREEDY})[1] for prompt in ({"text": "abc"}, {"input_ids": ids})
    ]
    assert answers[0]["output_ids"] == answers[1]["output_ids"]


def test_without_sampling_params_sglangs_defaults_apply(server: EmbeddedServer) -> None:
    status, answer = post(server, "/generate", {"input_ids": [10] * 3})
    assert (status, answer["meta_info"]["finish_reason"]["type"] in ("stop", "length")) == (200, True)


REFUSED: list[tuple[Any, str]] = [
    ({}, "input_ids or text is needed"),
    ({"text": 5}, "input_ids or text is needed"),
    ({"input_ids": []}, "input_ids is empty"),
    ({"input_ids": [[1, 2]]}, "input_ids must be one list of token ids"),
    ({"input_ids": "12"}, "input_ids must be one list of token ids"),
    ({"input_ids": 5}, "input_ids must be one list of token ids"),
    ({"input_ids": [True]}, "input_ids must be one list of token ids"),
    ({"input_ids": [1.0]}, "input_ids must be one list of token ids"),
    ({"input_ids": [101]}, "input_ids must lie in [0, 101)"),
    ({"input_ids": [-1]}, "input_ids must lie in [0, 101)"),
    ({"input_ids": [1] * 128}, "input_ids has 128 tokens, the context is 128"),
    ({"input_ids": [1], "sampling_params": {"min_p": 0.1}}, "sampling_params not supported here: min_p"),
    ({"input_ids": [1], "sampling_params": {"stop": ""}}, "stop must be"),
    ({"input_ids": [1], "sampling_params": {"stop": 5}}, "stop must be"),
    ({"input_ids": [1], "sampling_params": {"max_new_tokens": 1.5}}, "max_new_tokens must be"),
    ({"input_ids": [1], "sampling_params": [1]}, "sampling_params must be an object"),
    ({"input_ids": [1], "top_logprobs_num": 5}, "not supported here: top_logprobs_num"),
    ({"input_ids": [1], "stream": True}, "stream is not supported here"),
    ([1, 2], "the body must be a JSON object"),
]


@pytest.mark.parametrize(("body", "reason"), REFUSED, ids=[str(body)[:60] for body, _ in REFUSED])
def test_a_request_that_cannot_be_honoured_is_status_400_with_the_reason(
    server: EmbeddedServer, body: Any, reason: str
) -> None:
    status, answer = post(server, "/generate", body)
    assert status == 400
    assert reason in answer["error"]["message"]


@pytest.mark.parametrize("path", ["/generate", "/abort_request", "/update_weights_from_disk"])
def test_a_body_that_is_not_json_is_status_400(server: EmbeddedServer, path: str) -> None:
    async def send() -> tuple[int, Any]:
        url = f"http://{server.host}:{server.port}{path}"
        async with aiohttp.ClientSession() as session, session.post(url, data=b"\xff{") as answer:
            return answer.status, await answer.json()

    status, answer = run(send())
    assert status == 400
    assert "the body is not JSON" in answer["error"]["message"]


def test_many_concurrent_requests_are_answered_each_with_its_own(server: EmbeddedServer) -> None:
    async def send() -> list[tuple[int, Any]]:
        requests = [{"input_ids": [5 + i % 60], "sampling_params": GREEDY, "rid": str(i)} for i in range(300)]
        return await asyncio.gather(*(ask(server, "/generate", request) for request in requests))

    answers = run(send())
    assert {status for status, _ in answers} == {200}
    assert [answer["meta_info"]["id"] for _, answer in answers] == [str(i) for i in range(300)]
    assert all(answer["output_ids"] == answers[i % 60][1]["output_ids"] for i, (_, answer) in enumerate(answers))


def test_health_means_that_a_token_has_been_generated(server: EmbeddedServer) -> None:
    assert run(ask(server, "/health_generate", method="GET"))[0] == 200


def test_model_info_and_flush_cache_answer(server: EmbeddedServer, folder: Path) -> None:
    status, info = run(ask(server, "/model_info", method="GET"))
    assert (status, info) == (200, {"model_path": str(folder), "weight_version": "0"})
    assert [run(ask(server, "/flush_cache", method=method))[0] for method in ("GET", "POST")] == [200, 200]


def test_the_server_listens_on_loopback_only(server: EmbeddedServer) -> None:
    (address,) = server._runner.addresses
    assert address[:2] == ("127.0.0.1", server.port)
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", server.port))


def test_a_paused_engine_holds_and_an_aborted_request_returns_what_it_has(server: EmbeddedServer) -> None:
    async def work() -> tuple[Any, Any]:
        assert (await ask(server, "/pause_generation", {}))[0] == 200
        first, second = (asyncio.create_task(ask(server, "/generate", {**REQUEST, "rid": rid})) for rid in "ab")
        while waiting(server) < 2:
            await asyncio.sleep(0.001)
        assert (await ask(server, "/abort_request", {"rid": "a"}))[0] == 200
        aborted = await first
        assert not second.done()
        assert (await ask(server, "/continue_generation", {}))[0] == 200
        return aborted, await second

    (status, aborted), (_, finished) = run(work())
    assert (status, aborted["output_ids"], aborted["text"]) == (200, [], "")
    assert aborted["meta_info"]["finish_reason"]["type"] == "abort"
    assert aborted["meta_info"]["output_token_logprobs"] == []
    assert len(finished["output_ids"]) == 6


def test_abort_all_ends_every_request_and_an_abort_of_nothing_is_refused(server: EmbeddedServer) -> None:
    async def work() -> list[Any]:
        await ask(server, "/pause_generation", {})
        tasks = [asyncio.create_task(ask(server, "/generate", REQUEST)) for _ in range(3)]
        while waiting(server) < 3:
            await asyncio.sleep(0.001)
        assert (await ask(server, "/abort_request", {}))[0] == 400
        await ask(server, "/abort_request", {"abort_all": True})
        answers = await asyncio.gather(*tasks)
        await ask(server, "/continue_generation", {})
        return answers

    assert [answer["meta_info"]["finish_reason"]["type"] for _, answer in run(work())] == ["abort"] * 3


def leave_while_it_generates(server: EmbeddedServer, to: Any) -> None:
    async def work() -> None:
        await ask(server, "/pause_generation", {})
        client = asyncio.create_task(ask(to, "/generate", REQUEST))
        while waiting(server) < 1:
            await asyncio.sleep(0.001)
        client.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await client
        while waiting(server) > 0:
            await asyncio.sleep(0.001)
        await ask(server, "/continue_generation", {})

    run(work())


def test_a_client_that_goes_away_takes_its_request_with_it(server: EmbeddedServer) -> None:
    leave_while_it_generates(server, to=server)
    assert post(server, "/generate", REQUEST)[0] == 200


def test_new_weights_come_from_disk_and_wrong_ones_are_status_400(folder: Path, tmp_path: Path) -> None:
    other = save_chat_model(tmp_path / "other", seed=5)
    torn = save_chat_model(tmp_path / "torn", seed=6)
    (torn / "model.safetensors").write_bytes(b"torn")
    with open_server(folder) as server:
        before = post(server, "/generate", REQUEST)[1]
        wrong: list[Any] = [{"model_path": str(path), "weight_version": "1"} for path in (tmp_path / "missing", torn)]
        wrong += [{"model_path": 5, "weight_version": "1"}, {"weight_version": "1"}]
        for body in wrong:
            status, answer = post(server, "/update_weights_from_disk", body)
            assert (status, answer["success"]) == (400, False)
        assert post(server, "/generate", REQUEST)[1]["meta_info"] | {"id": ""} == before["meta_info"] | {"id": ""}
        status, answer = post(server, "/update_weights_from_disk", {"model_path": str(other), "weight_version": 7})
        assert (status, answer["success"]) == (200, True)
        after = post(server, "/generate", REQUEST)[1]
    assert after["meta_info"]["weight_version"] == "7"
    assert after["output_ids"] != before["output_ids"]


def test_a_failing_model_is_status_500_with_the_reason_and_the_engine_lives_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_server(folder) as server:
        with monkeypatch.context() as patch:
            patch.setattr(server.engine.model, "forward", lambda **_: 1 / 0)
            status, answer = post(server, "/generate", REQUEST)
            assert run(ask(server, "/health_generate", method="GET"))[0] == 500
        assert status == 500
        assert "ZeroDivisionError" in answer["error"]["message"]
        assert post(server, "/generate", REQUEST)[0] == 200


def test_closing_answers_waiting_requests_and_may_be_done_twice(folder: Path) -> None:
    answers: list[Any] = []
    with open_server(folder) as server:
        server.engine.scheduler.set_paused(True)
        client = threading.Thread(target=lambda: answers.append(post(server, "/generate", REQUEST)))
        client.start()
        wait_until(lambda: waiting(server) == 1)
        server.close()
        client.join(TIMEOUT_SECONDS)
    ((status, answer),) = answers
    assert (status, "the engine was closed" in answer["error"]["message"]) == (500, True)


def test_a_port_that_is_taken_is_an_error(server: EmbeddedServer) -> None:
    with pytest.raises(OSError, match="address already in use"):
        EmbeddedServer(server.engine, port=server.port)


@contextlib.contextmanager
def open_router(*urls: str) -> Iterator[Router]:
    router = Router(urls)
    try:
        yield router
    finally:
        router.close()


def test_the_router_hands_requests_to_the_engines_in_turn_and_answers_through(folder: Path, server: EmbeddedServer) -> None:
    with open_server(folder) as second:
        second.engine.scheduler.weight_version = "second"
        urls = [f"http://{s.host}:{s.port}" for s in (server, second)]
        with open_router(*urls) as router:
            assert router.host == "127.0.0.1"
            answers = [post(router, "/generate", REQUEST) for _ in range(4)]
            refused = [post(router, "/generate", {"input_ids": []}) for _ in range(2)]
    assert [answer["meta_info"]["weight_version"] for _, answer in answers] == ["0", "second"] * 2
    assert [(status, answer["error"]["message"]) for status, answer in refused] == [(400, "input_ids is empty")] * 2


def test_a_client_of_the_router_that_goes_away_takes_its_request_with_it(server: EmbeddedServer) -> None:
    with open_router(f"http://{server.host}:{server.port}") as router:
        leave_while_it_generates(server, to=router)
        assert post(router, "/generate", REQUEST)[0] == 200

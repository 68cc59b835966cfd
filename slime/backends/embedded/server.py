"""The embedded engine behind SGLang's HTTP protocol, on loopback, in a thread of its own."""

import asyncio
import json
import logging
import threading
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from slime.backends.embedded.decoding import Generation
from slime.backends.embedded.engine import EmbeddedEngine
from slime.backends.embedded.sampling import SamplingParams
from slime.backends.engines import EngineServer


class EmbeddedServer(EngineServer):
    """Serves one engine until closed."""

    def __init__(self, engine: EmbeddedEngine, host: str = "127.0.0.1", port: int = 0) -> None:
        """Port 0 takes a free one. Returns once the port is open; see `host` and `port`."""
        self.engine, self.host = engine, host
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="embedded-server", daemon=True)
        self._thread.start()
        self._runner, self.port = asyncio.run_coroutine_threadsafe(self._open(port), self._loop).result()
        self.url = f"http://{self.host}:{self.port}"

    async def _open(self, port: int) -> tuple[web.AppRunner, int]:
        app = web.Application(client_max_size=64 * 1024**2, middlewares=[_say_what_failed])
        app.add_routes(
            [
                web.post("/generate", self.generate),
                web.get("/health_generate", self.health_generate),
                web.get("/model_info", self.model_info),
                web.post("/update_weights_from_disk", self.update_weights_from_disk),
                web.post("/pause_generation", self.pause_generation),
                web.post("/continue_generation", self.continue_generation),
                web.post("/abort_request", self.abort_request),
                web.route("*", "/flush_cache", self.flush_cache),
            ]
        )
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, self.host, port, backlog=4096)
        await site.start()
        return runner, runner.addresses[0][1]

    def wait(self) -> str:
        """Returns once it was closed: it has no end of its own."""
        self._thread.join()
        return "it was closed"

    def close(self) -> None:
        """Stop serving and free the engine's thread; requests under way are answered with 500."""
        if not self._thread.is_alive():
            return
        self.engine.scheduler.close()
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def generate(self, request: web.Request) -> web.Response:
        """One prompt (`input_ids`, or `text`) to one response; 400 with the reason for what can't be honoured."""
        body = await _json_object(request)
        try:
            generation = self._read(body)
        except (TypeError, ValueError) as error:
            raise _refusal(str(error)) from error
        try:
            done = await asyncio.wrap_future(self.engine.scheduler.submit(generation))
        except asyncio.CancelledError:  # the client has gone
            self.engine.scheduler.abort(generation.request_id)
            raise
        return web.json_response(self._answer(done, bool(body.get("return_logprob"))))

    def _read(self, body: dict[str, Any]) -> Generation:
        known = {"input_ids", "text", "sampling_params", "return_logprob", "rid", "stream"}
        if set(body) - known:
            raise ValueError(f"not supported here: {', '.join(sorted(set(body) - known))}")
        if body.get("stream"):
            raise ValueError("stream is not supported here")
        if body.get("input_ids") is None and not isinstance(body.get("text"), str):
            raise ValueError("input_ids or text is needed: one prompt")
        prompt = self.engine.tokenizer.encode(body["text"]) if body.get("input_ids") is None else body["input_ids"]
        if not isinstance(prompt, list) or not all(type(token) is int for token in prompt):
            raise ValueError("input_ids must be one list of token ids")
        params = SamplingParams.from_request(body.get("sampling_params") or {})
        return self.engine.generation(str(body.get("rid") or uuid.uuid4().hex), prompt, params)

    def _answer(self, done: Generation, return_logprob: bool) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "id": done.request_id,
            "finish_reason": done.finish_reason,
            "prompt_tokens": len(done.prompt),
            "completion_tokens": len(done.tokens),
            "weight_version": done.weight_version or self.engine.weight_version,
        }
        if return_logprob:
            meta["output_token_logprobs"] = [
                [log_prob, token, None] for log_prob, token in zip(done.log_probs, done.tokens, strict=True)
            ]
        return {"text": self.engine.text(done), "output_ids": done.tokens, "meta_info": meta}

    async def health_generate(self, request: web.Request) -> web.Response:
        """200 once a token has been generated."""
        probe = self.engine.generation(uuid.uuid4().hex, [0], SamplingParams(max_new_tokens=1, sampling_seed=0))
        await asyncio.wrap_future(self.engine.scheduler.submit(probe))
        return web.Response()

    async def model_info(self, request: web.Request) -> web.Response:
        """Where the weights came from, and their version."""
        return web.json_response({"model_path": self.engine.folder, "weight_version": self.engine.weight_version})

    async def update_weights_from_disk(self, request: web.Request) -> web.Response:
        """`model_path` and `weight_version`; 400 and unchanged weights if the folder does not fit."""
        body = await _json_object(request)
        try:
            await asyncio.to_thread(self.engine.load_weights, Path(body["model_path"]), str(body["weight_version"]))
        except (KeyError, OSError, TypeError, ValueError) as error:
            return web.json_response({"success": False, "message": repr(error)}, status=400)
        return web.json_response({"success": True, "message": "weights updated"})

    async def pause_generation(self, request: web.Request) -> web.Response:
        """Stop before the next token; requests keep what they have."""
        self.engine.scheduler.set_paused(True)
        return web.json_response({"status": "ok"})

    async def continue_generation(self, request: web.Request) -> web.Response:
        """Go on after a pause."""
        self.engine.scheduler.set_paused(False)
        return web.json_response({"status": "ok"})

    async def abort_request(self, request: web.Request) -> web.Response:
        """End request `rid`, or with `abort_all` every one."""
        body = await _json_object(request)
        if not body.get("abort_all") and not body.get("rid"):
            raise _refusal("rid or abort_all is needed")
        self.engine.scheduler.abort(None if body.get("abort_all") else str(body["rid"]))
        return web.json_response({"status": "ok"})

    async def flush_cache(self, request: web.Request) -> web.Response:
        """Nothing is cached between requests, so there is nothing to do."""
        return web.Response(text="Cache flushed.")


def _refusal(message: str) -> web.HTTPBadRequest:
    return web.HTTPBadRequest(text=json.dumps({"error": {"message": message}}), content_type="application/json")


async def _json_object(request: web.Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except ValueError as error:
        raise _refusal(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise _refusal("the body must be a JSON object")
    return body


@web.middleware
async def _say_what_failed(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """A failure of the engine is status 500 with its message, and a traceback in the log."""
    try:
        return await handler(request)
    except web.HTTPException:
        raise
    except Exception as error:
        logging.getLogger(__name__).exception("%s failed", request.path)
        return web.json_response({"error": {"message": repr(error)}}, status=500)

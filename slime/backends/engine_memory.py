"""Engines that leave the GPU to the trainers, and come back."""

from fsdp_backend import device
from slime.arguments.errors import UserError
from slime.arguments.run_config import RunConfig
from slime.backends.ask import ask_all
from slime.backends.engines import Engines

WEIGHTS = ("weights",)
REST = ("kv_cache", "cuda_graph")


class EngineMemory:
    """What --offload-rollout moves, in SGLang's parts. Weights keep their values: a copy waits in host memory."""

    def __init__(self, engines: Engines | None, config: RunConfig) -> None:
        """Moves nothing without the flag, and nothing where there is no GPU to leave."""
        wanted = config.engine.offload_rollout and device.accelerator_count() > 0
        self.engines = engines if wanted else None
        self.away: set[str] = set()

    def release(self) -> None:
        """All that is not away leaves the GPU; no request may be under way. Raises UserError if an engine can't."""
        self._move("release", {*WEIGHTS, *REST} - self.away)
        if self.engines is not None:
            self.away = {*WEIGHTS, *REST}

    def resume(self, *parts: str) -> None:
        """What of these is away comes back. Raises UserError if an engine can't."""
        self._move("resume", self.away & set(parts))
        self.away -= set(parts)

    def _move(self, way: str, parts: set[str]) -> None:
        if self.engines is None or not parts:
            return
        payload = {"tags": sorted(parts)}
        for url, answer in ask_all(self.engines.urls, f"/{way}_memory_occupation", payload).items():
            if not answer.ok:
                raise UserError(f"--offload-rollout: the rollout engine {url} {answer}")

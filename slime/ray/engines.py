"""The rollout engines, as Ray actors. One that dies is replaced by one with the weights of the moment."""

import threading
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError

from slime.arguments.run_config import RunConfig
from slime.backends.embedded.router import Router
from slime.backends.engines import Engines
from slime.ray.watch import Watch, why


class EngineProcess:
    """A process for one embedded rollout engine."""

    def serve(self, folder: str, version: int, seed: int, bf16: bool, engines: int) -> str:
        """Load the model, as this version of the weights, and open the server; returns its URL."""
        from fsdp_backend import device
        from slime.backends.embedded.engine import EmbeddedEngine
        from slime.backends.embedded.server import EmbeddedServer

        device.share_cpu(engines)
        self.server = EmbeddedServer(EmbeddedEngine(folder, seed, bf16, version), host=ray.util.get_node_ip_address())
        return f"http://{self.server.host}:{self.server.port}"

    @ray.method(concurrency_group="life")  # type: ignore[untyped-decorator]
    def live(self) -> None:
        """Never returns: whoever waits for it learns of this process's death."""
        threading.Event().wait()


@dataclass(frozen=True)
class Slot:
    """An engine in its place."""

    place: dict[str, Any]
    """Ray options."""
    process: Any
    life: Any
    """Ends with the process."""
    url: Any
    """A reference to it."""


class RayEngines(Engines):
    """Engines behind a router."""

    def __init__(self, config: RunConfig, placement: list[dict[str, Any]], watch: Watch) -> None:
        """Starts an engine for each entry of `placement` (Ray options). `open` waits for them."""
        self.config, self.watch = config, watch
        self.router: Router | None = None
        self.count = len(placement)
        self.slots = [self._start(place, config.actor.hf_checkpoint, 0) for place in placement]

    def _start(self, place: dict[str, Any], folder: str, version: int) -> Slot:
        process = ray.remote(concurrency_groups={"life": 1})(EngineProcess).options(**place).remote()
        arguments = (folder, version, self.config.data.rollout_seed, self.config.actor.bf16, self.count)
        return Slot(place, process, process.live.remote(), process.serve.remote(*arguments))

    def open(self) -> None:
        """Wait until all engines listen, and open the router."""
        self.urls = self.watch.get_all([slot.url for slot in self.slots])
        self.router = Router(self.urls)
        self.address = self.router.host, self.router.port

    def replace_dead(self, folder: str, version: int, patience: float = 0.0) -> list[str]:
        """As Engines says; the router's requests to the dead go to the new."""
        assert self.router is not None
        ray.wait([slot.life for slot in self.slots], num_returns=1, timeout=patience)
        dead, _ = ray.wait([slot.life for slot in self.slots], num_returns=self.count, timeout=0)
        places = [place for place, slot in enumerate(self.slots) if slot.life in dead]
        for place in places:
            self.slots[place] = self._start(self.slots[place].place, folder, version)
        for place in places:
            (url,) = self.watch.get_all([self.slots[place].url])
            self.router.replace(self.urls[place], url)
            self.urls[place] = url
        return [f"rollout engine {place} died: {_cause(life)}" for place, life in zip(places, dead, strict=True)]

    def close(self) -> None:
        """End the processes."""
        if self.router is not None:
            self.router.close()
        for slot in self.slots:
            ray.kill(slot.process)


def _cause(life: Any) -> str:
    try:
        ray.get(life)
    except RayActorError as error:
        return why(error)
    return "it ended"

"""The rollout engines, as Ray actors. One that dies is replaced by one with the weights of the moment."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError

from slime.arguments.run_config import RunConfig
from slime.backends.engines import Engines, EngineStart
from slime.backends.router import Router
from slime.ray.watch import Watch, why


class EngineProcess:
    """A process for one rollout engine, which it is or which it keeps."""

    def __init__(self) -> None:
        self.listens = threading.Event()

    def serve(self, config: RunConfig, folder: str, version: int, place: int, engines: int, log: Path) -> str:
        """Start the engine with this version of the weights; returns its URL."""
        from slime.backends.start_engine import start_engine

        # All processes of a run are on one machine.
        start = EngineStart(place, folder, version, "127.0.0.1", log)
        self.server = start_engine(config, start, engines)
        self.listens.set()
        return self.server.url

    @ray.method(concurrency_group="life")  # type: ignore[untyped-decorator]
    def live(self) -> str:
        """Returns when the engine has ended, and why. Whoever waits for it learns of this process's death too."""
        self.listens.wait()
        return self.server.wait()


@dataclass(frozen=True)
class Slot:
    """An engine in its place."""

    options: dict[str, Any]
    """Ray's, for its place."""
    process: Any
    life: Any
    """Ends with the engine, and with the process."""
    url: Any
    """A reference to it."""


class RayEngines(Engines):
    """Engines behind a router."""

    def __init__(self, config: RunConfig, placement: list[dict[str, Any]], watch: Watch, logs: Path) -> None:
        """Starts an engine for each entry of `placement` (Ray options). `open` waits for them."""
        self.config, self.watch, self.logs = config, watch, logs
        self.router: Router | None = None
        self.count = len(placement)
        self.slots = [self._start(place, options, config.actor.hf_checkpoint, 0) for place, options in enumerate(placement)]

    def _start(self, place: int, options: dict[str, Any], folder: str, version: int) -> Slot:
        process = ray.remote(concurrency_groups={"life": 1})(EngineProcess).options(**options).remote()
        log = self.logs / f"engine_{place}.log"
        url = process.serve.remote(self.config, folder, version, place, self.count, log)
        return Slot(options, process, process.live.remote(), url)

    def open(self) -> None:
        """Wait until all engines listen, and open the router."""
        self.urls = self.watch.get_all([slot.url for slot in self.slots])
        self.router = Router(self.urls)
        self.address = self.router.host, self.router.port

    def replace_dead(self, folder: Callable[[], str], version: int, patience: float = 0.0) -> list[str]:
        """As Engines says; the router's requests to the dead go to the new."""
        assert self.router is not None
        ray.wait([slot.life for slot in self.slots], num_returns=1, timeout=patience)
        dead, _ = ray.wait([slot.life for slot in self.slots], num_returns=self.count, timeout=0)
        places = [place for place, slot in enumerate(self.slots) if slot.life in dead]
        causes = [_cause(self.slots[place].life) for place in places]
        for place in places:
            ray.kill(self.slots[place].process)  # it may have outlived the engine that it kept
            self.slots[place] = self._start(place, self.slots[place].options, folder(), version)
        for place in places:
            (url,) = self.watch.get_all([self.slots[place].url])
            self.router.replace(self.urls[place], url)
            self.urls[place] = url
        return [f"rollout engine {place} died: {cause}" for place, cause in zip(places, causes, strict=True)]

    def close(self) -> None:
        """End the processes."""
        if self.router is not None:
            self.router.close()
        for slot in self.slots:
            ray.kill(slot.process)


def _cause(life: Any) -> str:
    try:
        return str(ray.get(life))
    except RayActorError as error:
        return why(error)

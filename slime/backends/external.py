"""Rollout engines that run already, which someone else starts and ends."""

import time
from collections.abc import Callable
from pathlib import Path

from slime.arguments.errors import ProcessDied, UserError
from slime.arguments.run_config import RunConfig
from slime.backends.ask import ask_all
from slime.backends.engines import Engines
from slime.backends.router import Router

_FLAG = "--rollout-external-engine-addrs"
_SECONDS = 30.0


class ExternalEngines(Engines):
    """SGLang servers at the addresses of --rollout-external-engine-addrs, behind a router of the run's own."""

    def __init__(self, config: RunConfig) -> None:
        """Gives them the weights of --hf-checkpoint, as another run may have left its own. Raises UserError if one of them does
        not generate, or does not find that folder."""
        self.urls = [f"http://{address}" for address in config.engine.rollout_external_engine_addrs or ()]
        for url, answer in ask_all(self.urls, "/health_generate", timeout=_SECONDS).items():
            if not answer.ok:
                raise UserError(f"{_FLAG} {url[7:]} {answer}")
        folder = config.actor.hf_checkpoint
        payload = {"model_path": str(Path(folder).resolve()), "weight_version": "0"}
        for url, answer in ask_all(self.urls, "/update_weights_from_disk", payload).items():
            if not answer.ok:
                raise UserError(f"{_FLAG} {url[7:]} does not take the weights of --hf-checkpoint {folder}: it {answer}")
        self.router = Router(self.urls)
        self.address = self.router.host, self.router.port
        self._seen = time.monotonic()

    def replace_dead(self, folder: Callable[[], str], version: int, patience: float = 0.0) -> list[str]:
        """Replaces none: raises ProcessDied if one can't be reached any more. Looks now and then, or now if given patience."""
        if not patience and time.monotonic() - self._seen < _SECONDS:
            return []
        self._seen = time.monotonic()
        for url, answer in ask_all(self.urls, "/model_info", timeout=_SECONDS).items():
            if answer.status == 0:
                raise ProcessDied(f"{_FLAG} {url[7:]} {answer}")
        return []

    def close(self) -> None:
        """Close the router; the engines go on."""
        self.router.close()

"""From the actor's weights to the rollout engines': through their memory, or by way of a folder on disk."""

import shutil
from pathlib import Path

from slime.arguments.errors import UserError
from slime.arguments.run_config import RunConfig
from slime.backends.ask import ask_all
from slime.backends.engine_memory import WEIGHTS, EngineMemory
from slime.backends.engines import Engines
from slime.backends.fsdp_utils.group import TrainGroup

# What an engine that was killed is given to be known as dead.
_PATIENCE = 10.0


class WeightSync:
    """Numbers the versions; the engines' first weights, from the checkpoint, are version 0."""

    def __init__(self, actor: TrainGroup | None, engines: Engines | None, config: RunConfig, folder: Path) -> None:
        """`folder` must be visible to the actor and the engines alike. It holds the newest version where weights travel by
        disk, and else where an engine that died had to be started from it."""
        self.actor, self.engines, self.folder = actor, engines, folder
        self.by_disk, self.checkpoint = config.weight_transport == "disk", config.actor.hf_checkpoint
        self.memory = EngineMemory(engines, config)
        self.amid_requests = config.rollout.max_staleness > 1
        self.version = 0

    def resume(self, version: int) -> None:
        """Bring the actor's weights, read from a checkpoint, to every engine as this version."""
        if version and self.engines is not None:
            self.version = version - 1
            self.update()

    def newest(self) -> str:
        """A folder with the newest version, written now if there is none yet."""
        if self.version == 0:
            return self.checkpoint
        folder = self._folder(self.version)
        if not folder.exists():
            assert self.actor is not None
            self.actor.export(folder)
        return str(folder)

    def _folder(self, version: int) -> Path:
        return self.folder / f"version_{version}"

    def update(self) -> None:
        """Bring the actor's weights to every engine. One that has died is replaced, one that failed is asked again; raises
        UserError if it fails again, or if an engine does not say in the end that it has this version."""
        assert self.engines is not None
        self.memory.resume(*WEIGHTS)
        self.version += 1
        if self.amid_requests:  # responses wait between two tokens, and go on with the new weights
            ask_all(self.engines.urls, "/pause_generation", {"mode": "retract"})
        self._bring()
        if self.amid_requests:
            ask_all(self.engines.urls, "/continue_generation", {})
        shutil.rmtree(self._folder(self.version - 1), ignore_errors=True)

    def _bring(self) -> None:
        assert self.engines is not None
        if self._send(self.engines.urls):
            self.engines.replace_dead(self.newest, self.version, _PATIENCE)
            failures = self._send(list(self._behind()))
            for url, reason in failures.items():
                raise UserError(f"weight version {self.version} did not reach the rollout engine {url}: {reason}")
        for url, version in self._behind().items():
            raise UserError(f"the rollout engine {url} has weight version {version}, not {self.version} as it was sent")

    def _send(self, urls: list[str]) -> dict[str, str]:
        """What went wrong, by engine."""
        if not urls:
            return {}
        if not self.by_disk:
            assert self.actor is not None
            return self.actor.send_weights(list(urls), self.version)
        payload = {"model_path": self.newest(), "weight_version": str(self.version)}
        answers = ask_all(urls, "/update_weights_from_disk", payload)
        return {url: str(answer) for url, answer in answers.items() if not answer.ok}

    def _behind(self) -> dict[str, str]:
        """The engines that have another version, or can't say which."""
        assert self.engines is not None
        said = {
            url: str(answer.body.get("weight_version")) if answer.ok else str(answer)
            for url, answer in ask_all(self.engines.urls, "/model_info").items()
        }
        return {url: version for url, version in said.items() if version != str(self.version)}

    def close(self) -> None:
        """Delete what was written."""
        shutil.rmtree(self.folder, ignore_errors=True)

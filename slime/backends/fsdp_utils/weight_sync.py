"""From the actor's weights to the rollout engines', by way of a folder on disk."""

import asyncio
import shutil
from pathlib import Path

from slime.backends.engines import Engines
from slime.backends.fsdp_utils.group import TrainGroup
from slime.utils.http_utils import post

# What an engine that was killed is given to be known as dead.
_PATIENCE = 10.0


class WeightSync:
    """Numbers the versions; the engines' first weights, from the checkpoint, are version 0."""

    def __init__(self, actor: TrainGroup | None, engines: Engines | None, checkpoint: str, folder: Path) -> None:
        """`folder` must be visible to the actor and the engines alike. It holds the newest version, from which an engine that
        died is started again; before the first update that is `checkpoint`."""
        self.actor, self.engines, self.folder = actor, engines, folder
        self.version, self.newest = 0, checkpoint

    def resume(self, version: int) -> None:
        """Bring the actor's weights, read from a checkpoint, to every engine as this version."""
        if version and self.engines is not None:
            self.version = version - 1
            self.update()

    def update(self) -> None:
        """Bring the actor's weights to every engine; raises if one refuses them. One that has died is replaced."""
        assert self.actor is not None
        assert self.engines is not None
        self.version += 1
        before, folder = self.newest, self.folder / f"version_{self.version}"
        self.actor.export(folder)
        self.newest = str(folder)
        failed = asyncio.run(self._load(folder, list(self.engines.urls)))
        if failed:
            self.engines.replace_dead(self.newest, self.version, _PATIENCE)
        for url, error in failed.items():
            if url in self.engines.urls:
                raise error
        if Path(before).parent == self.folder:
            shutil.rmtree(before)

    async def _load(self, folder: Path, urls: list[str]) -> dict[str, BaseException]:
        """What went wrong, by engine."""
        payload = {"model_path": str(folder), "weight_version": str(self.version)}
        loading = (post(f"{url}/update_weights_from_disk", payload, max_retries=2) for url in urls)
        answers = await asyncio.gather(*loading, return_exceptions=True)
        return {url: answer for url, answer in zip(urls, answers, strict=True) if isinstance(answer, BaseException)}

    def close(self) -> None:
        """Delete the newest version."""
        shutil.rmtree(self.folder, ignore_errors=True)

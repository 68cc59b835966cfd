"""From the actor's weights to the rollout engines', by way of a folder on disk."""

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

from slime.backends.fsdp_utils.group import TrainGroup
from slime.utils.http_utils import post


class WeightSync:
    """Numbers the versions; the engines' first weights, from the checkpoint, are version 0."""

    def __init__(self, actor: TrainGroup | None, engine_urls: Sequence[str], folder: Path) -> None:
        """`folder` must be visible to the actor and the engines alike; it is used for the moment of an update."""
        self.actor, self.engine_urls, self.folder = actor, engine_urls, folder
        self.version = 0

    def resume(self, version: int) -> None:
        """Bring the actor's weights, read from a checkpoint, to every engine as this version."""
        if version and self.engine_urls:
            self.version = version - 1
            self.update()

    def update(self) -> None:
        """Bring the actor's weights to every engine; raises if an engine refuses them."""
        assert self.actor is not None
        self.version += 1
        version_folder = self.folder / f"version_{self.version}"
        self.actor.export(version_folder)
        asyncio.run(self._load(version_folder))
        shutil.rmtree(self.folder)

    async def _load(self, folder: Path) -> None:
        payload = {"model_path": str(folder), "weight_version": str(self.version)}
        await asyncio.gather(*(post(f"{url}/update_weights_from_disk", payload) for url in self.engine_urls))

"""A role as the train loop sees it, however many processes it has. Launchers supply `submit`."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fsdp_backend.batch.columns import Floats, RolloutBatch
from slime.backends.fsdp_utils.worker import Trained

T_co = TypeVar("T_co", covariant=True)


class Pending(Protocol[T_co]):
    """A verb that is running."""

    def result(self) -> T_co:
        """Wait for all ranks; raises what any of them raised."""


class TrainGroup(ABC):
    """All ranks of one role."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of ranks."""

    @abstractmethod
    def submit(self, verb: str, *args: Any) -> Pending[Any]:
        """Start a TrainWorker's verb on every rank. Verbs of one group run in the order they were submitted."""

    @abstractmethod
    def close(self) -> None:
        """End the processes."""

    def log_probs(self, batch: RolloutBatch, rollout_id: int) -> tuple[Floats | None, Floats | None]:
        """Actor: log-probs of the policy, and of the reference; None for those that nothing needs."""
        return self.submit("log_probs", batch, rollout_id).result()  # type: ignore[no-any-return]

    def values(self, batch: RolloutBatch) -> Floats:
        """Critic: V(s_t)."""
        return self.submit("values", batch).result()  # type: ignore[no-any-return]

    def start_update(self, batch: RolloutBatch, rollout_id: int) -> Pending[Trained]:
        """Begin to train on the batch, without waiting for it."""
        return self.submit("update", batch, rollout_id)

    def start_sleep(self) -> Pending[None]:
        """Leave the accelerator after what was submitted before, until the next verb."""
        return self.submit("sleep")

    def start_save(self, folder: Path, rollout_id: int) -> Pending[None]:
        """Begin to write the training state after this rollout, after what was submitted before."""
        return self.submit("save", folder, rollout_id)

    def finish_save(self) -> None:
        """Wait until what was begun is written."""
        self.submit("finish_save").result()

    def load(self, folder: Path, rollout_id: int) -> None:
        """Go on from the training state after this rollout."""
        self.submit("load", folder, rollout_id).result()

    def export(self, folder: Path) -> None:
        """Write a Hugging Face folder."""
        self.submit("export", folder).result()

    def send_weights(self, urls: list[str], version: int) -> dict[str, str]:
        """Actor: bring its weights to these engines, not by way of the disk; returns what went wrong, by engine."""
        return self.submit("send_weights", urls, version).result()  # type: ignore[no-any-return]

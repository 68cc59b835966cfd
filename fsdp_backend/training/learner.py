"""The step loop, one for both roles. A role brings its model and its loss; forward, backward and the optimizer step are
here."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from fsdp_backend import device
from fsdp_backend.batch.columns import Floats, RolloutBatch
from fsdp_backend.batch.normaliser import step_size, token_weights
from fsdp_backend.batch.packing import Pack, pack
from fsdp_backend.batch.plan import Step, plan_pass, plan_step
from fsdp_backend.config import RoleConfig
from fsdp_backend.distributed.collectives import all_sum, all_sum_metrics
from fsdp_backend.model.cost import sample_cost
from fsdp_backend.model.policy import PolicyModel
from fsdp_backend.model.sharding import reduce_gradients, reshard
from fsdp_backend.model.value import ValueModel
from fsdp_backend.training.clock import learning_rate
from fsdp_backend.training.optimizer import build_optimizer, clip_and_step, move_state

Loss = Callable[[Pack, RolloutBatch], tuple[Tensor, Tensor, dict[str, Tensor]]]
"""(pack, batch) -> loss, the model's prediction (log-prob or value) and metrics, all per response token [R]. The learner
weighs, sums and reduces loss and metrics."""


@dataclass(frozen=True)
class Share:
    """What a micro-batch is in its step."""

    weight: Tensor
    """[R of the pack] of each response token in the step's loss."""
    step_size: int
    """What the step's loss is a mean over: rollouts, or tokens."""


@dataclass(frozen=True)
class WholeLoss:
    """A loss that weighs and sums by itself."""

    compute: Callable[[Pack, RolloutBatch, Share], tuple[Tensor, dict[str, Tensor]]]
    """To the micro-batch's share of the step's loss, and of metrics; the sums over micro-batches and ranks are the step's."""


@dataclass(frozen=True)
class PassReport:
    """What one pass did: each step's weighted token means and gradient norm, averaged over the steps that were taken (over all
    of them if none was)."""

    metrics: dict[str, float]
    grad_norm: float
    num_steps: int
    skipped_steps: int
    predictions: Floats
    """[R] what the model predicted in the first step, before it changed: `predicted` says for which response tokens."""
    predicted: NDArray[np.bool_]
    """[R] the trainable tokens of the first step."""


class Learner:
    """A sharded model with its optimizer, its clock and its plans.

    `frozen` are models without an optimizer that sleep and wake with it, such as the actor's reference.
    """

    def __init__(self, model: PolicyModel | ValueModel, role: RoleConfig, mesh: DeviceMesh, num_rollout: int) -> None:
        self.model: Any = model
        self.role = role if model.packs_samples else _one_sample_a_row(model, role, mesh)
        self.mesh = mesh
        self.device = device.current()
        self.num_rollout = num_rollout
        self.cost = sample_cost(model)
        self.optimizer = build_optimizer(model, role)
        self.rollouts_trained = 0
        self.skipped_in_a_row = 0
        self.frozen: tuple[nn.Module, ...] = ()
        self.asleep = False

    def advance_clock(self) -> float:
        """Set the learning rate for the next rollout, count it, and return the rate."""
        rate = learning_rate(self.role, self.rollouts_trained, self.num_rollout)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.rollouts_trained += 1
        return rate

    def progress(self) -> dict[str, int]:
        """The counters that training goes on from; `set_progress` takes them back."""
        return {"rollouts_trained": self.rollouts_trained, "skipped_in_a_row": self.skipped_in_a_row}

    def set_progress(self, progress: Mapping[str, int]) -> None:
        """Go on from there."""
        self.rollouts_trained, self.skipped_in_a_row = progress["rollouts_trained"], progress["skipped_in_a_row"]

    def sleep(self) -> None:
        """Free the accelerator for others: parameters and optimizer state move to host memory until `wake`."""
        if not self.asleep:
            self._move(device.host())
        self.asleep = True

    def wake(self) -> None:
        """Bring back what `sleep` took away."""
        if self.asleep:
            self._move(self.device)
        self.asleep = False

    def _move(self, place: torch.device) -> None:
        if not self.role.fsdp_cpu_offload:
            for model in (self.model, *self.frozen):
                reshard(model)
                model.to(place)
            move_state(self.optimizer, place)
        device.release_memory()

    def plan(self, batch: RolloutBatch, order: np.random.Generator | None = None) -> list[Step]:
        """The optimizer steps of a pass over the batch."""
        return plan_pass(batch, self.role, self.mesh.size(), order, self.cost)

    def plan_whole(self, batch: RolloutBatch) -> Step:
        """All samples of the batch as one step, whatever their number."""
        return plan_step(list(range(len(batch))), batch, self.role, self.mesh.size(), self.cost)

    def compute_column(
        self, batch: RolloutBatch, model: nn.Module, forward: Callable[[Pack], Tensor], steps: list[Step] | None = None
    ) -> Floats:
        """Run `forward` (pack -> [R of the pack]), which calls `model`, without gradients.

        Micro-batches are those of a pass in the batch's order (or of `steps`), so that an update cut the same way sees the same
        numbers bit for bit. Returns: [R], the same on every rank, 0 for tokens that no loss is taken of.
        """
        column = torch.zeros(int(batch.response_offsets[-1]), device=self.device)
        with torch.no_grad():
            for step in self.plan(batch) if steps is None else steps:
                for samples in step.ranks[self.mesh.get_local_rank()]:
                    packed = pack(batch, samples, self.device)
                    column[packed.response_index.to(self.device)] = forward(packed)
        reshard(model)
        return all_sum(column, self.mesh).cpu().numpy()

    def run_pass(
        self, batch: RolloutBatch, loss: Loss | WholeLoss, per_token: bool, order: np.random.Generator | None = None
    ) -> PassReport:
        """One pass over the batch: an optimizer step for each `global_batch_size` rollouts."""
        steps = self.plan(batch, order)
        predictions = torch.zeros(int(batch.response_offsets[-1]), device=self.device)
        results = [self._step(batch, step, loss, per_token, predictions if step is steps[0] else None) for step in steps]
        taken = [(metrics, norm) for metrics, norm, ok in results if ok]
        counted = taken or [(metrics, norm) for metrics, norm, _ in results]
        return PassReport(
            metrics={name: float(np.mean([metrics[name] for metrics, _ in counted])) for name in counted[0][0]},
            grad_norm=float(np.mean([norm for _, norm in counted])),
            num_steps=len(taken),
            skipped_steps=len(steps) - len(taken),
            predictions=all_sum(predictions, self.mesh).cpu().numpy(),
            predicted=batch.trainable_tokens(steps[0].samples),
        )

    def _step(
        self, batch: RolloutBatch, step: Step, loss: Loss | WholeLoss, per_token: bool, predictions: Tensor | None
    ) -> tuple[dict[str, float], float, bool]:
        weights, size = token_weights(batch, step, per_token), step_size(batch, step, per_token)
        self.optimizer.zero_grad()
        sums: dict[str, Tensor] = {}
        micro_batches = step.ranks[self.mesh.get_local_rank()]
        for number, samples in enumerate(micro_batches, start=1):
            packed = pack(batch, samples, self.device)
            reduce_gradients(self.model, number == len(micro_batches) or not self.role.fsdp_defer_grad_reduce)
            part, prediction, metrics = _part(loss, packed, batch, Share(packed.column(weights), size))
            # FSDP averages gradients over ranks; the weights are those of the whole step, so undo the average.
            torch.autograd.backward(part * self.mesh.size())
            if predictions is not None and prediction is not None:
                predictions[packed.response_index.to(self.device)] = prediction.detach()
            for name, value in metrics.items():
                sums[name] = sums.get(name, torch.zeros((), device=self.device)) + value
        norm, taken = clip_and_step(self.optimizer, self.model.parameters(), self.role.clip_grad)
        totals = all_sum_metrics(sums, self.mesh)
        self._count_skipped(taken, norm, totals)
        return totals, norm, taken

    def _count_skipped(self, taken: bool, norm: float, metrics: dict[str, float]) -> None:
        """Raises ValueError, with what the last step saw, once more were skipped in a row than allowed."""
        self.skipped_in_a_row = 0 if taken else self.skipped_in_a_row + 1
        if self.skipped_in_a_row > self.role.max_skipped_steps:
            name = "actor" if isinstance(self.model, PolicyModel) else "critic"
            seen = ", ".join(f"{metric} {value:.4g}" for metric, value in metrics.items())
            raise ValueError(
                f"{self.skipped_in_a_row} optimizer steps of the {name} in a row met a gradient that is not finite, more than "
                f"max_skipped_steps {self.role.max_skipped_steps}; the last had gradient norm {norm}, {seen}"
            )


def _part(
    loss: Loss | WholeLoss, packed: Pack, batch: RolloutBatch, share: Share
) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
    """The micro-batch's part of the step's loss, the prediction where there is one, and its part of the metrics."""
    if isinstance(loss, WholeLoss):
        part, metrics = loss.compute(packed, batch, share)
        return part, None, {name: value.detach() for name, value in metrics.items()}
    per_token, prediction, columns = loss(packed, batch)
    parts = {name: (value.detach() * share.weight).sum() for name, value in columns.items()}
    return (per_token * share.weight).sum(), prediction, parts


def _one_sample_a_row(model: Any, role: RoleConfig, mesh: DeviceMesh) -> RoleConfig:
    """For an architecture that would leak from one packed sample into another; it is said once."""
    if mesh.get_rank() == 0:
        kind = model.hf.config.model_type
        logging.getLogger(__name__).warning(
            "%s: model type %r mixes positions otherwise than by attention we can keep apart: "
            "every micro-batch is one sample, whatever the batching flags say",
            role.hf_checkpoint,
            kind,
        )
    return replace(role, micro_batch_size=1, use_dynamic_batch_size=False)

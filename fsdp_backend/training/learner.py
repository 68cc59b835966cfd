"""The step loop, one for both roles. A role brings its model and its loss; forward, backward and the optimizer step are
here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from fsdp_backend.batch.columns import Floats, RolloutBatch
from fsdp_backend.batch.normaliser import token_weights
from fsdp_backend.batch.packing import Pack, pack
from fsdp_backend.batch.plan import Step, plan_pass, plan_step
from fsdp_backend.config import RoleConfig
from fsdp_backend.distributed.collectives import all_sum, all_sum_metrics
from fsdp_backend.model.policy import PolicyModel
from fsdp_backend.model.sharding import reshard
from fsdp_backend.model.value import ValueModel
from fsdp_backend.training.clock import learning_rate
from fsdp_backend.training.optimizer import build_optimizer, clip_and_step

Loss = Callable[[Pack, RolloutBatch], tuple[Tensor, dict[str, Tensor]]]
"""(pack, batch) -> loss per response token [R], and metrics per response token [R]; the learner weighs, sums and reduces
both."""


@dataclass(frozen=True)
class PassReport:
    """What one pass did: each step's weighted token means and gradient norm, averaged over the steps that were taken (over all
    of them if none was)."""

    metrics: dict[str, float]
    grad_norm: float
    num_steps: int
    skipped_steps: int


class Learner:
    """A sharded model with its optimizer, its clock and its plans."""

    def __init__(
        self, model: PolicyModel | ValueModel, role: RoleConfig, mesh: DeviceMesh, device: torch.device, num_rollout: int
    ) -> None:
        self.model: Any = model
        self.role = role
        self.mesh = mesh
        self.device = device
        self.num_rollout = num_rollout
        self.optimizer = build_optimizer(model, role)
        self.rollouts_trained = 0

    def advance_clock(self) -> float:
        """Set the learning rate for the next rollout, count it, and return the rate."""
        rate = learning_rate(self.role, self.rollouts_trained, self.num_rollout)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.rollouts_trained += 1
        return rate

    def compute_column(self, batch: RolloutBatch, model: nn.Module, forward: Callable[[Pack], Tensor]) -> Floats:
        """Run `forward` (pack -> [R of the pack]), which calls `model`, over the batch without gradients; [R] on every rank."""
        column = torch.zeros(int(batch.response_offsets[-1]), device=self.device)
        step = plan_step(list(range(len(batch))), batch, self.role, self.mesh.size())
        with torch.no_grad():
            for samples in step.ranks[self.mesh.get_local_rank()]:
                packed = pack(batch, samples, self.device)
                column[packed.response_index.to(self.device)] = forward(packed)
        reshard(model)
        return all_sum(column, self.mesh).cpu().numpy()

    def run_pass(
        self, batch: RolloutBatch, loss: Loss, per_token: bool, order: np.random.Generator | None = None
    ) -> PassReport:
        """One pass over the batch: an optimizer step for each `global_batch_size` rollouts."""
        steps = plan_pass(batch, self.role, self.mesh.size(), order)
        results = [self._step(batch, step, loss, per_token) for step in steps]
        taken = [(metrics, norm) for metrics, norm, ok in results if ok]
        counted = taken or [(metrics, norm) for metrics, norm, _ in results]
        means = {name: float(np.mean([metrics[name] for metrics, _ in counted])) for name in counted[0][0]}
        return PassReport(means, float(np.mean([norm for _, norm in counted])), len(taken), len(steps) - len(taken))

    def _step(self, batch: RolloutBatch, step: Step, loss: Loss, per_token: bool) -> tuple[dict[str, float], float, bool]:
        weights = token_weights(batch, step, per_token)
        self.optimizer.zero_grad()
        sums: dict[str, Tensor] = {}
        for samples in step.ranks[self.mesh.get_local_rank()]:
            packed = pack(batch, samples, self.device, trainable_only=True)
            weight = packed.column(weights)
            per_token_loss, metrics = loss(packed, batch)
            # FSDP averages gradients over ranks; the weights are those of the whole step, so undo the average.
            torch.autograd.backward((per_token_loss * weight).sum() * self.mesh.size())
            for name, value in metrics.items():
                sums[name] = sums.get(name, torch.zeros((), device=self.device)) + (value.detach() * weight).sum()
        norm, taken = clip_and_step(self.optimizer, self.model.parameters(), self.role.clip_grad)
        return all_sum_metrics(sums, self.mesh), norm, taken

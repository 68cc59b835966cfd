"""The critic: values, and the K passes of its update."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from fsdp_backend.batch.columns import Floats, RolloutBatch
from fsdp_backend.batch.packing import Pack
from fsdp_backend.config import TrainConfig
from fsdp_backend.model.loading import load_value
from fsdp_backend.objective.value_loss import value_loss
from fsdp_backend.training.diagnostics import critic_diagnostics
from fsdp_backend.training.learner import Learner


class Critic:
    """The value model with an optimizer, a clock and a plan of its own."""

    def __init__(self, config: TrainConfig, mesh: DeviceMesh) -> None:
        self.ppo, self.seed = config.ppo, config.seed
        self.model = load_value(config.critic.hf_checkpoint, config.critic, mesh)
        self.learner = Learner(self.model, config.critic, mesh, config.num_rollout)

    def values(self, batch: RolloutBatch) -> Floats:
        """[R] V(s_t) of the response tokens under the critic as it is now, float32; 0 where the loss mask is."""
        return self.learner.compute_column(batch, self.model, self.model)

    def update(self, batch: RolloutBatch, rollout_id: int) -> dict[str, float]:
        """K passes over the batch, which needs `values` and `returns`; both stay as they are for all K passes.

        Each pass visits every sample once, in an order seeded by (seed, rollout, pass). The clock moves once a rollout,
        whatever K. What a pass achieved is measured on the samples of the next pass's first step, whose forward is run anyway
        (all samples, where a pass is one step); after the last pass, on those that one more pass would begin with.
        """
        rate = self.learner.advance_clock()
        metrics: dict[str, float] = {"critic-lr": rate, "critic-num_steps": 0, "critic-skipped_steps": 0}
        reports = []
        for k in range(self.ppo.critic_update_steps):
            report = self.learner.run_pass(
                batch, self._value_loss, self.ppo.calculate_per_token_loss, self._order(rollout_id, k)
            )
            reports.append(report)
            metrics["critic-num_steps"] += report.num_steps
            metrics["critic-skipped_steps"] += report.skipped_steps
        before = batch.column("values"), batch.loss_mask != 0
        afterwards = [(report.predictions, report.predicted) for report in reports[1:]]
        afterwards.append(self._first_values(batch, rollout_id))
        for k, (report, after) in enumerate(zip(reports, afterwards, strict=True), start=1):
            of_pass = {**report.metrics, "grad_norm": report.grad_norm, **critic_diagnostics(batch, before, after)}
            metrics |= {f"critic-pass_{k}/{name}": value for name, value in of_pass.items()}
            before = after
        return metrics

    def _order(self, rollout_id: int, k: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, rollout_id, k])

    def _first_values(self, batch: RolloutBatch, rollout_id: int) -> tuple[Floats, NDArray[np.bool_]]:
        """Values of the samples that one more pass would train first, and which tokens those are."""
        first = self.learner.plan(batch, self._order(rollout_id, self.ppo.critic_update_steps))[0]
        column = self.learner.compute_column(batch, self.model, self.model, [first])
        return column, batch.trainable_tokens(first.samples)

    def _value_loss(self, pack: Pack, batch: RolloutBatch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        old, returns = pack.column(batch.column("values")), pack.column(batch.column("returns"))
        values = self.model(pack)
        loss, clipped = value_loss(values, old, returns, self.ppo.value_clip)
        return loss, values, {"value_loss": loss, "value_clipfrac": clipped}

"""The critic: values, and the K passes of its update."""

import numpy as np
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from fsdp_backend import device
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
        self.learner = Learner(self.model, config.critic, mesh, device.current(), config.num_rollout)

    def values(self, batch: RolloutBatch) -> Floats:
        """[R] V(s_t) of the response tokens under the critic as it is now, float32."""
        return self.learner.compute_column(batch, self.model, self.model)

    def update(self, batch: RolloutBatch, rollout_id: int) -> dict[str, float]:
        """K passes over the batch, which needs `values` and `returns`; both stay as they are for all K passes.

        Each pass visits every sample once, in an order seeded by (seed, rollout, pass). The clock moves once a rollout,
        whatever K. The explained variance after a pass costs one forward over the batch.
        """
        rate = self.learner.advance_clock()
        metrics: dict[str, float] = {"critic-lr": rate, "critic-num_steps": 0, "critic-skipped_steps": 0}
        values = batch.column("values")
        for k in range(self.ppo.critic_update_steps):
            order = np.random.default_rng([self.seed, rollout_id, k])
            report = self.learner.run_pass(batch, self._value_loss, self.ppo.calculate_per_token_loss, order)
            after = self.values(batch)
            metrics["critic-num_steps"] += report.num_steps
            metrics["critic-skipped_steps"] += report.skipped_steps
            of_pass = {**report.metrics, "grad_norm": report.grad_norm, **critic_diagnostics(batch, values, after)}
            metrics |= {f"critic-pass_{k + 1}/{name}": value for name, value in of_pass.items()}
            values = after
        return metrics

    def _value_loss(self, pack: Pack, batch: RolloutBatch) -> tuple[Tensor, dict[str, Tensor]]:
        old, returns = pack.column(batch.column("values")), pack.column(batch.column("returns"))
        loss, clipped = value_loss(self.model(pack), old, returns, self.ppo.value_clip)
        return loss, {"value_loss": loss, "value_clipfrac": clipped}

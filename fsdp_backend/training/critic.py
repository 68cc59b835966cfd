"""The critic: values, and the K passes of its update."""

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from fsdp_backend.batch.columns import Floats, RolloutBatch
from fsdp_backend.batch.packing import Pack
from fsdp_backend.batch.plan import hold_out, pass_order
from fsdp_backend.config import TrainConfig
from fsdp_backend.model.loading import load_value
from fsdp_backend.objective.value_loss import value_loss
from fsdp_backend.training.diagnostics import Measured, critic_diagnostics, everywhere, explained
from fsdp_backend.training.learner import Learner, PassReport
from fsdp_backend.training.targets import with_returns


class Critic:
    """The value model with an optimizer, a clock and a plan of its own."""

    def __init__(self, config: TrainConfig, mesh: DeviceMesh) -> None:
        self.ppo, self.seed = config.ppo, config.seed
        self.model = load_value(config.critic.hf_checkpoint, config.critic, mesh, config.require_value_head)
        self.learner = Learner(self.model, config.critic, mesh, config.num_rollout)

    def values(self, batch: RolloutBatch) -> Floats:
        """[R] V(s_t) of the response tokens under the critic as it is now, float32; 0 where the loss mask is."""
        return self.learner.compute_column(batch, self.model, self.model)

    def update(self, batch: RolloutBatch, rollout_id: int) -> dict[str, float]:
        """`ppo.critic_passes` passes over the batch, which needs `values` and `returns` (and with critic_targets refreshed and
        a KL penalty, `log_probs` and `ref_log_probs`).

        Both stay as they are for all passes, or are refreshed before each. A pass visits every sample once, in an order seeded
        by (seed, rollout, pass); samples held out (critic_holdout_fraction) are in none. The clock moves once a rollout.
        """
        rate = self.learner.advance_clock()
        # Telling prompts apart is for those who hold some out.
        prompts = self.ppo.held_out(batch.num_prompts) if self.ppo.critic_holdout_fraction else 0
        trained, held_out = hold_out(batch, prompts, self.seed, rollout_id)
        passes: list[tuple[RolloutBatch, PassReport]] = []
        unseen: dict[str, float] = {}
        for k in range(1, self.ppo.critic_passes + 1):
            if k > 1 and self.ppo.critic_targets == "refreshed":
                trained = with_returns(trained.with_columns(values=self.values(trained)), self.ppo)
                held_out = None if held_out is None else with_returns(held_out, self.ppo)
            order = pass_order(self.seed, rollout_id, k - 1)
            passes.append((trained, self.learner.run_pass(trained, self._value_loss, self.ppo.calculate_per_token_loss, order)))
            if held_out is not None:
                before = explained(held_out, everywhere(held_out))
                values = self.learner.compute_column(held_out, self.model, self.model, [self.learner.plan_whole(held_out)])
                held_out = held_out.with_columns(values=values)
                after = explained(held_out, everywhere(held_out))
                unseen[f"critic-pass_{k}/holdout_explained_variance_before"] = before
                unseen[f"critic-pass_{k}/holdout_explained_variance_after"] = after
        return {
            "critic-lr": rate,
            "critic-num_steps": sum(report.num_steps for _, report in passes),
            "critic-skipped_steps": sum(report.skipped_steps for _, report in passes),
            **self._of_passes(passes, rollout_id),
            **unseen,
        }

    def _of_passes(self, passes: list[tuple[RolloutBatch, PassReport]], rollout_id: int) -> dict[str, float]:
        """Metrics of each pass, against its own targets.

        What a pass achieved is measured on the samples of the next pass's first step, whose forward is run anyway (all samples,
        where a pass is one step, or where targets are refreshed); after the last pass, on those that one more would begin with.
        """
        refreshed = self.ppo.critic_targets == "refreshed"
        afterwards: list[Measured] = [
            everywhere(batch) if refreshed else (report.predictions, report.predicted) for batch, report in passes[1:]
        ]
        afterwards.append(self._first_values(passes[-1][0], rollout_id))
        metrics: dict[str, float] = {}
        before: Measured | None = None
        for k, ((batch, report), after) in enumerate(zip(passes, afterwards, strict=True), start=1):
            if before is None or refreshed:
                before = everywhere(batch)
            of_pass = {**report.metrics, "grad_norm": report.grad_norm, **critic_diagnostics(batch, before, after)}
            metrics |= {f"critic-pass_{k}/{name}": value for name, value in of_pass.items()}
            before = after
        return metrics

    def _first_values(self, batch: RolloutBatch, rollout_id: int) -> Measured:
        """Values of the samples that one more pass would train first, and which tokens those are."""
        first = self.learner.plan(batch, pass_order(self.seed, rollout_id, self.ppo.critic_passes))[0]
        column = self.learner.compute_column(batch, self.model, self.model, [first])
        return column, batch.trainable_tokens(first.samples)

    def _value_loss(self, pack: Pack, batch: RolloutBatch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        old, returns = pack.column(batch.column("values")), pack.column(batch.column("returns"))
        values = self.model(pack)
        loss, clipped = value_loss(values, old, returns, self.ppo.value_clip)
        return loss, values, {"value_loss": loss, "value_clipfrac": clipped}

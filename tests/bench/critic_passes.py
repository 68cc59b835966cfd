"""What one more critic pass costs, against a bare forward and backward of the critic over the same batch.

The pass adds weighing, clipping, the optimizer step and the diagnostics; the bare one has only the loss.
"""

import torch

from fsdp_backend.batch.columns import RolloutBatch
from fsdp_backend.batch.normaliser import token_weights
from fsdp_backend.batch.packing import pack
from fsdp_backend.objective.value_loss import value_loss
from fsdp_backend.session import Session
from fsdp_backend.training.critic import Critic
from tests.bench.engine import alone, critic_of, open_session, set_passes, with_columns
from tests.bench.setting import Setting, make_batch
from tests.bench.table import Row, fastest, rounds_of
from tests.bench.timing import alternate, threads, timed


def rows(setting: Setting) -> list[Row]:
    """K = 2 less K = 1, against a forward and backward."""
    with threads(setting.threads), alone() as mesh:
        session = open_session(setting, mesh)
        prepared = with_columns(session, make_batch(setting))
        two, one, bare = alternate(
            setting.rounds,
            timed(lambda: _update(session, prepared, 2)),
            timed(lambda: _update(session, prepared, 1)),
            timed(lambda: _forward_backward(critic_of(session), prepared)),
        )
    extra, base = fastest(two) - fastest(one), fastest(bare)
    return [Row("K → K + 1 / forward + backward", extra, base, extra / base, "≤ 1.05", rounds=rounds_of(two, one, bare))]


def _update(session: Session, batch: RolloutBatch, k: int) -> None:
    set_passes(session, k)
    critic_of(session).update(batch, 0)


def _forward_backward(critic: Critic, batch: RolloutBatch) -> None:
    """The micro-batches of a pass, without anything around them."""
    learner = critic.learner
    (step,) = learner.plan(batch)
    weights = token_weights(batch, step, False)
    for samples in step.ranks[0]:
        packed = pack(batch, samples, learner.device)
        values, returns = packed.column(batch.column("values")), packed.column(batch.column("returns"))
        loss, _ = value_loss(critic.model(packed), values, returns, critic.ppo.value_clip)
        torch.autograd.backward((loss * packed.column(weights)).sum())
    learner.optimizer.zero_grad()

"""The training part of one PPO iteration, ours against TRL's, over the same prompts and responses.

Same model, float32, same threads, one epoch, one optimizer step of each role. What is fair, and what is not:

- TRL pads every sample to the batch's longest prompt and longest response. The quotient hangs on how much padding that makes of
  the mix of lengths, so the row's name tells.
- TRL gets no gradient checkpointing and the fastest of several micro-batch sizes. We pack by one token budget, not tuned.
- With a KL penalty both optimise the same. TRL takes the old log-probs from generation and computes those of the reference; we
  compute both, which is a forward pass more.
- Without one, TRL computes the reference's log-probs all the same. We need none: with one optimizer step, the old log-probs are
  the step's own.
- TRL's reward model is left out, and what it does between the optimizer step and the next generation. Both compute metrics, the
  entropy among them, and both whiten the advantages. We clip gradients, TRL doesn't. Our critic takes the values once more
  after its last pass, for the explained variance; TRL doesn't.
- TRL sees logits of zero that take no memory, in place of those that generation would have stored: to its advantage.
- Both stand in one process and are timed in turn.

PPOTrainer left TRL in release 1.13; the `bench` extra pins the last with it.
"""

import os
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from fsdp_backend.batch.columns import RolloutBatch
from fsdp_backend.model.policy import PolicyModel
from fsdp_backend.session import Session
from tests.bench.engine import OBJECTIVE, alone, open_session
from tests.bench.setting import Setting, make_batch
from tests.bench.table import Row, Skipped, fastest, rounds_of
from tests.bench.timing import alternate, threads, timed

if TYPE_CHECKING:
    from tests.bench.trl_driver import TRL

TARGET = "≥ 3"
KL_COEF = 0.05


def rows(setting: Setting) -> list[Row]:
    """With and without a KL penalty on our side; TRL's does the same work in both."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    if find_spec("trl") is None or find_spec("trl.experimental.ppo") is None:
        raise Skipped("update against TRL: no TRL with a PPOTrainer is installed (pip install -e '.[bench]')")
    batch = make_batch(setting)
    with threads(setting.threads), ExitStack() as stack:
        trl = _fastest_trainer(setting, batch, stack)
        mesh = stack.enter_context(alone())
        session = open_session(setting, mesh, replace(OBJECTIVE, kl_coef=KL_COEF))
        reference = session.actor.reference
        with_kl, other, without = alternate(
            setting.rounds,
            timed(lambda: _iterate(session, reference, batch)),
            trl.update_seconds,
            timed(lambda: _iterate(session, None, batch)),
        )
    used = int(batch.total_lengths.sum()) / (len(batch) * int(batch.prompt_lengths.max() + batch.response_lengths.max()))
    name = f"update against TRL, {used:.0%} of whose positions are tokens"
    return [_row(f"{name}, with KL penalty", with_kl, other), _row(f"{name}, without", without, other)]


def _fastest_trainer(setting: Setting, batch: RolloutBatch, stack: ExitStack) -> "TRL":
    """With the fastest of TRL's micro-batch sizes, which are tried in one update each, and past its first update."""
    from tests.bench.trl_driver import opened

    def seconds(micro_batch: int) -> float:
        with opened(setting, batch, micro_batch) as trl:
            return trl.update_seconds()

    sizes = setting.trl_micro_batches
    best = min(sizes, key=seconds) if len(sizes) > 1 else sizes[0]
    trl = stack.enter_context(opened(setting, batch, best))
    trl.update_seconds()
    return trl


def _iterate(session: Session, reference: PolicyModel | None, batch: RolloutBatch) -> None:
    """With a KL penalty, or without reference and penalty. One session does both, to save memory."""
    session.actor.reference = reference
    session.ppo = session.actor.ppo = replace(OBJECTIVE, kl_coef=0.0 if reference is None else KL_COEF)
    session.iterate(batch, 0)


def _row(name: str, ours: list[float], other: list[float]) -> Row:
    a, b = fastest(ours), fastest(other)
    return Row(name, a, b, b / a, TARGET, rounds=rounds_of(ours, other))

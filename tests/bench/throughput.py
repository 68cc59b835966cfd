"""Useful FLOP/s of the update over those of the machine's own matrix product, measured in turn with the same threads.

Useful is what no implementation can leave out: of an update a forward and a backward pass, of the whole iteration the values
before it as well; in each the blocks over all tokens, causal attention, and the head at response tokens. Not counted are old
log-probs (those of the one optimizer step are its own), recomputed operations, the optimizer, and values for diagnostics.

On a CPU in float32. On an accelerator in bfloat16, where the ratio is the model FLOPs utilisation over a measured peak, with a
row for memory; that part is untested, because no accelerator was at hand.
"""

import torch

from fsdp_backend import device
from fsdp_backend.session import Session
from tests.bench import flops
from tests.bench.engine import alone, critic_of, open_session, with_columns
from tests.bench.setting import Setting, make_batch
from tests.bench.table import Row, fastest, rounds_of
from tests.bench.timing import alternate, threads, timed

TARGET = "≥ 0.70"


def rows(setting: Setting) -> list[Row]:
    """The actor's update, the critic's, and the whole iteration with both."""
    with threads(setting.threads), alone() as mesh:
        session = open_session(setting, mesh, bf16=device.accelerator_count() > 0)
        return [*_rates(setting, session), *_memory(session)]


def _rates(setting: Setting, session: Session) -> list[Row]:
    dtype = torch.bfloat16 if device.accelerator_count() else torch.float32
    batch = make_batch(setting)
    prepared = with_columns(session, batch)
    policy, value = flops.policy_flops(setting.shape, batch), flops.value_flops(setting.shape, batch)
    updates = flops.FORWARD_BACKWARD * policy, flops.FORWARD_BACKWARD * value
    useful = {
        "actor update": updates[0],
        "critic update": updates[1],
        "whole iteration": value + sum(updates),
    }
    *measured, gemm = alternate(
        setting.rounds,
        timed(lambda: session.actor.update(prepared, 0)),
        timed(lambda: critic_of(session).update(prepared, 0)),
        timed(lambda: session.iterate(batch, 0)),
        lambda: flops.gemm_seconds_per_flop(setting, dtype),
    )
    peak = 1e-9 / fastest(gemm)
    return [
        Row(f"{name}: useful FLOP/s / GEMM", rate, peak, rate / peak, TARGET, "GFLOP/s", rounds_of(seconds, gemm))
        for (name, count), seconds in zip(useful.items(), measured, strict=True)
        for rate in [1e-9 * count / fastest(seconds)]
    ]


def _memory(session: Session) -> list[Row]:
    """Peak memory of an accelerator over that of the float32 weights, gradients and two moments of both roles."""
    if not device.accelerator_count():
        return []
    models = (session.actor.model, critic_of(session).model)
    state = 4 * 4 * sum(p.numel() for model in models for p in model.parameters()) / 2**30
    peak = torch.accelerator.max_memory_allocated() / 2**30
    return [Row("peak memory / weights, gradients, moments", peak, state, peak / state, "", "GiB")]

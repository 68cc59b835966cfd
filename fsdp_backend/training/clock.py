"""The learning-rate clock: the rate as a function of how many rollouts a role has trained on.

It counts rollouts and not optimizer steps, so K critic passes, or smaller batches, do not make a schedule run faster.
"""

import math

from fsdp_backend.config import RoleConfig


def learning_rate(config: RoleConfig, rollout: int, num_rollout: int) -> float:
    """Rate of the updates of rollout `rollout` (0 is the role's first), in the formulas of Megatron's OptimizerParamScheduler.

    Warmup is linear from lr_warmup_init, which is the first rate. `lr_decay_iters` (default `num_rollout`) ends the decay;
    after it the rate is min_lr, except for the constant style.
    """
    warmup, horizon = config.lr_warmup_iters, num_rollout if config.lr_decay_iters is None else config.lr_decay_iters
    if warmup > 0 and rollout <= warmup:
        return config.lr_warmup_init + (config.lr - config.lr_warmup_init) * rollout / warmup
    if config.lr_decay_style == "constant":
        return config.lr
    if rollout > horizon:
        return config.min_lr
    if config.lr_decay_style == "inverse-square-root":
        start = max(warmup, 1)
        return max(config.min_lr, config.lr * math.sqrt(start) / math.sqrt(max(rollout, 1)))
    return config.min_lr + _decay(config, rollout, warmup, horizon) * (config.lr - config.min_lr)


def _decay(config: RoleConfig, rollout: int, warmup: float, horizon: int) -> float:
    """Coefficient of (lr - min_lr): 1 at the end of warmup, 0 at the horizon."""
    done = (rollout - warmup) / (horizon - warmup) if horizon > warmup else 1.0
    if config.lr_decay_style == "linear":
        return 1 - done
    if config.lr_decay_style == "cosine":
        return (math.cos(math.pi * done) + 1) / 2
    length = horizon if config.lr_wsd_decay_iters is None else config.lr_wsd_decay_iters
    if rollout <= horizon - length:
        return 1.0
    annealed = (rollout - (horizon - length)) / length
    shapes = {
        "linear": 1 - annealed,
        "cosine": (math.cos(math.pi * annealed) + 1) / 2,
        "exponential": 2 * math.pow(0.5, annealed) - 1,
        "minus_sqrt": 1 - math.sqrt(annealed),
    }
    return shapes[config.lr_wsd_decay_style]

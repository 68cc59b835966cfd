"""Functions for --custom-loss-function-path, as a person would write them, and broken ones."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

calls: list[tuple[Any, dict[str, Any], Tensor]] = []
Sum = Callable[[Tensor], Tensor]


def ppo(args: Any, batch: dict[str, Any], logits: Tensor, sum_of_sample_mean: Sum) -> tuple[Tensor, dict[str, Tensor]]:
    """The clipped loss with an entropy bonus, of the whole softmax."""
    assert logits.dtype == torch.float32
    log_probs, entropies, start = [], [], 0
    for tokens, total, response in zip(
        batch["unconcat_tokens"], batch["total_lengths"], batch["response_lengths"], strict=True
    ):
        end = start + total
        table = (logits[0, end - response - 1 : end - 1] / args.rollout_temperature).log_softmax(-1)
        log_probs.append(table.gather(1, tokens[-response:, None])[:, 0])
        entropies.append(-(table.exp() * table).sum(-1))
        start = end
    assert logits.shape[:2] == batch["tokens"].shape == (1, start)
    ratio = (torch.cat(log_probs) - torch.cat(batch["log_probs"])).exp()
    advantages = torch.cat(batch["advantages"])
    clipped = ratio.clamp(1 - args.eps_clip, 1 + args.eps_clip)
    pg_loss = sum_of_sample_mean(torch.maximum(-ratio * advantages, -clipped * advantages))
    entropy = sum_of_sample_mean(torch.cat(entropies))
    return pg_loss - args.entropy_coef * entropy, {"pg_loss": pg_loss, "entropy": entropy.detach()}


def records(args: Any, batch: dict[str, Any], logits: Tensor, sum_of_sample_mean: Sum) -> tuple[Tensor, dict[str, Tensor]]:
    """Sums ones."""
    calls.append((args, batch, logits))
    ones = torch.ones(sum(batch["response_lengths"]))
    return logits.sum() * 0 + sum_of_sample_mean(ones), {"ones": sum_of_sample_mean(ones)}


def returns_a_loss_alone(args: Any, batch: dict[str, Any], logits: Tensor, sum_of_sample_mean: Sum) -> Any:
    return logits.sum()


def returns_a_vector(args: Any, batch: dict[str, Any], logits: Tensor, sum_of_sample_mean: Sum) -> Any:
    return logits[0, :, 0], {}


def reports_a_vector(args: Any, batch: dict[str, Any], logits: Tensor, sum_of_sample_mean: Sum) -> Any:
    return logits.sum(), {"per_token": logits[0, :, 0]}


def reports_now_and_then(args: Any, batch: dict[str, Any], logits: Tensor, sum_of_sample_mean: Sum) -> Any:
    """At every other call."""
    calls.append((args, batch, logits))
    return logits.sum(), {"one": 1.0} if len(calls) % 2 else {}

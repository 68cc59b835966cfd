"""Advantages and returns of jagged responses.

Notation: n samples, R response tokens of all samples one after another; sample i owns [offsets[i], offsets[i + 1]).
Tokens with loss mask 0 (tool output, observations) take no part: everything runs over the trainable tokens of a sample.
"""

import torch
from torch import Tensor


def gae(
    values: Tensor, token_rewards: Tensor, loss_mask: Tensor, offsets: Tensor, gamma: float, lambd: float | Tensor
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (Schulman et al., arXiv 1506.02438, eq. 16) over each sample's trainable tokens.

    The value after the last trainable token is 0. Tokens masked out are skipped, so the next token of a trainable one is the
    next trainable one.

    Args:
        values: V(s_t), [R] float.
        token_rewards: [R] float; what stands at masked tokens is ignored.
        loss_mask: [R], nonzero = trainable.
        offsets: [n + 1] int64.
        gamma: discount per token.
        lambd: one lambda, or one a sample [n].

    Returns:
        advantages and returns (advantages + values), both [R], 0 at masked tokens.
    """
    trainable = loss_mask.bool()
    sample = torch.repeat_interleave(torch.arange(len(offsets) - 1), offsets.diff())[trainable]
    lengths = torch.bincount(sample, minlength=len(offsets) - 1)
    width = int(lengths.max()) if len(lengths) else 0
    # Right-aligned [n, width] rectangle, so that one backward sweep over columns serves every sample.
    within = torch.arange(len(sample)) - torch.repeat_interleave(lengths.cumsum(0) - lengths, lengths)
    column = width - lengths[sample] + within
    value = values.new_zeros(len(lengths), width + 1)
    reward = values.new_zeros(len(lengths), width)
    value[sample, column] = values[trainable]
    reward[sample, column] = token_rewards[trainable].to(values.dtype)

    decay = gamma * (lambd.to(values.dtype) if isinstance(lambd, Tensor) else lambd)
    delta = reward + gamma * value[:, 1:] - value[:, :-1]
    running = values.new_zeros(len(lengths))
    swept = torch.zeros_like(delta)
    for t in reversed(range(width)):
        running = delta[:, t] + decay * running
        swept[:, t] = running
    advantages = torch.zeros_like(values)
    advantages[trainable] = swept[sample, column]
    return advantages, torch.where(trainable, advantages + values, 0)


def discounted_returns(token_rewards: Tensor, offsets: Tensor, gamma: float) -> Tensor:
    """The sum of a response's rewards from each token on, discounted for every token, masked ones included, as slime, miles and
    molt do (REINFORCE++, arXiv 2501.03262). [R] in and out."""
    every = torch.ones_like(token_rewards)
    return gae(torch.zeros_like(token_rewards), token_rewards, every, offsets, gamma, lambd=1.0)[0]


def length_adaptive_lambda(loss_mask: Tensor, offsets: Tensor, alpha: float) -> Tensor:
    """lambda = 1 - 1 / (alpha * l), clamped to [0, 1], with l the trainable tokens of a sample (VAPO, arXiv 2504.05118).

    Returns: [n] float64.
    """
    prefix = torch.cat([torch.zeros(1, dtype=torch.int64), loss_mask.bool().long().cumsum(0)])
    lengths = prefix[offsets[1:]] - prefix[offsets[:-1]]
    return 1 - 1 / (alpha * lengths.double()).clamp(min=1)


def whiten(advantages: Tensor, loss_mask: Tensor, epsilon: float = 1e-8) -> Tensor:
    """Shift and scale to mean 0 and variance 1 over all trainable tokens, with the unbiased variance (two passes, float64).

    The same shift and scale are applied to masked tokens. Fewer than two trainable tokens: the variance counts as 0.
    """
    kept = advantages.double()[loss_mask.bool()]
    mean = kept.mean() if len(kept) else kept.new_zeros(())
    variance = kept.var() if len(kept) > 1 else kept.new_zeros(())
    return ((advantages.double() - mean) / torch.sqrt(variance + epsilon)).to(advantages.dtype)

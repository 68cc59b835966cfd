"""The language-model head that yields log-probs of given tokens, and never a [tokens, vocab] matrix."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

TOKENS_PER_CHUNK = 1024


class LogProbHead(nn.Linear):
    """An `nn.Linear` from hidden states to vocabulary, so that FSDP's hooks fire, called with the tokens to look up.

    It works through `TOKENS_PER_CHUNK` tokens at a time and recomputes each chunk's logits in the backward pass: one chunk's
    logits are alive at a time.
    """

    @classmethod
    def of(cls, linear: nn.Linear) -> "LogProbHead":
        """The same head, sharing the very parameters of `linear` (a tied embedding stays tied)."""
        head = cls(linear.in_features, linear.out_features, bias=linear.bias is not None, device="meta")
        head.weight = linear.weight
        head.bias = linear.bias
        return head

    def forward(  # type: ignore[override]
        self, hidden: Tensor, targets: Tensor, temperature: float, entropy_grad: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Args: hidden [T, H]; targets [T] int64. The logits are divided by `temperature`.

        Returns: log-probs of the targets and entropy in nats, both [T] float32 (float64 for float64 input). The entropy
        carries a gradient only with `entropy_grad`.
        """
        chunk = partial(_log_prob_and_entropy, temperature=temperature, entropy_grad=entropy_grad)
        pieces = [
            checkpoint(chunk, h, self.weight, self.bias, t, use_reentrant=False)
            for h, t in zip(torch.split(hidden, TOKENS_PER_CHUNK), torch.split(targets, TOKENS_PER_CHUNK), strict=True)
        ]
        return torch.cat([p[0] for p in pieces]), torch.cat([p[1] for p in pieces])


def _log_prob_and_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, *, temperature: float, entropy_grad: bool
) -> tuple[Tensor, Tensor]:
    logits = nn.functional.linear(hidden, weight, bias)
    logits = (logits if logits.dtype == torch.float64 else logits.float()) / temperature
    log_normaliser = torch.logsumexp(logits, dim=-1)
    log_prob = logits.gather(-1, targets[:, None]).squeeze(-1) - log_normaliser
    with torch.set_grad_enabled(torch.is_grad_enabled() and entropy_grad):
        log_probabilities = logits - log_normaliser[:, None]
        entropy = -(torch.exp(log_probabilities) * log_probabilities).sum(-1)
    return log_prob, entropy

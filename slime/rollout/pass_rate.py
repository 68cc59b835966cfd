"""pass@k: the chance that at least one of k responses to a prompt is right."""

import math
from collections.abc import Sequence


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Unbiased estimate from n responses of which `correct` are right: 1 - C(n-c, k) / C(n, k).

    Chen et al., Evaluating Large Language Models Trained on Code (arXiv 2107.03374), equation 1.
    """
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def pass_rates(rewards: Sequence[float], n: int) -> dict[str, float]:
    """`pass@k`, the mean over prompts, for k = 1, 2, 4 … up to n, the number of responses to each prompt, which stand side by
    side. Empty for a single response, whose mean reward says it already, and where rewards are not all 0 or 1."""
    if n < 2 or not rewards or len(rewards) % n or any(reward not in (0, 1) for reward in rewards):
        return {}
    correct = [int(sum(rewards[start : start + n])) for start in range(0, len(rewards), n)]
    powers = [2**i for i in range(n.bit_length())]
    return {f"pass@{k}": sum(pass_at_k(n, c, k) for c in correct) / len(correct) for k in powers}

"""How much of the returns a critic explains."""

import math

from torch import Tensor


def explained_variance(values: Tensor, returns: Tensor, loss_mask: Tensor) -> float:
    """1 - Var(returns - values) / Var(returns) over the trainable tokens, in float64.

    1 is a perfect critic (up to a constant), 0 one as good as any constant, negative one that is worse. NaN when the returns
    do not vary or there are fewer than two trainable tokens, because nothing can be explained then. Returns come as float32
    sums of advantages and values, so what varies by no more than the rounding of either does not count as varying.
    """
    kept = loss_mask.bool()
    target, value = returns.double()[kept], values.double()[kept]
    if len(target) < 2:
        return math.nan
    variance = float(target.var(unbiased=False))
    rounding = 1e-12 * float((target.square() + value.square()).mean())
    if variance <= rounding:
        return math.nan
    return 1.0 - float((target - value).var(unbiased=False)) / variance

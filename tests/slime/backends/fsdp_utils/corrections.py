"""Functions for --custom-tis-function-path, as a person would write them, and broken ones."""

from typing import Any

import torch
from torch import Tensor

calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
Corrected = tuple[Tensor, list[Tensor], dict[str, Tensor]]


def records(*args: Any, **kwargs: Any) -> Corrected:
    """Changes nothing."""
    calls.append((args, kwargs))
    return kwargs["pg_loss"], kwargs["loss_masks"], {}


def vanilla(
    args: Any,
    *,
    pg_loss: Tensor,
    train_log_probs: list[Tensor],
    rollout_log_probs: list[Tensor],
    loss_masks: list[Tensor],
    **kwargs: Any,
) -> Corrected:
    """Truncated importance sampling, as slime has it."""
    ratio = torch.exp(torch.cat(train_log_probs) - torch.cat(rollout_log_probs))
    weights = ratio.clamp(min=args.tis_clip_low, max=args.tis_clip)
    clipped = (weights != ratio).float()
    return pg_loss * weights, loss_masks, {"tis": ratio, "tis_clipfrac": clipped, "tis_abs": (ratio - 1).abs()}


def numbered(args: Any, *, pg_loss: Tensor, loss_masks: list[Tensor], **kwargs: Any) -> Corrected:
    """Weighs each token by its place among all response tokens, from 0, and leaves out the last token of every sample."""
    place = torch.arange(len(pg_loss))
    for mask in loss_masks:
        mask[-1] = 0
    return pg_loss * place, loss_masks, {"place": place}


def short_loss(args: Any, *, pg_loss: Tensor, loss_masks: list[Tensor], **kwargs: Any) -> Corrected:
    return pg_loss[1:], loss_masks, {}


def missing_mask(args: Any, *, pg_loss: Tensor, loss_masks: list[Tensor], **kwargs: Any) -> Corrected:
    return pg_loss, loss_masks[1:], {}


def averaged_metric(args: Any, *, pg_loss: Tensor, loss_masks: list[Tensor], **kwargs: Any) -> Corrected:
    return pg_loss, loss_masks, {"mean": pg_loss.mean()}


def returns_no_mask(args: Any, *, pg_loss: Tensor, **kwargs: Any) -> Any:
    return pg_loss, None, {}


def returns_metrics_in_a_list(args: Any, *, pg_loss: Tensor, loss_masks: list[Tensor], **kwargs: Any) -> Any:
    return pg_loss, loss_masks, [pg_loss]


def reports_now_and_then(args: Any, *, pg_loss: Tensor, loss_masks: list[Tensor], **kwargs: Any) -> Corrected:
    """At every other call."""
    calls.append(((), {}))
    return pg_loss, loss_masks, {"loss": pg_loss} if len(calls) % 2 else {}

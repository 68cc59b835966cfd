"""From rewarded samples to the RolloutBatch that training takes, and the rollout's own metrics."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fsdp_backend.batch.columns import RolloutBatch
from slime.arguments.errors import UserError
from slime.utils.types import Sample

_NOT_TRAINED_ON = {
    "multimodal_inputs": "only text is trained on",
    "multimodal_train_inputs": "only text is trained on",
    "rollout_routed_experts": "training chooses its own experts",
    "teacher_log_probs": "there is no distillation",
}
"""What a sample may carry in slime and training here would ignore, and why."""


def to_batch(args: Any, samples: Sequence[Sample], rewards: Sequence[float]) -> RolloutBatch:
    """Samples and the rewards to train on, one each. Raises UserError, naming the sample, where one is not fit to train on."""
    require_trainable(args, samples)
    top_p = [_top_p_sets(sample) for sample in samples if sample.rollout_top_p_token_ids is not None]
    if top_p and len(top_p) < len(samples):
        bare = next(sample for sample in samples if sample.rollout_top_p_token_ids is None)
        raise UserError(f"sample {bare.index} has no rollout_top_p_token_ids, which other samples of the rollout have")
    return RolloutBatch.from_samples(
        tokens=[sample.tokens for sample in samples],
        response_lengths=[sample.response_length for sample in samples],
        loss_masks=[_loss_mask(sample) for sample in samples],
        rewards=rewards,
        rollout_index=[sample.index if sample.rollout_id is None else sample.rollout_id for sample in samples],  # type: ignore[misc]
        sample_index=[sample.index for sample in samples],  # type: ignore[misc]
        truncated=[sample.status == Sample.Status.TRUNCATED for sample in samples],
        weight_version=[int(sample.weight_versions[-1]) if sample.weight_versions else 0 for sample in samples],
        rollout_log_probs=_rollout_log_probs(args, samples),
        top_p_token_ids=top_p or None,
    )


def require_trainable(args: Any, samples: Sequence[Sample]) -> None:
    """Raises UserError for the first sample that is not complete, whose columns have other lengths than its response, that has
    no finite reward, or that carries what training would ignore."""
    if not samples:
        raise UserError("the rollout has no samples")
    for sample in samples:
        _require_response(sample)
        for name, why in _NOT_TRAINED_ON.items():
            if getattr(sample, name) is not None:
                raise UserError(f"sample {sample.index} has {name}, which has no use here: {why}")
        try:
            finite = math.isfinite(sample.get_reward_value(args))
        except (KeyError, TypeError):
            finite = False
        if not finite:
            wanted = "needs a finite number, or a dict with --reward-key"
            raise UserError(f"sample {sample.index} has the reward {sample.reward!r}: {wanted}")


def _require_response(sample: Sample) -> None:
    name, length = f"sample {sample.index}", sample.response_length
    if sample.index is None:
        raise UserError(f"a sample has no index, which the data source gave it (prompt {str(sample.prompt)[-80:]!r})")
    if sample.status not in (Sample.Status.COMPLETED, Sample.Status.TRUNCATED):
        raise UserError(f"{name} is {sample.status.value}: its generate function must complete it")
    if not 0 < length < len(sample.tokens):
        raise UserError(f"{name} has {len(sample.tokens)} tokens with a response of {length}: needs a prompt and a response")
    for column in ("loss_mask", "rollout_log_probs"):
        entries = getattr(sample, column)
        if entries is not None and len(entries) != length:
            raise UserError(f"{name} has {len(entries)} entries in {column} for a response of {length} tokens")


def _rollout_log_probs(args: Any, samples: Sequence[Sample]) -> list[list[float]] | None:
    without = [sample for sample in samples if sample.rollout_log_probs is None]
    if without and args.loss_type != "sft_loss" and (args.use_tis or args.use_rollout_logprobs):
        raise UserError(
            f"sample {without[0].index} has no rollout_log_probs, which --use-tis and --use-rollout-logprobs need: "
            "its generate function must fill them in"
        )
    return None if without else [sample.rollout_log_probs for sample in samples]  # type: ignore[misc]


def _loss_mask(sample: Sample) -> list[int]:
    if sample.remove_sample:
        return [0] * sample.response_length
    return sample.loss_mask if sample.loss_mask is not None else [1] * sample.response_length


def _top_p_sets(sample: Sample) -> list[Any]:
    """The ids of each response token."""
    ids, offsets = np.asarray(sample.rollout_top_p_token_ids), sample.rollout_top_p_token_offsets
    if offsets is None or len(offsets) != sample.response_length + 1 or int(offsets[-1]) != len(ids):
        raise UserError(
            f"sample {sample.index}: rollout_top_p_token_offsets must have {sample.response_length + 1} entries, the last the "
            f"length of rollout_top_p_token_ids, {len(ids)}"
        )
    return [ids[int(start) : int(stop)] for start, stop in itertools.pairwise(offsets)]


def rollout_metrics(batch: RolloutBatch, rewards: Sequence[float]) -> dict[str, float]:
    """Means over the samples. `rewards` are those they got, not those that training uses; none in supervised training."""
    reward = {"rollout/reward": float(np.mean(rewards)), "rollout/reward_std": float(np.std(rewards))} if rewards else {}
    return reward | {
        "rollout/response_length": float(batch.response_lengths.mean()),
        "rollout/trainable_length": float(batch.trainable_lengths.mean()),
        "rollout/prompt_length": float(batch.prompt_lengths.mean()),
        "rollout/truncated": float(batch.truncated.mean()),
        "rollout/num_samples": float(len(batch)),
    }

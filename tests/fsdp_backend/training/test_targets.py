"""From rewards, values and log-probs to advantages and returns."""

import numpy as np
import pytest
import torch

from fsdp_backend.batch.columns import RolloutBatch
from fsdp_backend.config import PPOConfig
from fsdp_backend.training.targets import with_advantages, with_returns
from tests.golden import Case, cases
from tests.tiny import random_batch


def with_targets(batch: RolloutBatch, ppo: PPOConfig) -> RolloutBatch:
    return with_advantages(with_returns(batch, ppo), ppo)


def batch_with_values(seed: int = 0) -> RolloutBatch:
    batch = random_batch(6, seed, masked=True)
    draw = np.random.default_rng(seed)
    size = int(batch.response_offsets[-1])
    columns = {name: draw.normal(size=size).astype(np.float32) for name in ("values", "log_probs", "ref_log_probs")}
    return batch.with_columns(**columns)


def test_with_lambda_and_gamma_one_every_return_is_the_reward() -> None:
    batch = with_targets(batch_with_values(), PPOConfig())
    want = np.repeat(batch.reward, batch.response_lengths) * batch.loss_mask
    np.testing.assert_allclose(batch.column("returns"), want, atol=1e-5)
    np.testing.assert_allclose(batch.column("advantages"), want - batch.column("values") * batch.loss_mask, atol=1e-5)


def test_the_kl_penalty_is_in_the_advantages_and_in_the_returns_alike() -> None:
    batch = batch_with_values()
    plain, shaped = with_targets(batch, PPOConfig()), with_targets(batch, PPOConfig(kl_coef=0.3))
    advantage_change = shaped.column("advantages") - plain.column("advantages")
    return_change = shaped.column("returns") - plain.column("returns")
    np.testing.assert_allclose(advantage_change, return_change, atol=1e-5)
    start, stop = batch.response_offsets[0], batch.response_offsets[1]
    kl = (batch.column("log_probs") - batch.column("ref_log_probs")) * batch.loss_mask
    first = int(np.argmax(batch.loss_mask[start:stop]))
    assert np.isclose(return_change[start + first], -0.3 * kl[start:stop].sum(), atol=1e-4)


def test_the_critic_may_have_a_lambda_of_its_own() -> None:
    batch = batch_with_values()
    decoupled = with_targets(batch, PPOConfig(lambd=0.5, critic_lambd=0.9))
    np.testing.assert_array_equal(
        decoupled.column("advantages"), with_targets(batch, PPOConfig(lambd=0.5)).column("advantages")
    )
    np.testing.assert_array_equal(decoupled.column("returns"), with_targets(batch, PPOConfig(lambd=0.9)).column("returns"))


def test_an_adaptive_lambda_changes_the_advantages_and_not_the_returns() -> None:
    batch = batch_with_values()
    adaptive, plain = with_targets(batch, PPOConfig(lambd_alpha=0.4)), with_targets(batch, PPOConfig())
    np.testing.assert_array_equal(adaptive.column("returns"), plain.column("returns"))
    assert np.abs(adaptive.column("advantages") - plain.column("advantages")).max() > 0.01


def test_normalised_advantages_have_mean_zero_and_deviation_one_over_trainable_tokens() -> None:
    batch = with_targets(batch_with_values(), PPOConfig(normalize_advantages=True))
    kept = batch.column("advantages")[batch.loss_mask != 0]
    assert abs(kept.mean()) < 1e-5
    assert abs(kept.std(ddof=1) - 1) < 1e-4


def test_the_batch_handed_in_is_left_alone_even_when_it_is_read_only() -> None:
    batch = batch_with_values()
    for column in (batch.reward, batch.values, batch.loss_mask):
        assert column is not None
        column.flags.writeable = False
    with_targets(batch, PPOConfig(kl_coef=0.1, normalize_advantages=True))
    assert batch.advantages is None


def kl_of(batch: RolloutBatch) -> np.ndarray:
    return batch.column("log_probs") - batch.column("ref_log_probs")


@pytest.mark.parametrize("estimator", ["grpo", "gspo", "cispo"])
def test_group_estimators_put_the_samples_reward_on_every_token(estimator: str) -> None:
    batch = with_advantages(batch_with_values().with_columns(values=None), PPOConfig(advantage_estimator=estimator))  # type: ignore[arg-type]
    np.testing.assert_array_equal(batch.column("advantages"), np.repeat(batch.reward, batch.response_lengths))


def test_reinforce_plus_plus_discounts_the_reward_and_the_kl_penalty() -> None:
    batch = batch_with_values().with_columns(values=None)
    ppo = PPOConfig(advantage_estimator="reinforce_plus_plus", kl_coef=0.3, gamma=0.9)
    shaped = with_advantages(batch, ppo).column("advantages")
    start, stop = batch.response_offsets[1:3]
    mask, running, last = batch.loss_mask[start:stop], 0.0, np.flatnonzero(batch.loss_mask[start:stop])[-1]
    for t in reversed(range(stop - start)):
        reward = -0.3 * kl_of(batch)[start + t] * mask[t] + (batch.reward[1] if t == last else 0.0)
        running = reward + 0.9 * running
        assert np.isclose(shaped[start + t], running, atol=1e-6)


@pytest.mark.parametrize(
    "case",
    [case for case in cases("10_reinforce_grpo") if case.params["kind"] == "reinforce_plus_plus_baseline_advantages"],
    ids=str,
)
def test_the_baseline_form_takes_the_kl_penalty_of_each_token_alone(case: Case) -> None:
    lengths = [len(row) for row in case.inputs["kl"]]
    batch = RolloutBatch.from_samples(
        [[0] * (m + 1) for m in lengths], lengths, [[1] * m for m in lengths], case.inputs["rewards"]
    )
    flat = case.tensor("kl", torch.float32).numpy()
    batch = batch.with_columns(log_probs=flat, ref_log_probs=np.zeros_like(flat))
    ppo = PPOConfig(advantage_estimator="reinforce_plus_plus_baseline", kl_coef=case.params["kl_coef"])
    case.assert_close("advantages", torch.from_numpy(with_advantages(batch, ppo).column("advantages")))

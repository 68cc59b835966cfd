"""The learning rate of each rollout against golden tables."""

from typing import Any

import pytest
import torch

from fsdp_backend.config import RoleConfig
from fsdp_backend.training.clock import learning_rate
from tests.golden import Case, cases

FLAGS = {
    "init_lr": "lr_warmup_init",
    "max_lr": "lr",
    "min_lr": "min_lr",
    "lr_warmup_steps": "lr_warmup_iters",
    "lr_decay_steps": "lr_decay_iters",
    "lr_decay_style": "lr_decay_style",
    "wsd_decay_steps": "lr_wsd_decay_iters",
    "lr_wsd_decay_style": "lr_wsd_decay_style",
}
"""Names in the golden tables, and the fields that they are here."""


def role(case: Case, **changes: Any) -> RoleConfig:
    given = {FLAGS[name]: value for name, value in case.params.items() if name in FLAGS}
    return RoleConfig(hf_checkpoint="x", **given | changes)


def rates(config: RoleConfig, rollouts: int, num_rollout: int) -> torch.Tensor:
    return torch.tensor([learning_rate(config, rollout, num_rollout) for rollout in range(rollouts)], dtype=torch.float64)


@pytest.mark.parametrize("case", cases("15_lr_schedule"), ids=str)
def test_each_style_gives_its_rate_table_whatever_the_length_of_the_run(case: Case) -> None:
    for num_rollout in (1, 1000):
        case.assert_close("lr", rates(role(case), case.params["num_updates"], num_rollout))


@pytest.mark.parametrize("case", cases("15_lr_schedule"), ids=str)
def test_decay_ends_with_the_run_when_no_end_is_given(case: Case) -> None:
    config = role(case, lr_decay_iters=None)
    case.assert_close("lr", rates(config, case.params["num_updates"], case.params["lr_decay_steps"]))


@pytest.mark.parametrize("style", ["linear", "cosine", "exponential", "minus_sqrt"])
def test_the_final_decay_of_wsd_is_the_whole_run_when_no_length_is_given(style: Any) -> None:
    whole = RoleConfig(hf_checkpoint="x", lr_decay_style="WSD", lr_wsd_decay_style=style)
    named = RoleConfig(hf_checkpoint="x", lr_decay_style="WSD", lr_wsd_decay_style=style, lr_wsd_decay_iters=8)
    assert rates(whole, 12, num_rollout=8).tolist() == rates(named, 12, num_rollout=8).tolist()
    assert learning_rate(whole, 1, num_rollout=8) < whole.lr


@pytest.mark.parametrize("style", ["constant", "linear", "cosine", "inverse-square-root", "WSD"])
def test_the_first_rollout_trains_at_the_peak_rate_without_warmup(style: Any) -> None:
    config = RoleConfig(hf_checkpoint="x", lr=3e-6, min_lr=1e-6, lr_decay_style=style)
    assert learning_rate(config, 0, num_rollout=8) == pytest.approx(3e-6, rel=1e-12)


def test_inverse_square_root_stops_falling_at_the_smallest_rate() -> None:
    config = RoleConfig(hf_checkpoint="x", lr=1.0, min_lr=0.5, lr_decay_style="inverse-square-root")
    assert rates(config, 10, num_rollout=100).tolist() == pytest.approx([1.0, 1.0, 0.5**0.5, 3**-0.5, *[0.5] * 6])

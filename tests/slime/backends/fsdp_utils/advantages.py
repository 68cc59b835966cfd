"""Functions for --custom-advantage-function-path, as a person would write them, and broken ones."""

from typing import Any

import torch

calls: list[tuple[Any, dict[str, Any]]] = []


def records(args: Any, rollout_data: dict[str, Any]) -> None:
    """Numbers the tokens."""
    calls.append((args, dict(rollout_data)))
    lengths = rollout_data["response_lengths"]
    rollout_data["advantages"] = [torch.arange(length).float() for length in lengths]
    rollout_data["returns"] = [10 + torch.arange(length).double() for length in lengths]


def without_discount(args: Any, rollout_data: dict[str, Any]) -> None:
    """What GAE is where gamma and lambda are 1 and there is no KL penalty."""
    calls.append((args, dict(rollout_data)))
    returns = [reward * mask for reward, mask in zip(rollout_data["rewards"], rollout_data["loss_masks"], strict=True)]
    values = rollout_data["values"]
    rollout_data["returns"] = returns
    rollout_data["advantages"] = [each - value for each, value in zip(returns, values, strict=True)]


def group_relative(args: Any, rollout_data: dict[str, Any]) -> None:
    """The reward at every token, as GRPO has it; the log-probs are looked at."""
    assert len(rollout_data["log_probs"]) == len(rollout_data["rewards"])
    lengths = rollout_data["response_lengths"]
    rollout_data["advantages"] = [torch.full((n,), r) for n, r in zip(lengths, rollout_data["rewards"], strict=True)]
    rollout_data["returns"] = rollout_data["advantages"]


def constant(args: Any, rollout_data: dict[str, Any]) -> None:
    """Nothing to gain, and returns that no reward gives."""
    lengths = rollout_data["response_lengths"]
    rollout_data["advantages"] = [torch.zeros(length) for length in lengths]
    rollout_data["returns"] = [torch.full((length,), 7.0) for length in lengths]


def forgets_returns(args: Any, rollout_data: dict[str, Any]) -> None:
    records(args, rollout_data)
    del rollout_data["returns"]


def gives_one_tensor(args: Any, rollout_data: dict[str, Any]) -> None:
    records(args, rollout_data)
    rollout_data["advantages"] = torch.cat(rollout_data["advantages"])


def forgets_a_sample(args: Any, rollout_data: dict[str, Any]) -> None:
    records(args, rollout_data)
    rollout_data["returns"] = rollout_data["returns"][1:]


def is_short(args: Any, rollout_data: dict[str, Any]) -> None:
    records(args, rollout_data)
    rollout_data["advantages"][1] = rollout_data["advantages"][1][:-1]


def gives_lists(args: Any, rollout_data: dict[str, Any]) -> None:
    records(args, rollout_data)
    rollout_data["advantages"] = [each.tolist() for each in rollout_data["advantages"]]


def is_not_finite(args: Any, rollout_data: dict[str, Any]) -> None:
    records(args, rollout_data)
    rollout_data["returns"][2][3] = torch.nan


def reads_what_is_not_there(args: Any, rollout_data: dict[str, Any]) -> None:
    rollout_data["advantages"] = rollout_data["teacher_log_probs"]

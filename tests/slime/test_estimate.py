"""slime estimate: the table, the verdict and the remedy."""

from pathlib import Path

import pytest

from fsdp_backend import device
from fsdp_backend.config import RoleConfig
from fsdp_backend.estimate import RoleMemory
from slime.cli import main
from slime.estimate import RoleEstimate, remedy
from tests.end_to_end.runs import make_inputs, ppo_flags


def needing(name: str = "actor", **parts: int) -> RoleEstimate:
    sizes = dict.fromkeys(("weights", "optimizer", "reference", "gradients", "activations", "head"), 1) | parts
    memory = RoleMemory(**sizes, peak={"rest": 1, "forward": 1, "update": sum(sizes.values()), "weight sync": 1})
    return RoleEstimate(name, RoleConfig(hf_checkpoint=""), 2, memory)


def test_the_remedy_names_the_flag_of_the_largest_part() -> None:
    assert "--gradient-checkpointing" in remedy(needing(activations=9))
    assert "--critic-gradient-checkpointing" in remedy(needing("critic", activations=9))
    assert "--no-fsdp-defer-grad-reduce" in remedy(needing(gradients=9, weights=2))
    assert "--actor-num-gpus-per-node" in remedy(needing(optimizer=9))
    assert "--critic-num-gpus-per-node" in remedy(needing("critic", optimizer=9))
    assert "--fsdp-cpu-offload" in remedy(needing(weights=9))


def test_once_recomputed_activations_depend_on_the_micro_batch() -> None:
    recomputed = RoleConfig(hf_checkpoint="", gradient_checkpointing=True)
    packed = RoleConfig(hf_checkpoint="", gradient_checkpointing=True, use_dynamic_batch_size=True, max_tokens_per_gpu=512)
    memory = needing(activations=9).memory
    assert "--micro-batch-size (now 1)" in remedy(RoleEstimate("actor", recomputed, 2, memory))
    assert "--critic-max-tokens-per-gpu (now 512)" in remedy(RoleEstimate("critic", packed, 2, memory))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("inputs"))


def estimate_of(inputs: Path, *extra: str) -> list[str]:
    """The words of `slime estimate` for the words of a run."""
    return ["estimate", *ppo_flags(inputs, inputs / "no run", *extra)[1:]]


def test_a_run_is_estimated_by_its_own_flags_and_not_started(inputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(estimate_of(inputs, "--kl-coef", "0.1")) == 0
    printed = capsys.readouterr().out
    for row in ("weights", "optimizer state", "reference model", "activations", "log-prob head", "update", "weight sync"):
        assert row in printed
    assert "actor, 1 rank" in printed
    assert "fits" in printed
    assert "does not fit" not in printed
    assert not (inputs / "no run").exists()


def test_only_roles_that_the_run_has_are_estimated(inputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(estimate_of(inputs, "--advantage-estimator", "grpo")) == 0
    printed = capsys.readouterr().out
    assert ("actor, 1 rank" in printed, "critic" in printed) == (True, False)
    assert main(estimate_of(inputs, "--num-critic-only-steps", "3", "--critic-load", str(inputs / "model"))) == 0
    printed = capsys.readouterr().out
    assert ("actor, 1 rank" in printed, "critic, 1 rank" in printed) == (False, True)


def test_what_does_not_fit_is_said_with_what_to_change(
    inputs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "total_memory", lambda: 100_000)
    assert main(estimate_of(inputs)) == 0
    printed = capsys.readouterr().out
    assert "does not fit" in printed
    assert "critic: most" in printed


def test_bad_flags_are_the_same_line_as_for_train(inputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(estimate_of(inputs, "--critic-freeze-params-name-list", "no_such_name")) == 2
    assert "'no_such_name' is found in no parameter" in capsys.readouterr().err
    assert main(estimate_of(inputs, "--lrr", "1")) == 2
    assert "did you mean --lr" in capsys.readouterr().err

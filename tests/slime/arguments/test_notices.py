"""What is said about flags that have no meaning in a run."""

from pathlib import Path

import pytest

from slime.arguments.notices import notices
from tests.slime.arguments.command_lines import parse

DIS = "--use-rollout-logprobs --dis-eps-low 0.2 --dis-eps-high 0.3"
OF_THE_CRITIC = (
    "--critic-update-steps 2 --critic-targets refreshed --advantage-values after-update --critic-holdout-fraction 0.25"
    " --critic-load x --lambd 0.9 --critic-lambd 0.8 --lambd-alpha 2 --value-clip none"
)


@pytest.mark.parametrize("estimator", ["grpo", "gspo", "cispo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"])
def test_flags_of_the_critic_are_named_where_there_is_none(checkpoint: Path, estimator: str) -> None:
    config = parse(checkpoint, "--advantage-estimator", estimator, "--critic-lr", "1e-3", *OF_THE_CRITIC.split())
    (line,) = notices(config)
    named, why = line.split(" set aside: ")
    assert set(named.split(", ")) == {word for word in OF_THE_CRITIC.split() if word.startswith("--")} | {"--critic-lr"}
    assert why == f"--advantage-estimator {estimator} has no critic"


def test_the_clip_is_named_where_the_double_sided_mask_takes_its_place(checkpoint: Path) -> None:
    config = parse(checkpoint, *DIS.split(), "--eps-clip", "0.1", "--eps-clip-high", "0.3")
    why = "--dis-eps-low and --dis-eps-high take their place"
    assert notices(config) == [f"--eps-clip, --eps-clip-high set aside: {why}"]


@pytest.mark.parametrize(
    "flags",
    [
        "--critic-lr 1e-3 --eps-clip 0.1 --eps-clip-high 0.3 " + OF_THE_CRITIC.replace("--critic-load x", ""),
        "--advantage-estimator grpo --lr 1e-3 --eps-clip 0.1",
        DIS,
    ],
)
def test_nothing_is_said_of_flags_that_count(checkpoint: Path, flags: str) -> None:
    assert notices(parse(checkpoint, *flags.split())) == []


MEANINGLESS = {
    "--tis-mode icepop --tis-clip 3 --tis-clip-low 0.1": "they are for --use-tis",
    "--offload-rollout --sglang-context-length 9 --sglang-python x": "they are for --rollout-engine sglang",
    "--update-weight-buffer-size 9": "weights travel by disk, as a whole",
    "--opsm-delta 0.1": "it is for --use-opsm",
    "--eval-prompt-data a x": "without --eval-interval nothing is evaluated",
    "--wandb-project p --wandb-mode offline": "they are for --use-wandb",
    "--max-tokens-per-gpu 64": "it is for --use-dynamic-batch-size",
    "--num-epoch 2": "--num-rollout says how many rollouts",
    "--mask-offpolicy-in-partial-rollout": "it is for --partial-rollout",
    "--loss-type sft_loss --partial-rollout --dynamic-sampling-filter-path a.b": "--loss-type sft_loss generates nothing",
    "--use-unbiased-kl": "it is for --use-kl-loss",
    "--group-rm": "it is for --custom-rm-path",
    "--ref-load elsewhere --kl-loss-type k3": "neither --use-kl-loss nor --kl-coef asks for a reference",
    "--disable-rewards-normalization --disable-grpo-std-normalization": "--advantage-estimator ppo compares no responses",
    "--advantage-estimator grpo --gamma 0.9": "--advantage-estimator grpo gives every token the same",
    "--advantage-estimator cispo --eps-clip-c 3": "cispo clips the weight, not the loss",
    "--advantage-estimator gspo --critic-num-nodes 1 --critic-targets refreshed": "--advantage-estimator gspo has no critic",
    "--loss-type sft_loss --critic-update-steps 2 --use-tis": "--loss-type sft_loss trains on the data's own answers",
    "--num-critic-only-steps 3 --advantage-values after-update --lambd-alpha 2": "no rollout trains the actor",
}


@pytest.mark.parametrize("flags", MEANINGLESS)
def test_every_flag_without_a_meaning_is_named_with_the_reason(checkpoint: Path, flags: str) -> None:
    given = [word for word in flags.split() if word.startswith("--")]
    (line,) = notices(parse(checkpoint, *flags.split()))
    named, why = line.split(" set aside: ")
    others = {"--advantage-estimator", "--loss-type"} | ({"--num-critic-only-steps"} if why.startswith("no rollout") else set())
    assert set(named.split(", ")) == set(given) - others
    assert why == MEANINGLESS[flags]


def test_a_mask_of_sunken_responses_is_pointless_for_a_single_step(checkpoint: Path) -> None:
    (line,) = notices(parse(checkpoint, "--use-opsm"))
    assert line.startswith("--use-opsm finds nothing")
    for flags in ("--global-batch-size 4", "--num-steps-per-rollout 2", "--actor-update-steps 2", "--use-rollout-logprobs"):
        assert notices(parse(checkpoint, "--use-opsm", *flags.split())) == []

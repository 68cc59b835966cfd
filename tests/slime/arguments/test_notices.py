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
    why = "--dis-eps-low and --dis-eps-high take the place of the PPO clip"
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

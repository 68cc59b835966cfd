"""What `slime eval` makes of flags."""

from pathlib import Path

import pytest

from slime.arguments.errors import UserError
from slime.arguments.parse import parse_arguments
from slime.backends.cluster import world_sizes
from tests.slime.arguments.command_lines import required

DATA = "--eval-prompt-data held held.jsonl --rm-type math --label-key answer"


def test_a_checkpoint_and_data_are_enough(checkpoint: Path) -> None:
    config = parse_arguments(["--hf-checkpoint", str(checkpoint), *DATA.split()], evaluates=True)
    assert config.script.set_aside == ()
    assert (config.data.prompt_data, config.eval.eval_interval) == (None, 1)
    assert world_sizes(config, gpus=8) == {"actor": 0, "critic": 0, "rollout": 1}


def test_flags_of_training_are_set_aside_and_named_and_those_of_generation_stay(checkpoint: Path) -> None:
    words = "--lr 1e-4 --critic-lr 1e-3 --save out --kl-loss-coef 0.1 --use-kl-loss --ref-load nowhere --global-batch-size 3"
    words += " --critic-update-steps 2 --eval-interval 5 --partial-rollout --num-epoch 2 --loss-type sft_loss"
    stay = f"{DATA} --rollout-temperature 0.5 --eval-top-p 0.9 --rollout-num-gpus 3 --seed 7 --rollout-stop x"
    config = parse_arguments([*required(checkpoint), *words.split(), *stay.split()], evaluates=True)
    given = {word for word in words.split() if word.startswith("--")} | {
        "--prompt-data",
        "--num-rollout",
        "--rollout-batch-size",
        "--n-samples-per-prompt",
    }
    assert {flag for flag, _ in config.script.set_aside} == given
    assert {why for _, why in config.script.set_aside} == {"slime eval trains nothing"}
    assert (config.rollout.rollout_temperature, config.eval.eval_top_p, config.rollout.rollout_stop) == (0.5, 0.9, ("x",))
    assert (config.cluster.rollout_num_gpus, config.run.seed) == (3, 7)
    assert world_sizes(config, gpus=8) == {"actor": 0, "critic": 0, "rollout": 3}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("", "slime eval needs --eval-prompt-data or --eval-config: what to evaluate on"),
        ("--eval-prompt-data held", "--eval-prompt-data takes pairs of a name and a file"),
        (f"{DATA} --eval-temperature -1", "--eval-temperature must be at least 0"),
        (f"{DATA} --hf-checkpoint nowhere", "--hf-checkpoint nowhere is no folder"),
        ("--eval-prompt-data held x --rm-type math", "--rm-type math needs --label-key"),
    ],
)
def test_what_an_evaluation_can_not_do_without_is_named(checkpoint: Path, flags: str, message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        parse_arguments(["--hf-checkpoint", str(checkpoint), *flags.split()], evaluates=True)


def test_without_a_checkpoint_only_that_is_missing() -> None:
    with pytest.raises(UserError, match=r"^missing --hf-checkpoint; see"):
        parse_arguments(DATA.split(), evaluates=True)

"""What must hold between flags, and of the files they name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from slime.arguments.rules import RULES
from tests.slime.arguments.command_lines import parse, refusal, required

REFUSED = [
    ("--global-batch-size 3", "--global-batch-size 3 does not divide the 8 samples of a rollout"),
    ("--critic-global-batch-size 5", "--critic-global-batch-size 5 does not divide the 8 samples"),
    ("--global-batch-size 4 --critic-global-batch-size 16", "--critic-global-batch-size 16 does not divide"),
    ("--num-steps-per-rollout 3", "--num-steps-per-rollout 3 does not divide the 8 samples of a rollout"),
    ("--critic-num-steps-per-rollout 5", "--critic-num-steps-per-rollout 5 does not divide the 8 samples"),
    (
        "--global-batch-size 4 --num-steps-per-rollout 4",
        "--global-batch-size 4 and --num-steps-per-rollout 4 contradict each other: 4 x 4 is 16, not the 8 samples",
    ),
    (
        "--critic-global-batch-size 2 --critic-num-steps-per-rollout 2",
        "--critic-global-batch-size 2 and --critic-num-steps-per-rollout 2 contradict each other: 2 x 2 is 4, not the 8",
    ),
    ("--critic-update-steps 0", "--critic-update-steps must be at least 1, got 0"),
    ("--actor-num-nodes 2", "--actor-num-nodes 2: runs over several nodes are not supported yet"),
    ("--critic-num-nodes 3", "--critic-num-nodes 3: runs over several nodes are not supported yet"),
    ("--rollout-temperature 0", "--rollout-temperature must be greater than 0, got 0.0"),
    ("--rollout-temperature -1", "--rollout-temperature must be greater than 0"),
    ("--rollout-temperature nan", "--rollout-temperature must be greater than 0, got nan"),
    ("--rollout-temperature inf", "--rollout-temperature must be greater than 0, got inf"),
    ("--eval-temperature -1", "--eval-temperature must be at least 0, got -1.0"),
    ("--custom-rm-path a.b", "give one of --rm-type and --custom-rm-path"),
    ("--rm-type None", "give one of --rm-type and --custom-rm-path"),
    ("--label-key None", "--rm-type math needs --label-key"),
    ("--reward-key score", "--reward-key has no meaning with --rm-type math"),
    ("--eval-prompt-data a --eval-interval 1", "--eval-prompt-data takes pairs of a name and a file, got 1 words"),
    ("--eval-prompt-data a x a y --eval-interval 1", "--eval-prompt-data has a name twice: a a"),
    ("--eval-prompt-data a x", "--eval-interval and --eval-prompt-data need each other"),
    ("--eval-interval 1", "--eval-interval and --eval-prompt-data need each other"),
    ("--loss-type sft_loss --eval-prompt-data a x --eval-interval 1", "--eval-prompt-data has no meaning with"),
    ("--kl-loss-coef 0.1", "--kl-loss-coef is 0.1 but --use-kl-loss is off"),
    ("--ref-load nowhere --use-kl-loss", "--ref-load nowhere is no folder"),
    ("--critic-hf-checkpoint nowhere", "--critic-hf-checkpoint nowhere is no folder"),
]
AT_LEAST_ONE = [
    "--num-rollout",
    "--rollout-batch-size",
    "--n-samples-per-prompt",
    "--rollout-max-response-len",
    "--rollout-max-prompt-len",
    "--eval-max-response-len",
    "--n-samples-per-eval-prompt",
    "--actor-num-nodes",
    "--actor-num-gpus-per-node",
    "--critic-num-nodes",
    "--critic-num-gpus-per-node",
    "--rollout-num-gpus",
    "--sglang-server-concurrency",
    "--save-interval",
    "--eval-interval",
]


@pytest.mark.parametrize(("flags", "message"), REFUSED, ids=[flags for flags, _ in REFUSED])
def test_flags_that_contradict_each_other_are_refused(checkpoint: Path, flags: str, message: str) -> None:
    assert refusal([*required(checkpoint), *flags.split()]).startswith(message)


@pytest.mark.parametrize("flag", AT_LEAST_ONE)
def test_counts_must_be_at_least_one(checkpoint: Path, flag: str) -> None:
    assert refusal([*required(checkpoint), flag, "0"]) == f"{flag} must be at least 1, got 0"


def test_an_empty_stop_string_is_refused(checkpoint: Path) -> None:
    assert refusal([*required(checkpoint), "--rollout-stop", "x", ""]).startswith("--rollout-stop must not be empty")


ACCEPTED = [
    "--global-batch-size 8 --critic-global-batch-size 2",
    "--num-steps-per-rollout 2 --critic-num-steps-per-rollout 8",
    "--global-batch-size 4 --num-steps-per-rollout 2",
    "--global-batch-size 4 --critic-num-steps-per-rollout 4",
    "--num-steps-per-rollout 4 --critic-global-batch-size 8",
    "--eval-temperature 0",
    "--rm-type None --custom-rm-path a.b --reward-key score",
    "--eval-prompt-data a x b y --eval-interval 5",
    "--loss-type sft_loss --rm-type None --label-key None --critic-hf-checkpoint nowhere",
    "--ref-load nowhere",
    "--rollout-stop x",
]


@pytest.mark.parametrize("flags", ACCEPTED)
def test_flags_that_agree_are_accepted(checkpoint: Path, flags: str) -> None:
    parse(checkpoint, *flags.split())


def test_every_rule_can_refuse_something() -> None:
    assert len(RULES) == len(set(RULES)) == 9


def without_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def with_broken_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def with_truncated_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def with_truncated_header(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:50])


def with_empty_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def with_a_header_of_another_kind(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((8).to_bytes(8, "little") + b'{"a":{}}')


def with_a_missing_shard(folder: Path) -> None:
    shards = {"a": "model.safetensors", "b": "model-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))


def with_an_index_of_another_kind(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text("[]")


BROKEN = [
    (shutil.rmtree, " is no folder"),
    (without_config, " has no config.json"),
    (with_broken_config, "/config.json is not readable"),
    (without_weights, "/model.safetensors is missing"),
    (with_truncated_weights, "/model.safetensors is torn"),
    (with_truncated_header, "/model.safetensors is not a safetensors file"),
    (with_empty_weights, "/model.safetensors is not a safetensors file"),
    (with_a_header_of_another_kind, "/model.safetensors is not a safetensors file"),
    (with_a_missing_shard, "/model-00002.safetensors is missing"),
    (with_an_index_of_another_kind, "/model.safetensors.index.json is not readable"),
]


@pytest.mark.parametrize("flag", ["--hf-checkpoint", "--critic-hf-checkpoint", "--ref-load"])
@pytest.mark.parametrize(("damage", "message"), BROKEN, ids=[message.strip(" /") for _, message in BROKEN])
def test_a_checkpoint_that_cannot_be_read_is_named_with_its_flag(
    checkpoint: Path, tmp_path: Path, flag: str, damage: Callable[[Path], None], message: str
) -> None:
    folder = Path(shutil.copytree(checkpoint, tmp_path / "model"))
    damage(folder)
    refused = refusal([*required(checkpoint), "--kl-coef", "0.1", flag, str(folder)])
    assert refused.startswith(f"{flag} {folder}{message}")

"""What must hold between flags, and of the files they name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from slime.arguments.rules import RULES
from tests.slime.arguments.command_lines import parse, refusal, required

SGLANG = "--rollout-engine sglang"
DIS = "--use-rollout-logprobs --dis-eps-low 0.2 --dis-eps-high 0.3"
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
    ("--label-key None", "--rm-type math needs --label-key"),
    ("--rm-type dapo --label-key None", "--rm-type dapo needs --label-key"),
    ("--rm-type boxed_f1 --label-key None", "--rm-type boxed_f1 needs --label-key"),
    ("--reward-key score", "--reward-key has no meaning with --rm-type math"),
    ("--reward-key score --rm-type boxed_gpqa", "--reward-key has no meaning with --rm-type boxed_gpqa"),
    ("--rm-type remote_rm", "--rm-type remote_rm needs --rm-url: where"),
    ("--rm-type ifbench", "--rm-type ifbench: the reward ifbench is not available: IFBench's own checks are needed"),
    ("--rm-type boxed_ifbench", "--rm-type boxed_ifbench: the reward ifbench is not available"),
    ("--eval-prompt-data a --eval-interval 1", "--eval-prompt-data takes pairs of a name and a file, got 1 words"),
    ("--eval-prompt-data a x a y --eval-interval 1", "--eval-prompt-data has a name twice: a a"),
    ("--eval-interval 1", "--eval-interval needs --eval-prompt-data or --eval-config: what to evaluate on"),
    ("--use-wandb", "--use-wandb needs the package wandb"),
    ("--loss-type sft_loss --eval-prompt-data a x --eval-interval 1", "--eval-prompt-data has no meaning with"),
    ("--eval-prompt-data a x --eval-config e --eval-interval 1", "--eval-config takes the place of --eval-prompt-data"),
    ("--loss-type sft_loss --eval-config e --eval-interval 1", "--eval-prompt-data has no meaning with"),
    ("--rollout-top-p 0.9", "--rollout-top-p and --rollout-top-k can't be trained on"),
    ("--rollout-top-k 5 --use-tis", "--rollout-top-p and --rollout-top-k can't be trained on"),
    ("--rollout-top-p 0 --debug-rollout-only", "--rollout-top-p must lie in (0, 1], got 0.0"),
    ("--rollout-top-k 0 --debug-rollout-only", "--rollout-top-k must be -1 (all) or at least 1, got 0"),
    ("--over-sampling-batch-size 3", "--over-sampling-batch-size 3 is less than --rollout-batch-size 4"),
    ("--prompt-data a b --prompt-data-weights 1", "--prompt-data-weights 1.0 must be 2 positive numbers"),
    ("--prompt-data a b --prompt-data-weights 1 0", "--prompt-data-weights 1.0 0.0 must be 2 positive numbers"),
    ("--kl-loss-coef 0.1", "--kl-loss-coef is 0.1 but --use-kl-loss is off"),
    ("--ref-load nowhere --use-kl-loss", "--ref-load nowhere is no folder"),
    ("--critic-hf-checkpoint nowhere", "--critic-hf-checkpoint nowhere is no folder"),
    ("--critic-load nowhere", "--critic-load nowhere is no folder"),
    ("--max-staleness -1", "--max-staleness must be at least 0, got -1"),
    ("--max-staleness 1 --colocate", "--max-staleness 1 generates while training: not with --colocate"),
    ("--max-staleness 1 --offload-train", "--max-staleness 1 generates while training: not with --colocate, --offload-train"),
    (
        "--max-staleness 2 --rollout-function-path a.b",
        "--max-staleness 2 generates by itself: above 1",
    ),
    (
        "--max-staleness 2 --data-source-path a.b",
        "--max-staleness 2 puts prompts back: above 1",
    ),
    ("--restarts -1 --save a", "--restarts must be at least 0, got -1"),
    ("--restarts 2", "--restarts 2 needs --save"),
    ("--critic-save a", "--critic-save a needs --save"),
    ("--save a --critic-save b --critic-load b", "--critic-load b is half of a checkpoint: give the other by --load"),
    ("--train-backend megatron", "--train-backend megatron is for the command line of slime train only"),
    (
        "--critic-holdout-fraction 0.25 --critic-global-batch-size 4",
        "--critic-global-batch-size 4 does not divide the 6 of 8 samples that --critic-holdout-fraction 0.25 leaves",
    ),
    (
        "--critic-holdout-fraction 0.01 --critic-num-steps-per-rollout 4",
        "--critic-num-steps-per-rollout 4 does not divide the 6 of 8 samples that --critic-holdout-fraction 0.01 leaves",
    ),
    (
        "--critic-holdout-fraction 0.5 --rollout-batch-size 1 --n-samples-per-prompt 1",
        "nothing is left to train the critic on: the 0 of 1 samples",
    ),
    ("--critic-holdout-fraction 1", "--critic-holdout-fraction must lie in [0, 1), got 1.0"),
    ("--num-critic-only-steps 4", "--num-critic-only-steps 4 is more than --num-rollout 3"),
    ("--num-critic-only-steps -1", "--num-critic-only-steps must not be negative, got -1"),
    ("--debug-train-only", "--debug-train-only needs --load-debug-rollout-data"),
    ("--debug-rollout-only --save x", "--debug-rollout-only trains nothing: not with"),
    ("--debug-rollout-only --loss-type sft_loss", "--debug-rollout-only trains nothing: not with"),
    ("--save-hf x --critic-save-hf x", "--save-hf and --critic-save-hf are both x"),
    ("--eps-clip-high -0.1", "--eps-clip-high must not be negative, got -0.1"),
    (
        "--critic-load x --critic-hf-checkpoint y",
        "--critic-load x and --critic-hf-checkpoint y contradict each other",
    ),
    ("--kl-coef 0.1 --advantage-estimator cispo", "--kl-coef is 0.1, but --advantage-estimator cispo has no token rewards"),
    *(
        (f"--advantage-estimator {name} --n-samples-per-prompt 1", f"--advantage-estimator {name} compares the responses")
        for name in ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
    ),
    ("--prompt-data None", "missing --prompt-data (or --load-debug-rollout-data)"),
    ("--load-debug-rollout-data a.pt", "--load-debug-rollout-data a.pt must hold {rollout_id}"),
    ("--save-debug-rollout-data {id}.pt", "--save-debug-rollout-data {id}.pt must hold {rollout_id}"),
    (
        "--load-debug-rollout-data {rollout_id} --eval-interval 1 --eval-prompt-data a x",
        "--eval-interval has no meaning with --load-debug-rollout-data",
    ),
    (
        "--load-debug-rollout-data {rollout_id} --save-debug-rollout-data b{rollout_id}",
        "--save-debug-rollout-data has no meaning with --load-debug-rollout-data",
    ),
    ("--dis-eps-low 0.2", "--dis-eps-low and --dis-eps-high need each other"),
    ("--dis-eps-high 0.2", "--dis-eps-low and --dis-eps-high need each other"),
    ("--dis-eps-low 0.2 --dis-eps-high 0.2", "--dis-eps-low masks by the ratio to the rollout policy: add --use-rollout-log"),
    (f"{DIS} --dis-eps-low 1.5", "--dis-eps-low must lie in (0, 1], got 1.5"),
    (f"{DIS} --dis-eps-high 0", "--dis-eps-high must be positive, got 0.0"),
    (f"{DIS} --eps-clip-c 3", "--dis-eps-low takes the place of the clip: not with --eps-clip-c"),
    (f"{DIS} --advantage-estimator gspo", "--dis-eps-low takes the place of the clip"),
    (f"{DIS} --advantage-estimator cispo", "--dis-eps-low takes the place of the clip"),
    ("--use-tis --use-rollout-logprobs", "--use-tis corrects from the rollout engine's log-probs to the trainer's"),
    ("--tis-clip-low 3", "--tis-clip-low must lie between 0 and --tis-clip, got 3.0 and 2.0"),
    ("--tis-clip-low -1", "--tis-clip-low must lie between 0 and --tis-clip, got -1.0"),
    (
        "--custom-advantage-function-path a.b --critic-targets refreshed",
        "--critic-targets refreshed computes returns anew before each pass, --custom-advantage-function-path gives them once",
    ),
    (
        "--custom-advantage-function-path a.b --advantage-values after-update",
        "--advantage-values after-update computes advantages after the critic's update, --custom-advantage-function-path",
    ),
    ("--loss-type custom_loss", "--loss-type custom_loss and --custom-loss-function-path need each other"),
    ("--custom-loss-function-path a.b", "--loss-type custom_loss and --custom-loss-function-path need each other"),
    ("--custom-tis-function-path a.b", "--custom-tis-function-path has no meaning without --use-tis"),
    ("--opsm-delta -1", "--opsm-delta must not be negative, got -1.0"),
    (
        "--update-weight-transport tensor",
        "--update-weight-transport tensor is for --rollout-engine sglang: the embedded engine takes",
    ),
    ("--update-weight-transport nccl", "--update-weight-transport nccl is for --rollout-engine sglang"),
    (f"{SGLANG} --update-weight-transport nccl --colocate", "--update-weight-transport nccl can't join processes that share a"),
    ("--rollout-external-engine-addrs a:1", "--rollout-external-engine-addrs needs --rollout-engine sglang"),
    (f"{SGLANG} --rollout-external-engine-addrs a:1 b", "--rollout-external-engine-addrs takes host:port, got b"),
    ("--rollout-num-gpus-per-engine 2", "--rollout-num-gpus-per-engine 2 is for --rollout-engine sglang"),
    (
        f"{SGLANG} --rollout-num-gpus-per-engine 2 --colocate",
        "--rollout-num-gpus-per-engine 2 with --colocate is not supported",
    ),
    (
        f"{SGLANG} --rollout-num-gpus-per-engine 2 --rollout-num-gpus 3",
        "--rollout-num-gpus-per-engine 2 does not divide --rollout-num-gpus 3",
    ),
    ("--value-clip -1", "--value-clip must not be negative, got -1.0"),
]
AT_LEAST_ONE = [
    "--num-rollout",
    "--rollout-batch-size",
    "--n-samples-per-prompt",
    "--rollout-max-response-len",
    "--rollout-max-prompt-len",
    "--rollout-max-context-len",
    "--over-sampling-batch-size",
    "--eval-max-response-len",
    "--eval-max-prompt-len",
    "--eval-max-context-len",
    "--n-samples-per-eval-prompt",
    "--actor-num-nodes",
    "--actor-num-gpus-per-node",
    "--critic-num-nodes",
    "--critic-num-gpus-per-node",
    "--rollout-num-gpus",
    "--rollout-num-gpus-per-engine",
    "--update-weight-buffer-size",
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
    "--rollout-top-p 0.9 --rollout-top-k 5 --debug-rollout-only",
    "--over-sampling-batch-size 4",
    "--prompt-data a b --prompt-data-weights 1 0.5",
    "--eval-config e --eval-interval 5 --eval-top-p 0.9",
    "--rm-type None --custom-rm-path a.b --reward-key score",
    "--rm-type None --custom-rm-path a.b --group-rm --rm-url http://a",
    "--rm-type None",
    "--rm-type dapo --reward-key score",
    "--rm-type remote_rm --rm-url http://a --reward-key score --label-key None",
    "--rm-type boxed_gpqa --label-key None",
    "--rm-type random --label-key None",
    "--eval-prompt-data a x b y --eval-interval 5",
    "--eval-prompt-data a x",
    "--loss-type sft_loss --rm-type None --label-key None --critic-hf-checkpoint nowhere",
    "--ref-load nowhere",
    "--rollout-stop x",
    "--critic-hf-checkpoint nowhere --advantage-estimator grpo",
    "--critic-holdout-fraction 0.25 --critic-global-batch-size 3",
    "--critic-global-batch-size 5 --advantage-estimator grpo",
    "--num-critic-only-steps 3",
    "--advantage-estimator grpo --n-samples-per-prompt 1 --disable-rewards-normalization",
    "--advantage-estimator reinforce_plus_plus --n-samples-per-prompt 1",
    "--n-samples-per-prompt 1",
    "--load-debug-rollout-data {rollout_id} --prompt-data None --rm-type None --label-key None",
    "--save-debug-rollout-data a/{rollout_id}.pt",
    DIS,
    f"{SGLANG} --update-weight-transport tensor --colocate --offload-rollout",
    f"{SGLANG} --rollout-num-gpus-per-engine 2 --rollout-num-gpus 4 --rollout-external-engine-addrs a:1 b:2",
    "--update-weight-transport disk --sglang-anything 3",
    "--use-tis --tis-clip-low 2 --custom-tis-function-path a.b --use-opsm",
    "--advantage-estimator grpo --custom-advantage-function-path a.b --critic-targets refreshed",
]


@pytest.mark.parametrize("flags", ACCEPTED)
def test_flags_that_agree_are_accepted(checkpoint: Path, flags: str) -> None:
    parse(checkpoint, *flags.split())


def test_every_rule_can_refuse_something() -> None:
    assert len(RULES) == len(set(RULES)) == 23


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

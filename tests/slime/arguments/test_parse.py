"""From the command line and a YAML file to a RunConfig."""

from pathlib import Path

import pytest
import yaml

from slime.arguments.parse import parse_arguments
from slime.observability.run_log import CONFIG_FILE, RunLog
from tests.slime.arguments.command_lines import parse, refusal, required


def config_file(folder: Path, text: str) -> str:
    file = folder / "run.yaml"
    file.write_text(text)
    return str(file)


def test_the_required_flags_alone_make_a_config_with_the_defaults(checkpoint: Path) -> None:
    config = parse(checkpoint)
    assert (config.run.num_rollout, config.rollout.rollout_batch_size, config.data.prompt_data) == (3, 4, ("prompts.jsonl",))
    assert (config.ppo.critic_update_steps, config.actor.lr, config.rollout.rollout_temperature) == (1, 1e-6, 1.0)


def test_missing_required_flags_are_named_all_at_once() -> None:
    assert refusal([]) == ("missing --num-rollout, --rollout-batch-size, --hf-checkpoint; see slime train --help")
    assert refusal(["--num-rollout", "1", "--hf-checkpoint", "x"]).startswith("missing --rollout-batch-size;")
    assert refusal(["--num-rollout", "1", "--hf-checkpoint", "x", "--rollout_batch_size=2"]) == (
        "missing --prompt-data (or --load-debug-rollout-data); see slime train --help"
    )


@pytest.mark.parametrize(
    ("token", "nearest"),
    [
        ("--critic-update-step", "--critic-update-steps"),
        ("--rollout-batchsize", "--rollout-batch-size"),
        ("--no-use-kl-los", "--use-kl-loss"),
        ("--confg", "--config"),
        ("--lrr=3", "--lr"),
    ],
)
def test_an_unknown_flag_is_an_error_with_the_nearest_name(checkpoint: Path, token: str, nearest: str) -> None:
    message = refusal([*required(checkpoint), token])
    assert message == f"unknown flag {token.partition('=')[0]}; did you mean {nearest}?"


def test_an_unknown_flag_that_is_like_no_other_points_to_the_help(checkpoint: Path) -> None:
    assert refusal([*required(checkpoint), "--zzz"]) == "unknown flag --zzz; see slime train --help"


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--lr abc", "--lr"),
        ("--lr", "--lr"),
        ("--num-rollout 1.5", "--num-rollout"),
        ("--kl-loss-type k9", "--kl-loss-type"),
        ("--train-backend deepspeed", "--train-backend"),
        ("--critic-lr x", "--critic-lr"),
        ("--value-clip off", "--value-clip"),
        ("--critic-lr-decay-style zigzag", "--critic-lr-decay-style"),
        ("--rollout-stop-token-ids a", "--rollout-stop-token-ids"),
        ("stray", "stray"),
    ],
)
def test_a_bad_value_is_one_line_that_names_the_flag(checkpoint: Path, flags: str, named: str) -> None:
    message = refusal([*required(checkpoint), *flags.split()])
    assert named in message
    assert len(message) < 200
    assert not set("│╭╰─") & set(message)


def test_flags_come_from_a_file_and_the_command_line_wins(checkpoint: Path, tmp_path: Path) -> None:
    file = config_file(
        tmp_path, "lr: 1e-3\ncritic-lr: 2.0e-3\nbf16: true\ncolocate: true\nrollout_stop: [a b, '3']\nseed: null\n"
    )
    config = parse(checkpoint, "--config", file, "--lr", "5e-4", "--no-bf16")
    assert (config.actor.lr, config.critic.lr) == (5e-4, 2e-3)
    assert (config.actor.bf16, config.cluster.colocate) == (False, True)
    assert (config.rollout.rollout_stop, config.run.seed) == (("a b", "3"), 1234)
    assert parse(checkpoint, f"--config={file}").actor.lr == 1e-3


def test_a_value_in_the_file_that_the_command_line_overrides_is_not_looked_at(checkpoint: Path, tmp_path: Path) -> None:
    file = config_file(tmp_path, "lr: from elsewhere\nuse_kl_loss: 17")
    config = parse(checkpoint, "--config", file, "--lr", "5e-4", "--no-use-kl-loss")
    assert (config.actor.lr, config.ppo.use_kl_loss) == (5e-4, False)


def test_a_switch_of_the_critic_can_be_turned_off_in_the_file(checkpoint: Path, tmp_path: Path) -> None:
    config = parse(checkpoint, "--config", config_file(tmp_path, "bf16: true\ncritic_bf16: false"))
    assert (config.actor.bf16, config.critic.bf16) == (True, False)


def test_required_flags_may_stand_in_the_file(checkpoint: Path, tmp_path: Path) -> None:
    words = iter(required(checkpoint))
    file = config_file(tmp_path, yaml.safe_dump({flag[2:]: value for flag, value in zip(words, words, strict=True)}))
    assert parse_arguments(["--config", file]) == parse(checkpoint)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rollout_batchsize: 3", "unknown flag --rollout-batchsize; did you mean --rollout-batch-size?"),
        ("lrr: 1", "unknown flag --lrr; did you mean --lr?"),
        ("lrr: null", "unknown flag --lrr; did you mean --lr?"),
        ("- lr", "expected a mapping of flags to values"),
        ("", "expected a mapping of flags to values"),
        ("lr: [1", "line 1"),
        ("lr: {a: 1}", "--lr"),
        ("config: other.yaml", "config stands on the command line, not in the file"),
        ("help: true", "help stands on the command line, not in the file"),
    ],
)
def test_what_is_wrong_with_the_file_is_one_line(checkpoint: Path, tmp_path: Path, text: str, message: str) -> None:
    assert message in refusal([*required(checkpoint), "--config", config_file(tmp_path, text)])


def test_a_file_that_is_missing_or_no_text_is_named(checkpoint: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing.yaml"
    assert str(missing) in refusal([*required(checkpoint), "--config", str(missing)])
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00lr")
    assert str(binary) in refusal([*required(checkpoint), "--config", str(binary)])


def test_config_needs_one_file() -> None:
    assert refusal(["--config"]) == "--config needs a file"
    assert refusal(["--config", "a", "--config=b"]) == "--config was given twice"


REPLAYED = (
    "--load-debug-rollout-data x/{rollout_id}.pt --prompt-data None --advantage-estimator grpo"
    " --disable-grpo-std-normalization --disable-rewards-normalization --use-tis --tis-clip 3 --tis-mode icepop"
)
OFF_POLICY = "--use-rollout-logprobs --dis-eps-low 0.2 --dis-eps-high 0.3 --use-opsm --critic-load None --value-clip none"


@pytest.mark.parametrize("flags", [REPLAYED, OFF_POLICY])
def test_the_config_of_another_objective_parses_back_to_the_same(checkpoint: Path, tmp_path: Path, flags: str) -> None:
    config = parse(checkpoint, *flags.split())
    RunLog(tmp_path, config.flags(), 3, 3)
    assert parse_arguments(["--config", str(tmp_path / CONFIG_FILE)]) == config


def test_the_value_clip_is_a_number_or_none(checkpoint: Path, tmp_path: Path) -> None:
    assert [parse(checkpoint, "--value-clip", word).ppo.value_clip for word in ("none", "0", "0.5")] == ["none", 0.0, 0.5]
    assert parse(checkpoint, "--config", config_file(tmp_path, "value_clip: none")).ppo.value_clip == "none"


def test_the_config_that_a_run_writes_parses_back_to_the_same(checkpoint: Path, tmp_path: Path) -> None:
    flags = (
        "--lr 3e-5 --critic-lr 1e-4 --bf16 --no-critic-bf16 --critic-update-steps 3 --use-kl-loss --kl-loss-coef 1e-3"
        " --rollout-stop-token-ids 1 2 --eval-prompt-data a x.jsonl b y.jsonl --eval-interval 2 --lambd-alpha 2"
        " --critic-lambd 0.9 --colocate --critic-num-gpus-per-node 2"
        " --critic-max-tokens-per-gpu 512 --critic-use-dynamic-batch-size"
        " --num-steps-per-rollout 2 --critic-global-batch-size 8"
        " --eval-temperature 0"
    )
    config = parse(checkpoint, *flags.split(), "--rollout-stop", "two words", "#", "-", "yes", "é\n")
    RunLog(tmp_path, config.flags(), 3, 3)
    assert parse_arguments(["--config", str(tmp_path / CONFIG_FILE)]) == config


def test_plug_ins_see_every_flag_flat_and_cannot_change_the_config(checkpoint: Path) -> None:
    config = parse(checkpoint, "--critic-lr", "1e-4")
    args = config.namespace()
    assert (args.lr, args.critic_lr, args.rollout_batch_size, args.critic_update_steps) == (1e-6, 1e-4, 4, 1)
    args.lr = 1.0
    assert config.actor.lr == config.namespace().lr == 1e-6


@pytest.mark.parametrize("given", [False, True])
def test_plug_ins_see_what_is_normalised_by_slimes_names(checkpoint: Path, given: bool) -> None:
    flags = ["--disable-rewards-normalization", "--disable-grpo-std-normalization"]
    args = parse(checkpoint, *flags[:given]).namespace()
    assert (args.rewards_normalization, args.grpo_std_normalization) == (not given, True)
    args = parse(checkpoint, *flags[given:]).namespace()
    assert (args.rewards_normalization, args.grpo_std_normalization) == (given, False)


def epochs(checkpoint: Path, folder: Path, *flags: str, rows: int = 11) -> list[str]:
    """A run over so many rows, four prompts a rollout, without --num-rollout."""
    (folder / "rows.jsonl").write_text("{}\n" * rows)
    words = [*required(checkpoint), *flags]
    for flag in ("--num-rollout", "--prompt-data"):
        del words[words.index(flag) : words.index(flag) + 2]
    return [*words, "--prompt-data", str(folder / "rows.jsonl")]


def test_epochs_are_counted_in_whole_rollouts(checkpoint: Path, tmp_path: Path) -> None:
    words = epochs(checkpoint, tmp_path, "--num-epoch", "3")
    assert parse_arguments(words).run.num_rollout == 6
    assert parse_arguments([*words, str(tmp_path / "rows.jsonl@[:5]")]).run.num_rollout == 12
    assert parse_arguments([*words, "--num-rollout", "5"]).run.num_rollout == 5


@pytest.mark.parametrize(
    ("flags", "rows", "message"),
    [
        ("--num-epoch 0", 11, "--num-epoch must be at least 1, got 0"),
        ("--num-epoch 2", 3, "--num-epoch 2: 3 rows are less than one rollout of 4 prompts"),
        ("--num-epoch 2 --data-source-path a.b", 11, "--num-epoch counts the rows of --prompt-data"),
    ],
)
def test_epochs_that_cannot_be_counted_are_refused(
    checkpoint: Path, tmp_path: Path, flags: str, rows: int, message: str
) -> None:
    assert refusal(epochs(checkpoint, tmp_path, *flags.split(), rows=rows)).startswith(message)


def test_a_hook_may_be_given_several_times_or_with_several_values(checkpoint: Path) -> None:
    again = ["--rollout-sample-hook-path", "a.b", "--seed", "3", "--rollout-sample-hook-path=c.d"]
    for words in (again, ["--rollout-sample-hook-path", "a.b", "c.d", "--seed", "3"]):
        config = parse_arguments([*required(checkpoint), *words])
        assert (config.rollout.rollout_sample_hook_path, config.run.seed) == (("a.b", "c.d"), 3)


def test_plug_ins_see_the_path_of_a_single_data_set_as_text(checkpoint: Path) -> None:
    assert parse_arguments(required(checkpoint)).namespace().prompt_data == "prompts.jsonl"
    assert parse_arguments([*required(checkpoint), "--prompt-data", "a", "b"]).namespace().prompt_data == ("a", "b")

"""--megatron-config-path: settings of a role in YAML."""

from pathlib import Path

import pytest
import yaml

from tests.slime.arguments.command_lines import parse, refusal, required


def role_file(folder: Path, **overrides: dict[str, object]) -> str:
    """A file with these overrides of actor and critic."""
    entries = [{"name": "default", "role": role, "overrides": values} for role, values in overrides.items()]
    (folder / "roles.yaml").write_text(yaml.safe_dump({"megatron": entries}))
    return str(folder / "roles.yaml")


def test_overrides_are_the_flags_of_the_role(checkpoint: Path, tmp_path: Path) -> None:
    actor = {"lr": "1e-6", "clip_grad": 0.5, "use_dynamic_batch_size": True, "max_tokens_per_gpu": 64}
    critic = {"lr": 1e-5, "lr_decay_style": "linear", "use-dynamic-batch-size": False, "lambd": 0.9, "adam_beta2": None}
    lists = {"only_train_params_name_list": ["mlp", "norm"]}
    file = role_file(tmp_path, critic=critic | lists, actor=actor)
    flags = """--lr 1e-6 --clip-grad 0.5 --use-dynamic-batch-size --max-tokens-per-gpu 64 --critic-lr 1e-5
        --critic-lr-decay-style linear --no-critic-use-dynamic-batch-size --critic-lambd 0.9
        --critic-only-train-params-name-list mlp norm"""
    assert parse(checkpoint, "--megatron-config-path", file) == parse(checkpoint, *flags.split())
    assert parse(checkpoint, f"--megatron_config_path={file}").critic.lr == 1e-5


def test_the_path_may_stand_in_the_config_file(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(f"megatron_config_path: {role_file(tmp_path, critic={'lr': 1e-5})}")
    assert parse(checkpoint, "--config", str(tmp_path / "run.yaml")).critic.lr == 1e-5


def test_megatrons_settings_of_a_role_are_said_otherwise_or_set_aside(checkpoint: Path, tmp_path: Path) -> None:
    critic = {"tensor_model_parallel_size": 2, "recompute_granularity": "full", "optimizer_cpu_offload": True}
    more = {"sequence_parallel": True, "lr_warmup_fraction": 0.5, "num_layers": 2}
    file = role_file(tmp_path, critic=critic | more, actor={"tensor_model_parallel_size": 4})
    config = parse(checkpoint, "--megatron-config-path", file, "--tensor-model-parallel-size", "1", "--lr-warmup-iters", "1")
    assert (config.actor.gradient_checkpointing, config.critic.gradient_checkpointing) == (False, True)
    assert (config.actor.fsdp_cpu_offload, config.critic.fsdp_cpu_offload) == (False, True)
    assert (config.actor.lr_warmup_iters, config.critic.lr_warmup_iters) == (1, 1.5)
    assert ("--recompute-granularity full (critic)", "--critic-gradient-checkpointing") in config.script.translated
    asides = [flag for flag, _ in config.script.set_aside]
    assert asides == [
        "--tensor-model-parallel-size 4",
        "--sequence-parallel (critic)",
        "--tensor-model-parallel-size 2 (critic)",
    ]
    assert config.script.checked == ("--num-layers 2 (critic)",)


def test_the_shape_of_a_critic_that_the_run_has_not_is_not_looked_at(checkpoint: Path, tmp_path: Path) -> None:
    file = role_file(tmp_path, critic={"num_layers": 3})
    flags = ["--megatron-config-path", file, "--advantage-estimator", "grpo", "--critic-hf-checkpoint", "nowhere"]
    assert parse(checkpoint, *flags).script.checked == ()
    assert "--num-layers 3 (critic) disagrees" in refusal([*required(checkpoint), "--megatron-config-path", file])


def test_a_critic_saves_and_resumes_with_the_actor_but_may_start_from_elsewhere(checkpoint: Path, tmp_path: Path) -> None:
    both = role_file(tmp_path, critic={"save": "c", "load": "c"})
    config = parse(checkpoint, "--megatron-config-path", both)
    assert [flag for flag, _ in config.script.set_aside] == ["save: c (critic)", "load: c (critic)"]
    assert config.run.critic_load is None
    elsewhere = role_file(tmp_path, critic={"save": "c", "load": str(checkpoint)})
    assert parse(checkpoint, "--megatron-config-path", elsewhere).run.critic_load == str(checkpoint)


REFUSED = [
    ({"critic": {"lrr": 1}}, "lrr is no setting of critic; did you mean lr?"),
    ({"actor": {"adam_bta1": 1}}, "adam_bta1 is no setting of actor; did you mean adam_beta1?"),
    ({"critic": {"rollout_batch_size": 1}}, "rollout_batch_size is no setting of critic"),
    ({"actor": {"critic_lr": 1}}, "critic_lr is no setting of actor"),
    ({"ref": {"lr": 1}}, "unknown role ref: there are actor and critic"),
    ({"actor": [1]}, "overrides of actor must be a mapping of fields to values, got [1]"),
]


@pytest.mark.parametrize(("overrides", "message"), REFUSED)
def test_what_no_role_has_is_one_line(
    checkpoint: Path, tmp_path: Path, overrides: dict[str, dict[str, object]], message: str
) -> None:
    file = role_file(tmp_path, **overrides)
    refused = refusal([*required(checkpoint), "--megatron-config-path", file])
    assert refused.startswith(f"--megatron-config-path {file}: {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr: 1", "expected megatron: with a list of {name, role, overrides}"),
        ("megatron: {role: actor}", "expected megatron: with a list"),
        ("megatron: [{name: a}]", "expected {name, role, overrides}, got {'name': 'a'}"),
        ("megatron: [{role: actor, args: x}]", "expected {name, role, overrides}, got"),
        ("megatron: [{role: actor}, {role: actor}]", "role actor stands there twice"),
        ("megatron: [", "while parsing"),
    ],
)
def test_a_file_of_another_kind_is_one_line(checkpoint: Path, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "roles.yaml").write_text(text)
    refused = refusal([*required(checkpoint), "--megatron-config-path", str(tmp_path / "roles.yaml")])
    assert refused.startswith(f"--megatron-config-path {tmp_path / 'roles.yaml'}: {message}")


def test_both_ways_at_once_must_say_the_same(checkpoint: Path, tmp_path: Path) -> None:
    file = role_file(tmp_path, critic={"lr": 1e-5, "bf16": True}, actor={"lr": "1e-6"})
    same = ["--critic-lr", "0.00001", "--critic-bf16", "--lr=1e-6"]
    assert parse(checkpoint, "--megatron-config-path", file, *same).critic.lr == 1e-5
    for given, flag, here, there in (
        ("--critic-lr 2e-5", "--critic-lr", "2e-5", "1e-05"),
        ("--no-critic-bf16", "--critic-bf16", "False", "True"),
        ("--lr=3", "--lr", "3", "1e-6"),
    ):
        message = f"{flag} is {here} on the command line and {there} in --megatron-config-path {file}: say it once"
        assert refusal([*required(checkpoint), "--megatron-config-path", file, *given.split()]) == message


def test_a_missing_file_is_named(checkpoint: Path) -> None:
    assert "--megatron-config-path gone.yaml" in refusal([*required(checkpoint), "--megatron-config-path", "gone.yaml"])
    assert refusal([*required(checkpoint), "--megatron-config-path"]) == "--megatron-config-path needs a file"

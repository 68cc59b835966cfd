"""Whole runs of `slime train --launcher local`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from safetensors.torch import load_file

from fsdp_backend.training.actor import Actor
from fsdp_backend.training.critic import Critic
from tests.end_to_end.runs import make_inputs, metrics_of, ppo_flags, repeatable, run


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def finished(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder, with an evaluation at every second rollout."""
    run_dir = tmp_path_factory.mktemp("runs") / "first"
    evaluation = ["--eval-interval", "2", "--eval-prompt-data", "held", str(inputs / "prompts.jsonl")]
    assert run(ppo_flags(inputs, run_dir, *evaluation)) == 0
    return run_dir


def test_the_run_folder_holds_config_metrics_events_report_and_both_checkpoints(finished: Path) -> None:
    config = yaml.safe_load((finished / "config.yaml").read_text())
    assert config["critic_update_steps"] == 2
    assert config["critic_lr"] == 3e-3
    assert config["critic_global_batch_size"] == 4
    assert list((finished / "tensorboard").glob("events*"))
    assert "<html" in (finished / "report.html").read_text()
    for role in ("actor", "critic"):
        assert (finished / "checkpoints" / "latest" / role / "model.safetensors").is_file()
    assert not (finished / "weight_transfer").exists()


def test_every_rollout_is_recorded_with_a_diagnosis_of_each_pass(finished: Path) -> None:
    rows = metrics_of(finished)
    assert [row["rollout"] for row in rows] == [0, 1, 2, 3]
    for row in rows[:3]:
        assert row["rollout/num_samples"] == 8
        assert row["train/num_steps"] == 2
        assert row["train/critic-num_steps"] == 4
        assert row["time/generate"] > 0
    # In a rollout without any reward, a fresh critic has nothing to be wrong about.
    for k in (1, 2):
        assert max(row[f"train/critic-pass_{k}/value_loss"] for row in rows[:3]) > 0
    assert ["eval/held/reward" in row for row in rows] == [True, False, True, True]


def test_the_engine_generates_with_the_actors_weights_after_every_update(finished: Path) -> None:
    for row in metrics_of(finished)[:3]:
        assert row["train/train_rollout_logprob_abs_diff"] < 1e-4


def test_each_role_has_its_own_steps_and_frozen_parameters(inputs: Path, tmp_path: Path) -> None:
    flags = " ".join(ppo_flags(inputs, tmp_path / "run", "--offload-train", "--freeze-params-name-list", "self_attn"))
    flags = flags.replace("--global-batch-size 4", "--num-steps-per-rollout 1 --critic-num-steps-per-rollout 4")
    assert run(flags.split()) == 0
    for row in metrics_of(tmp_path / "run"):
        assert row["train/num_steps"] == 1
        assert row["train/critic-num_steps"] == 8
        # The one step's own log-probs are the old ones: nothing was computed before it.
        assert row["train/ppo_kl"] == 0.0
        assert row["train/train_rollout_logprob_abs_diff"] < 1e-4
    before = load_file(inputs / "model" / "model.safetensors")
    for role in ("actor", "critic"):
        after = load_file(tmp_path / "run" / "checkpoints" / "latest" / role / "model.safetensors")
        for name in before.keys() & after.keys():
            assert torch.equal(before[name], after[name]) is ("self_attn" in name), name


def test_two_runs_with_one_seed_are_equal_bit_for_bit(inputs: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert run(ppo_flags(inputs, tmp_path / name)) == 0
    one, two = tmp_path / "one", tmp_path / "two"
    assert repeatable(metrics_of(one)) == repeatable(metrics_of(two))
    for role in ("actor", "critic"):
        files = [folder / "checkpoints" / "latest" / role / "model.safetensors" for folder in (one, two)]
        assert files[0].read_bytes() == files[1].read_bytes()


LOAD_AND_COMPUTE = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, AutoTokenizer
folder, batch = sys.argv[1], json.load(open(sys.argv[2]))
actor = AutoModelForCausalLM.from_pretrained(folder + "/actor")
critic = AutoModelForTokenClassification.from_pretrained(folder + "/critic")
AutoTokenizer.from_pretrained(folder + "/actor")
log_probs, values = [], []
with torch.no_grad():
    for tokens, length in batch:
        table = actor(torch.tensor([tokens])).logits[0].log_softmax(-1)
        value = critic(torch.tensor([tokens])).logits[0, :, 0]
        for position in range(len(tokens) - length, len(tokens)):
            log_probs.append(float(table[position - 1, tokens[position]]))
            values.append(float(value[position - 1]))
json.dump([log_probs, values], open(sys.argv[2], "w"))
"""


def test_the_result_loads_in_a_fresh_process_and_computes_what_the_trainer_did(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    # The last update of each role is followed by a forward of the trainer's own, on the batch it trained on.
    for role, column in ((Actor, "log_probs"), (Critic, "values")):
        monkeypatch.setattr(role, "update", _then_compute(role.update, column, seen))
    assert run(ppo_flags(inputs, tmp_path / "run")) == 0
    batch = seen["batch"]
    bounds = zip(batch.token_offsets, batch.token_offsets[1:], batch.response_lengths, strict=False)
    samples = [(batch.tokens[start:stop].tolist(), int(length)) for start, stop, length in bounds]
    (tmp_path / "batch.json").write_text(json.dumps(samples))
    latest = tmp_path / "run" / "checkpoints" / "latest"
    subprocess.run([sys.executable, "-c", LOAD_AND_COMPUTE, str(latest), str(tmp_path / "batch.json")], check=True)
    log_probs, values = json.loads((tmp_path / "batch.json").read_text())
    np.testing.assert_allclose(log_probs, seen["log_probs"], atol=1e-5)
    np.testing.assert_allclose(values, seen["values"], atol=1e-5)


def _then_compute(update: Any, column: str, seen: dict[str, Any]) -> Any:
    def wrapped(self: Any, batch: Any, *args: Any) -> Any:
        metrics = update(self, batch, *args)
        seen["batch"], seen[column] = batch, getattr(self, column)(batch)
        return metrics

    return wrapped


def test_ppo_learns_a_simple_preference(inputs: Path, tmp_path: Path) -> None:
    flags = ["--num-rollout", "25", "--rollout-batch-size", "8", "--n-samples-per-prompt", "4", "--lr", "5e-3"]
    flags += ["--critic-lr", "5e-3", "--global-batch-size", "16", "--normalize-advantages"]
    flags += ["--use-dynamic-batch-size", "--max-tokens-per-gpu", "1024"]
    assert run(ppo_flags(inputs, tmp_path / "run", *flags)) == 0
    rewards = [row["rollout/reward"] for row in metrics_of(tmp_path / "run")]
    assert rewards[0] < 0.15
    assert np.mean(rewards[-3:]) > 0.6


def test_supervised_training_lowers_its_loss_and_hands_a_checkpoint_to_ppo(inputs: Path, tmp_path: Path) -> None:
    flags = ["train", "--launcher", "local", "--loss-type", "sft_loss", "--hf-checkpoint", str(inputs / "model")]
    flags += ["--prompt-data", str(inputs / "messages.jsonl"), "--rollout-batch-size", "8", "--num-rollout", "8"]
    assert run([*flags, "--lr", "5e-3", "--run-dir", str(tmp_path / "sft")]) == 0
    losses = [row["train/sft_loss"] for row in metrics_of(tmp_path / "sft")]
    assert losses[-1] < 0.8 * losses[0]
    actor = tmp_path / "sft" / "checkpoints" / "latest" / "actor"
    assert not (actor.parent / "critic").exists()
    assert run(ppo_flags(inputs, tmp_path / "ppo", "--hf-checkpoint", str(actor), "--num-rollout", "1")) == 0


def test_a_checkpoint_is_saved_at_every_interval_and_after_the_last(inputs: Path, tmp_path: Path) -> None:
    assert run(ppo_flags(inputs, tmp_path / "run", "--save-interval", "2")) == 0
    folder = tmp_path / "run" / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == ["latest", "rollout_1", "rollout_2"]
    assert (folder / "latest").readlink() == Path("rollout_2")
    early, late = (load_file(folder / name / "critic" / "model.safetensors") for name in ("rollout_1", "rollout_2"))
    assert any(not np.array_equal(early[name], late[name]) for name in early)


def test_the_config_of_a_run_repeats_it(inputs: Path, finished: Path, tmp_path: Path) -> None:
    assert run(["train", "--config", str(finished / "config.yaml"), "--run-dir", str(tmp_path / "again")]) == 0
    assert repeatable(metrics_of(tmp_path / "again")) == repeatable(metrics_of(finished))


def test_a_critic_can_start_from_an_earlier_critic(inputs: Path, finished: Path, tmp_path: Path) -> None:
    critic = finished / "checkpoints" / "latest" / "critic"
    flags = ["--num-rollout", "1", "--critic-hf-checkpoint", str(critic), "--critic-lr", "0"]
    assert run(ppo_flags(inputs, tmp_path / "run", *flags)) == 0
    before, after = (
        load_file(folder / "model.safetensors") for folder in (critic, tmp_path / "run" / "checkpoints" / "latest" / "critic")
    )
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert np.array_equal(tensor, after[name])


def same_weights(one: Path, other: Path) -> bool:
    return (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


def test_rollouts_for_the_critic_alone_leave_actor_and_engine_as_they_were(inputs: Path, tmp_path: Path) -> None:
    flags = [
        "--num-critic-only-steps",
        "2",
        "--save-interval",
        "2",
        "--critic-holdout-fraction",
        "0.5",
        "--lr-warmup-iters",
        "1",
    ]
    assert run(ppo_flags(inputs, tmp_path / "run", *flags)) == 0
    first, second, last = metrics_of(tmp_path / "run")
    for row in (first, second):
        assert not [name for name in row if name.startswith("train/") and not name.startswith("train/critic-")]
        assert "time/update_weights" not in row
    assert (first["train/critic-lr"], second["train/critic-lr"], last["train/critic-lr"]) == (0.0, 3e-3, 3e-3)
    assert last["train/lr"] == 0.0
    assert "train/critic-pass_2/holdout_explained_variance_after" in last
    before = load_file(inputs / "model" / "model.safetensors")
    for name, tensor in load_file(tmp_path / "run" / "checkpoints" / "rollout_1" / "actor" / "model.safetensors").items():
        assert torch.equal(tensor, before[name])


def test_a_critic_is_pretrained_alone_generated_or_from_disk_and_loaded_again(inputs: Path, tmp_path: Path) -> None:
    alone = ["--num-critic-only-steps", "3", "--critic-lambd", "1"]
    dumps = str(tmp_path / "dump_{rollout_id}.pt")
    assert run(ppo_flags(inputs, tmp_path / "generated", *alone, "--save-debug-rollout-data", dumps)) == 0
    replay = [word for word in ppo_flags(inputs, tmp_path / "replayed", *alone, "--load-debug-rollout-data", dumps)]
    for flag in ("--prompt-data", "--custom-rm-path"):
        del replay[replay.index(flag) : replay.index(flag) + 2]
    assert run(replay) == 0
    generated, replayed = (tmp_path / name / "checkpoints" / "latest" for name in ("generated", "replayed"))
    assert repeatable(metrics_of(tmp_path / "generated")) == repeatable(metrics_of(tmp_path / "replayed"))
    assert same_weights(generated / "critic", replayed / "critic")
    assert not (generated / "actor").exists()
    flags = ["--num-rollout", "1", "--critic-lr", "0", "--critic-load", str(generated / "critic")]
    assert run(ppo_flags(inputs, tmp_path / "run", *flags)) == 0
    assert same_weights(tmp_path / "run" / "checkpoints" / "latest" / "critic", generated / "critic")


def test_rollouts_generated_alone_are_those_that_a_run_would_begin_with(inputs: Path, tmp_path: Path) -> None:
    dumps = [str(tmp_path / name / "{rollout_id}.pt") for name in ("alone", "trained")]
    alone = ["--debug-rollout-only", "--save-debug-rollout-data", dumps[0]]
    assert run(ppo_flags(inputs, tmp_path / "run_alone", *alone)) == 0
    assert run(ppo_flags(inputs, tmp_path / "run", "--save-debug-rollout-data", dumps[1])) == 0
    first, same = (torch.load(pattern.format(rollout_id=0), weights_only=True)["samples"] for pattern in dumps)
    assert [sample["tokens"] for sample in first] == [sample["tokens"] for sample in same]
    rows = metrics_of(tmp_path / "run_alone")
    assert [row["rollout"] for row in rows] == [0, 1, 2]
    assert not [name for row in rows for name in row if name.startswith("train/")]
    assert sorted(path.name for path in (tmp_path / "alone").iterdir()) == ["0.pt", "1.pt", "2.pt"]
    assert not (tmp_path / "run_alone" / "checkpoints").exists()


def test_critic_load_refuses_a_model_without_a_value_head(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(ppo_flags(inputs, tmp_path / "run", "--critic-load", str(inputs / "model"))) == 2
    assert "has no value head" in capsys.readouterr().err.splitlines()[-1]


ESTIMATORS = ["grpo", "gspo", "cispo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_one_flag_takes_a_run_from_the_critic_to_another_estimator(
    estimator: str, inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(ppo_flags(inputs, tmp_path / "run", "--advantage-estimator", estimator)) == 0
    printed = capsys.readouterr().out
    assert f"--critic-update-steps, --critic-lr set aside: --advantage-estimator {estimator} has no critic" in printed
    for row in metrics_of(tmp_path / "run"):
        assert row["train/num_steps"] == 2
        assert not [name for name in row if "critic" in name and row[name]]
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints" / "latest").iterdir()) == ["actor"]


def test_a_group_estimator_learns_the_simple_preference_too(inputs: Path, tmp_path: Path) -> None:
    flags = ["--num-rollout", "20", "--rollout-batch-size", "8", "--n-samples-per-prompt", "8", "--lr", "5e-3"]
    flags += ["--global-batch-size", "32", "--use-dynamic-batch-size", "--max-tokens-per-gpu", "1024", "--use-tis"]
    assert run(ppo_flags(inputs, tmp_path / "run", "--advantage-estimator", "grpo", *flags)) == 0
    rewards = [row["rollout/reward"] for row in metrics_of(tmp_path / "run")]
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.3


def test_models_are_exported_where_they_are_asked_for_each_with_its_card(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [
        "--save-hf",
        str(tmp_path / "policy-{rollout_id}"),
        "--critic-save-hf",
        str(tmp_path / "value"),
        "--save-interval",
        "2",
    ]
    assert run(ppo_flags(inputs, tmp_path / "run", *flags)) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy-1", "policy-2", "run", "value"]
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert f"checkpoint: {tmp_path / 'policy-{rollout_id}'}" in capsys.readouterr().out
    card = ModelCard.load(tmp_path / "policy-2" / "README.md")
    assert card.data.pipeline_tag == "text-generation"
    last = metrics_of(tmp_path / "run")[-1]["rollout/reward"]
    for words in (
        "PPO with a critic, K = 2",
        "for 3 of 3 rollouts",
        "likes_one_letter",
        f"| last rollout/reward | {last:.4g} |",
    ):
        assert words in card.text
    assert "for 2 of 3 rollouts" in (tmp_path / "policy-1" / "README.md").read_text()
    assert ModelCard.load(tmp_path / "value" / "README.md").data.pipeline_tag == "token-classification"

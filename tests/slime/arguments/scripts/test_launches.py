"""Whole command lines of slime's launch scripts, with --train-backend fsdp added."""

from pathlib import Path
from typing import Any

import pytest

from slime.arguments.parse import known_flags, parse_arguments
from slime.arguments.scripts.read import KNOWN, ScriptFlags
from slime.arguments.scripts.show import show
from tests.slime.arguments.command_lines import refusal
from tests.slime.arguments.scripts.launches import (
    DENSE_GRPO,
    DENSE_PPO,
    EXPERTS_GRPO,
    MOONLIGHT,
    QWEN3_4B,
    QWEN3_30B_A3B,
    QWEN25_7B,
    ROLLOUT,
    SHAPE_MOONLIGHT,
    checkpoint_of,
    words,
)

LAUNCHES: dict[str, tuple[str, dict[str, Any]]] = {
    "dense, GRPO": (DENSE_GRPO, QWEN3_4B),
    "dense, PPO": (DENSE_PPO, QWEN25_7B),
    "experts, GRPO": (EXPERTS_GRPO, QWEN3_30B_A3B),
    "latent attention": (f"--hf-checkpoint {{folder}} {ROLLOUT} {SHAPE_MOONLIGHT}", MOONLIGHT),
}


@pytest.mark.parametrize("launch", LAUNCHES)
def test_a_launch_parses_and_every_flag_of_megatrons_is_accounted_for_once(launch: str, tmp_path: Path) -> None:
    text, shape = LAUNCHES[launch]
    argv = words(text, checkpoint_of(shape, tmp_path / "model"))
    script = parse_arguments(argv).script
    told = [*(given for given, _ in script.translated), *(given for given, _ in script.set_aside), *script.checked]
    foreign = [word for word in argv if word.startswith("--") and word[2:].replace("-", "_") not in known_flags()]
    named = sorted(each.split()[0] for each in told if not each.startswith("--ref-load"))
    assert named == sorted(word for word in foreign if not word.startswith("--hf-checkpoint"))


def test_a_dense_grpo_launch_means_what_it_says(tmp_path: Path) -> None:
    folder = checkpoint_of(QWEN3_4B, tmp_path / "model")
    config = parse_arguments(words(DENSE_GRPO, folder))
    actor, ppo = config.actor, config.ppo
    assert (actor.lr, actor.weight_decay, actor.adam_beta1, actor.adam_beta2) == (1e-6, 0.1, 0.9, 0.98)
    assert (actor.gradient_checkpointing, actor.use_dynamic_batch_size, actor.max_tokens_per_gpu) == (True, True, 9216)
    assert (actor.fsdp_cpu_offload, actor.global_batch_size, config.cluster.colocate) == (False, 256, True)
    assert (ppo.advantage_estimator, ppo.kl_loss_type, ppo.eps_clip_high) == ("grpo", "low_var_kl", 0.28)
    # The reference is for a metric alone, and what --ref-load names is no Hugging Face folder.
    assert (ppo.uses_reference, ppo.ref_load) == (True, None)
    assert config.script.translated == (("--recompute-granularity full", "--gradient-checkpointing"),)
    assert len(config.script.checked) == 12


def test_a_ppo_launch_trains_both_roles_alike(tmp_path: Path) -> None:
    config = parse_arguments(words(DENSE_PPO, checkpoint_of(QWEN25_7B, tmp_path / "model")))
    assert config.ppo.uses_critic
    assert (config.critic.gradient_checkpointing, config.critic.lr_warmup_iters) == (True, 30)
    assert ("--lr-warmup-fraction 0.01", "--lr-warmup-iters 30") in config.script.translated
    assert (config.cluster.critic_num_gpus_per_node, config.ppo.num_critic_only_steps) == (4, 1)


def test_a_launch_with_experts_offloads_where_megatron_offloads(tmp_path: Path) -> None:
    config = parse_arguments(words(EXPERTS_GRPO, checkpoint_of(QWEN3_30B_A3B, tmp_path / "model")))
    assert config.actor.fsdp_cpu_offload
    assert ("--optimizer-cpu-offload", "--fsdp-cpu-offload") in config.script.translated


def test_what_was_set_aside_is_one_short_table_by_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    show(parse_arguments(words(EXPERTS_GRPO, checkpoint_of(QWEN3_30B_A3B, tmp_path / "model"))).script)
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) < 32
    (line,) = [line for line in printed.splitlines() if "--tensor-model-parallel-size 2" in line]
    assert "FSDP shards every parameter" in line
    assert "--decoder-last-pipeline-num-layers 12" in line
    assert "model-shape flags agree" in printed


def test_nothing_is_printed_where_there_is_nothing_to_say(capsys: pytest.CaptureFixture[str]) -> None:
    show(ScriptFlags())
    assert capsys.readouterr().out == ""


REAL_MEGATRON = """attention-softmax-in-fp32 tensor-model-parallel-size pipeline-model-parallel-size context-parallel-size
    optimizer lr-decay-style adam-beta1 adam-beta2 weight-decay hidden-dropout attention-dropout attention-backend
    sequence-parallel accumulate-allreduce-grads-in-fp32 expert-model-parallel-size expert-tensor-parallel-size recompute-method
    recompute-granularity recompute-num-layers rotary-base swiglu num-attention-heads vocab-size num-layers hidden-size
    disable-bias-linear ffn-hidden-size normalization moe-token-dispatcher-type norm-epsilon use-precision-aware-optimizer
    overlap-cpu-optimizer-d2h-h2d optimizer-cpu-offload group-query-attention num-query-groups kv-channels
    untie-embeddings-and-output-weights qk-layernorm position-embedding-type moe-enable-deepep use-rotary-position-embeddings
    num-experts moe-router-topk moe-aux-loss-coeff moe-grouped-gemm moe-router-dtype moe-router-score-function
    moe-ffn-hidden-size moe-layer-freq moe-permute-fusion moe-shared-expert-intermediate-size moe-router-enable-expert-bias
    moe-router-load-balancing-type moe-router-pre-softmax moe-router-bias-update-rate moe-router-topk-scaling-factor
    moe-token-drop-policy moe-router-group-topk moe-router-num-groups moe-shared-expert-gate rotary-percent spec
    decoder-last-pipeline-num-layers add-qkv-bias multi-latent-attention q-lora-rank kv-lora-rank qk-head-dim
    qk-pos-emb-head-dim v-head-dim no-rope-fusion apply-layernorm-1p attention-output-gate use-gated-attention
    rotary-scaling-factor max-position-embeddings no-position-embedding make-vocab-size-divisible-by
    no-check-for-nan-in-loss-and-grad lr-warmup-fraction min-lr mscale mscale-all-dim rotary-interleaved use-rope-scaling
    post-mlp-layernorm post-self-attn-layernorm deterministic-mode"""
"""What real launch scripts set of Megatron's."""


def test_every_flag_that_real_scripts_set_is_known() -> None:
    ours = {name.replace("_", "-") for name in known_flags()}
    assert [name for name in REAL_MEGATRON.split() if name not in KNOWN | ours] == []


def test_no_flag_has_two_meanings() -> None:
    assert {name.replace("_", "-") for name in known_flags()} & KNOWN == set()


def test_a_script_flag_with_a_slip_is_an_error_with_the_nearest_name(tmp_path: Path) -> None:
    argv = words(DENSE_GRPO, checkpoint_of(QWEN3_4B, tmp_path / "model"))
    argv[argv.index("--tensor-model-parallel-size")] = "--tensor-model-paralel-size"
    assert refusal(argv) == "unknown flag --tensor-model-paralel-size; did you mean --tensor-model-parallel-size?"

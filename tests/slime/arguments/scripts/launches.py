"""Launch scripts' command lines and the checkpoints they name, in the shapes of real models."""

import json
from pathlib import Path
from typing import Any

QWEN3_4B: dict[str, Any] = {
    "model_type": "qwen3",
    "attention_bias": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "tie_word_embeddings": True,
    "vocab_size": 151936,
}
QWEN25_7B: dict[str, Any] = {
    "model_type": "qwen2",
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "vocab_size": 152064,
}
QWEN3_30B_A3B: dict[str, Any] = {
    **QWEN3_4B,
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
}
MOONLIGHT: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "attention_bias": False,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 11264,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 1408,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_attention_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 27,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 50000.0,
    "routed_scaling_factor": 2.446,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 1,
    "v_head_dim": 128,
    "vocab_size": 163840,
}

SHAPE_QWEN3_4B = """--swiglu --num-layers 36 --hidden-size 2560 --ffn-hidden-size 9728 --num-attention-heads 32
    --group-query-attention --num-query-groups 8 --kv-channels 128 --qk-layernorm --disable-bias-linear
    --normalization RMSNorm --norm-epsilon 1e-6 --rotary-base 1000000 --use-rotary-position-embeddings --vocab-size 151936"""
SHAPE_QWEN25_7B = """--swiglu --num-layers 28 --hidden-size 3584 --ffn-hidden-size 18944 --num-attention-heads 28
    --group-query-attention --num-query-groups 4 --add-qkv-bias --disable-bias-linear --normalization RMSNorm
    --norm-epsilon 1e-06 --rotary-base 1000000 --use-rotary-position-embeddings --untie-embeddings-and-output-weights
    --vocab-size 152064"""
SHAPE_QWEN3_30B_A3B = """--disable-bias-linear --qk-layernorm --group-query-attention --num-attention-heads 32
    --num-query-groups 4 --kv-channels 128 --num-layers 48 --hidden-size 2048 --ffn-hidden-size 6144 --normalization RMSNorm
    --position-embedding-type rope --norm-epsilon 1e-6 --rotary-percent 1.0 --swiglu --untie-embeddings-and-output-weights
    --vocab-size 151936 --rotary-base 1000000 --num-experts 128 --moe-router-topk 8 --moe-ffn-hidden-size 768
    --moe-layer-freq [1]*48 --moe-router-score-function softmax --moe-token-dispatcher-type alltoall --moe-grouped-gemm
    --moe-token-drop-policy probs --moe-router-dtype fp32 --moe-permute-fusion --moe-aux-loss-coeff 0"""
SHAPE_MOONLIGHT = """--disable-bias-linear --num-layers 27 --hidden-size 2048 --ffn-hidden-size 11264
    --num-attention-heads 16 --kv-channels 128 --normalization RMSNorm --position-embedding-type rope --norm-epsilon 1e-5
    --rotary-percent 1.0 --swiglu --untie-embeddings-and-output-weights --no-position-embedding --vocab-size 163840
    --multi-latent-attention --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128 --qk-layernorm
    --rotary-scaling-factor 1 --rotary-base 50000 --mscale 1.0 --mscale-all-dim 1.0 --attention-softmax-in-fp32
    --no-rope-fusion --num-experts 64 --moe-layer-freq [0]*1+[1]*26 --moe-ffn-hidden-size 1408 --moe-router-topk 6
    --moe-shared-expert-intermediate-size 2816 --moe-router-pre-softmax --moe-router-score-function sigmoid
    --moe-router-enable-expert-bias --moe-router-load-balancing-type seq_aux_loss --moe-aux-loss-coeff 0
    --moe-router-bias-update-rate 0 --moe-router-group-topk 1 --moe-router-num-groups 1
    --moe-router-topk-scaling-factor 2.446 --moe-grouped-gemm --moe-token-drop-policy probs"""

ROLLOUT = """--prompt-data {folder}/prompts.jsonl --input-key prompt --label-key label --apply-chat-template --rollout-shuffle
    --rm-type math --num-rollout 3000 --rollout-batch-size 32 --n-samples-per-prompt 8 --rollout-max-response-len 8192
    --rollout-temperature 0.8 --global-batch-size 256 --balance-data"""
PARALLEL = """--tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 1 --context-parallel-size 1
    --expert-model-parallel-size 1 --expert-tensor-parallel-size 1 --recompute-granularity full --recompute-method uniform
    --recompute-num-layers 1 --use-dynamic-batch-size --max-tokens-per-gpu 9216"""
OPTIMIZER = "--optimizer adam --lr 1e-6 --lr-decay-style constant --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.98"
PRECISION = """--attention-dropout 0.0 --hidden-dropout 0.0 --accumulate-allreduce-grads-in-fp32 --attention-softmax-in-fp32
    --attention-backend flash"""
EVALUATION = """--eval-interval 20 --eval-prompt-data aime {folder}/aime.jsonl --n-samples-per-eval-prompt 16
    --eval-max-response-len 16384"""

DENSE_GRPO = f"""--train-backend fsdp --actor-num-nodes 1 --actor-num-gpus-per-node 8 --colocate {SHAPE_QWEN3_4B}
    --hf-checkpoint {{folder}} --ref-load {{folder}}_torch_dist --save {{folder}}_slime --load {{folder}}_slime
    --save-interval 20 {ROLLOUT} {OPTIMIZER}
    --advantage-estimator grpo --use-kl-loss --kl-loss-coef 0.00 --kl-loss-type low_var_kl --entropy-coef 0.00 --eps-clip 0.2
    --eps-clip-high 0.28 {PARALLEL} {EVALUATION} {PRECISION} --ci-test"""
DENSE_PPO = f"""--train-backend fsdp --actor-num-nodes 1 --actor-num-gpus-per-node 4 --critic-num-nodes 1
    --critic-num-gpus-per-node 4 --rollout-num-gpus 4 {SHAPE_QWEN25_7B} --hf-checkpoint={{folder}} {ROLLOUT} {OPTIMIZER}
    --lr-warmup-fraction 0.01 --min-lr 0.0 --clip-grad 1.0 --advantage-estimator ppo --kl-coef 0.00 --kl-loss-type k1
    --entropy-coef 0.00 --eps-clip 4e-4 --value-clip 0.2 --num-critic-only-steps 1 --normalize-advantages
    {PARALLEL} {PRECISION} --use-tis --no-check-for-nan-in-loss-and-grad"""
EXPERTS_GRPO = f"""--train-backend fsdp --actor-num-nodes 1 --actor-num-gpus-per-node 8 --colocate {SHAPE_QWEN3_30B_A3B}
    --hf-checkpoint {{folder}} {ROLLOUT} {OPTIMIZER} --optimizer-cpu-offload --overlap-cpu-optimizer-d2h-h2d
    --use-precision-aware-optimizer --advantage-estimator grpo --entropy-coef 0.00 --eps-clip 0.2 --eps-clip-high 0.28
    {PARALLEL} --decoder-last-pipeline-num-layers 12 {PRECISION} --moe-enable-deepep --rollout-skip-special-tokens"""


def checkpoint_of(config: dict[str, Any], folder: Path) -> Path:
    """A folder with this config.json and no weights in its safetensors file."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return folder


def words(launch: str, folder: Path) -> list[str]:
    """The command line as a shell hands it on."""
    return launch.format(folder=folder).split()

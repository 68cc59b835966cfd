"""What flags of slime's launch scripts mean here that are none of ours: Megatron's, and slime's own around Megatron.

Data only. The model-shape flags, which must agree with the checkpoint, are in shape.py.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class SetAside:
    """Flags without a meaning here, and why. Values that would mean something are refused."""

    reason: str
    switches: str = ""
    """Flags without a value."""
    valued: str = ""
    """Flags with one value."""
    lists: str = ""
    """Flags with any number of values."""
    only: str = ""
    """The values that may be set aside; any other is an error. Empty: all."""
    unless: str = ""
    """A flag of ours beside which these would mean something, which is an error then."""


@dataclass(frozen=True)
class Refused:
    """Flags that would change what is trained, in a way that does not exist here."""

    reason: str
    switches: str = ""
    valued: str = ""


@dataclass(frozen=True)
class Translated:
    """A flag that is said here by a switch of a role."""

    flag: str
    switch: str
    choices: str = ""
    """Its values, each of which turns the switch on. Empty: it takes none."""


@dataclass(frozen=True)
class Share:
    """A flag that gives a number as a share of the first of `of` that is given."""

    flag: str
    target: str
    of: tuple[str, ...]


ROWS: tuple[SetAside | Refused | Translated | Share, ...] = (
    Translated("recompute-granularity", "gradient_checkpointing", "full selective"),
    Translated("recompute-activations", "gradient_checkpointing"),
    Translated("optimizer-cpu-offload", "fsdp_cpu_offload"),
    Share("lr-warmup-fraction", "lr_warmup_iters", ("lr_decay_iters", "num_rollout")),
    Share("warmup-ratio", "lr_warmup_iters", ("lr_decay_iters", "num_rollout")),
    SetAside(
        "FSDP shards every parameter over all ranks: there is no other layout",
        switches="sequence-parallel use-distributed-optimizer overlap-grad-reduce overlap-param-gather tp-comm-overlap "
        "account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split overlap-p2p-communication "
        "no-overlap-p2p-communication use-tp-pp-dp-mapping fsdp-state-dict-cpu-offload",
        valued="tensor-model-parallel-size pipeline-model-parallel-size context-parallel-size expert-model-parallel-size "
        "expert-tensor-parallel-size virtual-pipeline-model-parallel-size num-layers-per-virtual-pipeline-stage "
        "decoder-first-pipeline-num-layers decoder-last-pipeline-num-layers pipeline-model-parallel-layout "
        "num-distributed-optimizer-instances ddp-bucket-size ddp-num-buckets fsdp-cpu-backend",
        lists="cp-comm-type",
    ),
    SetAside(
        "experts are sharded like everything else and compute where their layer is gathered",
        switches="moe-enable-deepep moe-grouped-gemm moe-permute-fusion moe-router-fusion moe-shared-expert-overlap "
        "moe-use-legacy-grouped-gemm overlap-moe-expert-parallel-comm delay-wgrad-compute moe-per-layer-logging",
        valued="moe-token-dispatcher-type moe-flex-dispatcher-backend moe-deepep-num-sms moe-token-drop-policy",
    ),
    SetAside(
        "the device decides which attention kernel runs",
        switches="use-flash-attn",
        valued="attention-backend",
        only="flash fused unfused local auto",
    ),
    SetAside("the device decides which attention kernel runs", valued="attn-implementation"),
    SetAside(
        "the layers are transformers' own: nothing to fuse or to choose",
        switches="no-rope-fusion apply-rope-fusion no-masked-softmax-fusion no-bias-swiglu-fusion bias-swiglu-fusion "
        "no-bias-gelu-fusion no-bias-dropout-fusion no-gradient-accumulation-fusion gradient-accumulation-fusion "
        "no-persist-layer-norm cross-entropy-loss-fusion enable-cuda-graph external-cuda-graph te-rng-tracker use-mcore-models "
        "use-cpu-initialization no-async-tensor-model-parallel-allreduce manual-gc",
        valued="transformer-impl cross-entropy-fusion-impl manual-gc-interval empty-unused-memory-level megatron-to-hf-mode "
        "model-name",
    ),
    SetAside(
        "softmax, masters, moments and gradient reduction are in float32",
        switches="attention-softmax-in-fp32 accumulate-allreduce-grads-in-fp32 use-precision-aware-optimizer "
        "grad-reduce-in-bf16",
        valued="main-grads-dtype main-params-dtype exp-avg-dtype exp-avg-sq-dtype moe-router-dtype",
    ),
    SetAside(
        "--fsdp-cpu-offload moves all of it, without an overlap to choose",
        switches="overlap-cpu-optimizer-d2h-h2d use-torch-optimizer-for-cpu-offload no-pin-cpu-grads no-pin-cpu-params",
        valued="optimizer-offload-fraction",
    ),
    SetAside(
        "--gradient-checkpointing recomputes every block; the log-prob head always is, in chunks",
        switches="recompute-loss-function distribute-saved-activations",
        valued="recompute-method recompute-num-layers log-probs-chunk-size",
        lists="recompute-modules",
    ),
    SetAside(
        "the checkpoint's config and transformers' code for it say this",
        switches="group-query-attention use-gated-attention attention-output-gate apply-layernorm-1p post-self-attn-layernorm "
        "post-mlp-layernorm moe-shared-expert-gate moe-router-pre-softmax rotary-interleaved no-position-embedding "
        " use-rotary-position-embeddings",
        valued="max-position-embeddings seq-length init-method-std tokenizer-type tokenizer-model custom-model-provider-path "
        "make-vocab-size-divisible-by",
        lists="spec",
    ),
    SetAside("layers for multi-token prediction are not loaded", valued="mtp-num-layers mtp-loss-scaling-factor"),
    SetAside(
        "metrics are in the run folder, as JSON Lines and TensorBoard events, a step a rollout",
        switches="use-tensorboard log-throughput log-timers-to-tensorboard log-memory-to-tensorboard log-params-norm "
        "log-num-zeros-in-grad log-passrate log-multi-turn log-correct-samples wandb-always-use-train-step",
        valued="tensorboard-dir tb-project-name tb-experiment-name log-interval timing-log-level log-reward-category",
    ),
    SetAside(
        "a check of slime's own tests",
        switches="ci-test ci-disable-kl-checker check-weight-update-equal",
        valued="ci-train-rollout-logprob-abs-diff-threshold ci-save-grad-norm ci-load-grad-norm",
    ),
    SetAside(
        "a step whose gradient is not finite is skipped and counted",
        switches="no-check-for-nan-in-loss-and-grad check-for-nan-in-loss-and-grad",
    ),
    SetAside("work is always balanced between ranks, by its real cost", switches="balance-data balance-by-flops"),
    SetAside("samples are packed without padding", valued="data-pad-size-multiplier log-probs-max-tokens-per-gpu"),
    SetAside("prompts are always one data set for all", switches="rollout-global-dataset"),
    SetAside("one seed gives one result already", switches="deterministic-mode"),
    SetAside(
        "processes, their backend and their buffers follow the machine",
        valued="distributed-backend num-gpus-per-node num-workers train-memory-margin-bytes",
    ),
    SetAside(
        "checkpoints have one format here, and hold all state",
        switches="no-save-rng auto-detect-ckpt-format ckpt-fully-parallel-save no-ckpt-fully-parallel-save "
        "ckpt-fully-parallel-load use-dist-ckpt use-checkpoint-args",
        valued="ckpt-format dist-ckpt-format dist-ckpt-strictness",
    ),
    SetAside(
        "optimizers, generators and counts start afresh from a Hugging Face checkpoint",
        switches="finetune no-load-rng",
        valued="ckpt-step",
        unless="load",
    ),
    SetAside("--ref-load is a Hugging Face folder", valued="ref-ckpt-step"),
    SetAside("models train without dropout", valued="hidden-dropout attention-dropout", only="0"),
    SetAside(
        "no load-balancing loss is added to the objective",
        valued="moe-z-loss-coeff",
        lists="moe-aux-loss-coeff",
        only="0",
    ),
    SetAside(
        "no load-balancing loss is added to the objective",
        lists="moe-router-load-balancing-type",
        only="aux_loss seq_aux_loss global_aux_loss none",
    ),
    SetAside(
        "the router's bias stays as it is in the checkpoint",
        switches="moe-router-enable-expert-bias",
        valued="moe-router-bias-update-rate",
        only="0",
    ),
    SetAside("weight decay is constant", valued="weight-decay-incr-style", only="constant"),
    Refused("training computes in float32, or in bfloat16 by --bf16", switches="fp16 fp8-param-gather", valued="fp8-format"),
    Refused("training computes in float32, or in bfloat16 by --bf16", valued="fp8-recipe fp4-format fp4-recipe"),
    Refused("every token reaches its experts here", valued="moe-expert-capacity-factor moe-input-jitter-eps"),
    Refused("every token reaches its experts here", switches="moe-pad-expert-input-to-capacity"),
    Refused(
        "how a loss is averaged is fixed here; --loss-type custom_loss takes a loss of your own",
        valued="custom-pg-loss-reducer-function-path",
    ),
    Refused("multi-token prediction is not trained here", switches="enable-mtp-training"),
    Refused("engine and trainer do not compute bit for bit the same here", switches="true-on-policy-mode"),
)


@dataclass(frozen=True)
class Entry:
    """One flag of the table: the row it stands in, and how many values it takes."""

    row: SetAside | Refused | Translated | Share
    values: int | None
    """0, 1, or None for any number."""


def _entries(row: SetAside | Refused | Translated | Share) -> Iterable[tuple[str, Entry]]:
    if isinstance(row, Translated):
        yield row.flag, Entry(row, 1 if row.choices else 0)
    elif isinstance(row, Share):
        yield row.flag, Entry(row, 1)
    else:
        lists = row.lists if isinstance(row, SetAside) else ""
        for names, values in ((row.switches, 0), (row.valued, 1), (lists, None)):
            yield from ((name, Entry(row, values)) for name in names.split())


FLAGS: dict[str, Entry] = {name: entry for row in ROWS for name, entry in _entries(row)}
"""Every flag of the table, without its dashes in front."""

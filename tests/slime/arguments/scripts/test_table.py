"""Script flags whose meaning needs no checkpoint."""

from pathlib import Path

import pytest

from slime.arguments.scripts.table import FLAGS, ROWS, Share, Translated
from tests.slime.arguments.command_lines import parse, refusal, required

CHANGES_THE_OBJECTIVE = [
    ("--hidden-dropout 0.1", "--hidden-dropout 0.1: models train without dropout; give 0"),
    ("--attention-dropout=0.1", "--attention-dropout 0.1: models train without dropout; give 0"),
    ("--fp16", "--fp16: training computes in float32, or in bfloat16 by --bf16"),
    ("--fp8-format e4m3", "--fp8-format e4m3: training computes in float32"),
    ("--moe-aux-loss-coeff 1e-3", "--moe-aux-loss-coeff 1e-3: no load-balancing loss is added to the objective; give 0"),
    ("--moe-aux-loss-coeff 0 0.1", "--moe-aux-loss-coeff 0 0.1: no load-balancing loss"),
    ("--moe-z-loss-coeff 0.1", "--moe-z-loss-coeff 0.1: no load-balancing loss"),
    ("--moe-router-load-balancing-type sinkhorn", "--moe-router-load-balancing-type sinkhorn: no load-balancing"),
    ("--moe-router-bias-update-rate 1e-3", "--moe-router-bias-update-rate 1e-3: the router's bias stays"),
    ("--moe-expert-capacity-factor 1.0", "--moe-expert-capacity-factor 1.0: every token reaches its experts here"),
    ("--enable-mtp-training", "--enable-mtp-training: multi-token prediction is not trained here"),
    (
        "--custom-pg-loss-reducer-function-path a.b",
        "--custom-pg-loss-reducer-function-path a.b: how a loss is averaged is fixed",
    ),
    ("--true-on-policy-mode", "--true-on-policy-mode: engine and trainer do not compute bit for bit the same here"),
    ("--weight-decay-incr-style cosine", "--weight-decay-incr-style cosine: weight decay is constant; give constant"),
    ("--finetune --load x", "--finetune does not go with --load"),
]
BAD_VALUES = [
    ("--attention-backend triton", "--attention-backend triton: the device decides"),
    ("--recompute-granularity half", "--recompute-granularity half: give full or selective"),
    ("--tensor-model-parallel-size", "--tensor-model-parallel-size needs a value"),
    ("--tensor-model-parallel-size --bf16", "--tensor-model-parallel-size needs a value"),
    ("--sequence-parallel=1", "--sequence-parallel takes no value, got 1"),
    ("--lr-warmup-fraction x", "--lr-warmup-fraction x must be a share of --lr-decay-iters or --num-rollout, got 3"),
    ("--lr-warmup-fraction 0.1 --lr-warmup-iters 2", "--lr-warmup-fraction 0.1 and --lr-warmup-iters say the same"),
    ("--recompute-granularity full --no-gradient-checkpointing", "--recompute-granularity full and --no-gradient-check"),
    ("--lr-decay-style polynomial", "invalid choice 'polynomial' for argument '--lr-decay-style'"),
]


@pytest.mark.parametrize(("flags", "message"), CHANGES_THE_OBJECTIVE + BAD_VALUES)
def test_what_cannot_be_honoured_is_refused(checkpoint: Path, flags: str, message: str) -> None:
    assert refusal([*required(checkpoint), *flags.split()]).startswith(message)


@pytest.mark.parametrize(
    ("flags", "field", "value"),
    [
        ("--recompute-granularity full", "gradient_checkpointing", True),
        ("--recompute-granularity=selective", "gradient_checkpointing", True),
        ("--recompute-activations", "gradient_checkpointing", True),
        ("--recompute-granularity full --gradient-checkpointing", "gradient_checkpointing", True),
        ("--recompute-method uniform --recompute-num-layers 1", "gradient_checkpointing", False),
        ("--optimizer-cpu-offload", "fsdp_cpu_offload", True),
        ("--lr-warmup-fraction 0.5", "lr_warmup_iters", 1.5),
        ("--lr-warmup-fraction 0.5 --lr-decay-iters 10", "lr_warmup_iters", 5),
        ("--warmup-ratio 0.5", "lr_warmup_iters", 1.5),
    ],
)
def test_a_translated_flag_is_the_flag_that_it_is_said_to_be(checkpoint: Path, flags: str, field: str, value: object) -> None:
    config = parse(checkpoint, *flags.split())
    assert getattr(config.actor, field) == getattr(config.critic, field) == value


def test_values_end_at_the_next_flag(checkpoint: Path) -> None:
    config = parse(
        checkpoint,
        *["--spec", "some.module", "get_spec", "--lr", "1e-3", "--moe-aux-loss-coeff", "0", "0.0", "--cp-comm-type", "p2p"],
    )
    assert config.actor.lr == 1e-3
    assert [given for given, _ in config.script.set_aside] == [
        "--spec some.module get_spec",
        "--moe-aux-loss-coeff 0 0.0",
        "--cp-comm-type p2p",
    ]


def test_harmless_values_are_set_aside_however_they_are_spelled(checkpoint: Path) -> None:
    flags = "--finetune --hidden-dropout 0.0 --attention-backend auto --tensor_model_parallel_size=2"
    assert len(parse(checkpoint, *flags.split()).script.set_aside) == 4


def test_script_flags_may_stand_in_the_yaml_file(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("tensor_model_parallel_size: 4\nrecompute_granularity: full\nsequence-parallel: true\n")
    config = parse(checkpoint, "--config", str(tmp_path / "run.yaml"), "--tensor-model-parallel-size", "2")
    assert config.actor.gradient_checkpointing
    assert config.script.set_aside[-1][0] == "--tensor-model-parallel-size 2"


def test_every_flag_stands_in_one_row() -> None:
    singles = sum(isinstance(row, Translated | Share) for row in ROWS)
    named = [name for row in ROWS if not isinstance(row, Translated | Share) for name in row.switches.split()]
    named += [name for row in ROWS for name in getattr(row, "valued", "").split() + getattr(row, "lists", "").split()]
    assert len(named) == len(set(named)) == len(FLAGS) - singles

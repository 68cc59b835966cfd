"""What is measured: a model with random weights, and a batch whose lengths are mixed as those of real rollouts are."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from fsdp_backend.batch.columns import Ints, RolloutBatch
from tests.tiny import save_tiny_model

PAD, EOS = 0, 1
"""Token ids that no sample contains, so that TRL can tell padding and endings by them."""


@dataclass(frozen=True)
class Shape:
    """A Qwen3 with tied embeddings."""

    hidden_size: int = 768
    intermediate_size: int = 2048
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    num_key_value_heads: int = 4
    head_dim: int = 64
    vocab_size: int = 32_000


@dataclass(frozen=True)
class Lengths:
    """A log-normal law of token counts, cut off at `longest`."""

    median: int
    spread: float
    """Standard deviation of the logarithm."""
    longest: int

    def draw(self, count: int, order: np.random.Generator) -> Ints:
        """`count` lengths in random order. They are the law's quantiles, so the mix does not hang on the luck of a seed."""
        normal = NormalDist()
        z = np.array([normal.inv_cdf((i + 0.5) / count) for i in range(count)])
        lengths: Ints = np.clip(self.median * np.exp(self.spread * z), 2, self.longest).astype(np.int64)
        return order.permutation(lengths)


@dataclass(frozen=True)
class Setting:
    """All that the benchmarks are told. The defaults are the 100M-class model."""

    checkpoint: str
    """Folder of the model, written by `save_model`."""
    threads: int
    """CPU threads of everything that runs in one process; ranks of a world have one each."""
    shape: Shape = Shape()
    samples: int = 16
    prompts: Lengths = Lengths(median=64, spread=0.5, longest=512)
    responses: Lengths = Lengths(median=120, spread=0.8, longest=1024)
    tokens_per_micro_batch: int = 2048
    trl_micro_batches: tuple[int, ...] = (1, 2, 4)
    """`per_device_train_batch_size` to try; TRL's fastest counts. It takes 7 GiB with 2, 12 with 4; 8 would take some 21."""
    gemm_sizes: tuple[int, ...] = (1024, 2048, 4096)
    head_sizes: dict[str, Any] = field(default_factory=dict)
    """In place of the constants of these names in `head`."""
    small_shape: Shape = Shape(256, 768, 6, 4, 2, 64, 8_000)
    """For benchmarks of a whole run."""
    generation_seconds: float = 6.0
    """How long generation takes there."""
    rounds: int = 3
    seed: int = 0

    def small(self, checkpoint: str) -> "Setting":
        """The same with the small model, in another folder."""
        return replace(self, checkpoint=checkpoint, shape=self.small_shape)


def quick(checkpoint: str, threads: int) -> Setting:
    """A setting that shows that everything runs, and measures nothing worth knowing."""
    return Setting(
        checkpoint,
        threads,
        shape=Shape(32, 64, 2, 4, 2, 8, 64),
        samples=4,
        prompts=Lengths(median=4, spread=0.5, longest=8),
        responses=Lengths(median=6, spread=0.8, longest=16),
        tokens_per_micro_batch=32,
        trl_micro_batches=(2,),
        gemm_sizes=(64,),
        small_shape=Shape(32, 64, 2, 4, 2, 8, 128),
        generation_seconds=0.1,
        head_sizes={"VOCABULARY": 64, "WIDTH": 8, "TIMED_TOKENS": 16, "FULL_TOKENS": 32, "ROUNDS": 1},
        rounds=1,
    )


def save_model(setting: Setting) -> None:
    """Write the setting's model, with random weights, into its folder."""
    shape: dict[str, Any] = dict(vars(setting.shape))
    save_tiny_model(
        Path(setting.checkpoint),
        seed=setting.seed,
        initializer_range=0.02,
        max_position_embeddings=setting.prompts.longest + setting.responses.longest,
        **shape,
    )


def make_batch(setting: Setting, samples: int | None = None) -> RolloutBatch:
    """Random tokens in prompts and responses of mixed lengths; all response tokens are trained on."""
    count = setting.samples if samples is None else samples
    draw = np.random.default_rng(setting.seed)
    prompts, responses = setting.prompts.draw(count, draw), setting.responses.draw(count, draw)
    sizes = (prompts + responses).tolist()
    tokens = [draw.integers(EOS + 1, setting.shape.vocab_size, size=size).tolist() for size in sizes]
    lengths = responses.tolist()
    return RolloutBatch.from_samples(tokens, lengths, [[1] * n for n in lengths], draw.normal(size=count).tolist())


def repeated(batch: RolloutBatch, times: int) -> RolloutBatch:
    """The batch's samples `times` over: exactly `times` the work."""
    tokens = [batch.tokens[a:b].tolist() for a, b in zip(batch.token_offsets[:-1], batch.token_offsets[1:], strict=True)]
    lengths = batch.response_lengths.tolist()
    return RolloutBatch.from_samples(
        tokens * times, lengths * times, [[1] * n for n in lengths] * times, batch.reward.tolist() * times
    )

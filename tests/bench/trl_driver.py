"""TRL's own PPOTrainer, given the responses, with its training part timed.

Its `train()` runs as it is. Three things around it are exchanged while it runs:

- `batch_generation` returns the batch's responses, right-padded to the longest as TRL pads them, and logits of zero (log-probs
  taken from them are about those of a model with random weights). When it returns, the clock starts.
- `get_reward` returns the batch's rewards where TRL asks its reward model. Where it asks its value model, TRL's own runs.
- `log`, which TRL calls with its metrics once the optimizer step and the metrics are done, stops the clock.

So timed are: log-probs from the logits, the reference model's log-probs, values, rewards and advantages, the forward and
backward passes over policy and value model, the optimizer step, TRL's metrics.

The batch is the whole data set, and where the data ends Accelerate would have TRL step at every micro-batch. That is turned
off, and the one optimizer step is asserted.
"""

import gc
import io
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any
from unittest.mock import patch

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedTokenizerFast
from trl.experimental.ppo import PPOConfig, PPOTrainer, ppo_trainer

from fsdp_backend import device
from fsdp_backend.batch.columns import RolloutBatch
from tests.bench.setting import EOS, PAD, Setting


class TRL:
    """A trainer over the setting's model with one optimizer step a batch, in float32 and without recomputation."""

    def __init__(self, setting: Setting, batch: RolloutBatch, micro_batch: int, folder: str) -> None:
        self.prompts, responses = _samples(batch)
        self.vocabulary = setting.shape.vocab_size
        self.response_of = {tuple(p): r for p, r in zip(self.prompts, responses, strict=True)}
        self.reward_of = {tuple(p): float(r) for p, r in zip(self.prompts, batch.reward, strict=True)}
        self.longest = max(map(len, responses))
        self.mean_reward = float(batch.reward.mean())
        self.started = self.finished = 0.0
        self.steps = 0
        self.metrics: dict[str, float] = {}
        self.rewarder = nn.Module()
        self.trainer = PPOTrainer(
            args=_config(len(batch), micro_batch, self.longest, folder),
            processing_class=_tokenizer(),
            model=_load(AutoModelForCausalLM, setting),
            ref_model=_load(AutoModelForCausalLM, setting),
            reward_model=self.rewarder,
            value_model=_load(AutoModelForSequenceClassification, setting, num_labels=1),
            train_dataset=Dataset.from_dict({"input_ids": self.prompts}),
        )
        self.trainer.log = self._log
        self.trainer.accelerator.gradient_state.plugin_kwargs["sync_with_dataloader"] = False
        self.trainer.optimizer.optimizer.register_step_post_hook(self._count_step)
        self.get_reward = ppo_trainer.get_reward

    def update_seconds(self) -> float:
        """Train on the batch once; the seconds of the training part."""
        self.steps = 0
        with (
            patch.object(ppo_trainer, "batch_generation", self._batch_generation),
            patch.object(ppo_trainer, "get_reward", self._get_reward),
            redirect_stdout(io.StringIO()),
        ):
            self.trainer.train()
        assert self.steps == 1, f"TRL took {self.steps} optimizer steps"
        assert abs(self.metrics["objective/scores"] - self.mean_reward) < 1e-4, "TRL trained on other rewards than the batch's"
        return self.finished - self.started

    def _batch_generation(self, model: Any, queries: Tensor, *unused: Any) -> tuple[Tensor, Tensor]:
        responses = torch.full((len(queries), self.longest), PAD, dtype=queries.dtype)
        for row, prompt in zip(responses, _without_padding(queries), strict=True):
            response = torch.tensor(self.response_of[prompt])
            row[: len(response)] = response
        logits = torch.zeros(1, 1, 1, device=queries.device).expand(*responses.shape, self.vocabulary)
        self.started = time.perf_counter()
        return torch.cat([queries, responses.to(queries.device)], dim=1), logits

    def _get_reward(
        self, model: nn.Module, rows: Tensor, pad: int, context: int
    ) -> tuple[Tensor | None, Tensor, Tensor | None]:
        if model is not self.rewarder:
            return self.get_reward(model, rows, pad, context)  # type: ignore[no-any-return]
        rewards = [self.reward_of[prompt] for prompt in _without_padding(rows[:, :context])]
        return None, torch.tensor(rewards, device=rows.device), None

    def _log(self, metrics: dict[str, float], *unused: Any) -> None:
        self.finished = time.perf_counter()
        self.metrics = metrics

    def _count_step(self, *unused: Any) -> None:
        self.steps += 1


@contextmanager
def opened(setting: Setting, batch: RolloutBatch, micro_batch: int) -> Iterator[TRL]:
    """A trainer whose memory is given back at the end."""
    with tempfile.TemporaryDirectory() as folder:
        with warnings.catch_warnings():
            # Of transformers, for what TRL calls.
            warnings.simplefilter("ignore", FutureWarning)
            trl = TRL(setting, batch, micro_batch, folder)
        yield trl
        del trl
    gc.collect()


def _config(samples: int, micro_batch: int, response_length: int, folder: str) -> Any:
    """TRL's defaults, but for what would make it slower or different: recomputation, bf16, four epochs, a decaying rate."""
    return PPOConfig(
        output_dir=folder,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=samples // micro_batch,
        num_mini_batches=1,
        num_ppo_epochs=1,
        total_episodes=samples,
        local_rollout_forward_batch_size=micro_batch,
        response_length=response_length,
        temperature=1.0,
        learning_rate=1e-6,
        lr_scheduler_type="constant",
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=device.accelerator_count() == 0,
        num_sample_generations=0,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def _load(auto: Any, setting: Setting, **config: Any) -> Any:
    model = auto.from_pretrained(setting.checkpoint, dtype=torch.float32, **config)
    model.config.pad_token_id = PAD
    return model


def _tokenizer() -> PreTrainedTokenizerFast:
    """Good for padding prompts on the left."""
    words = Tokenizer(WordLevel({"<pad>": PAD, "<eos>": EOS}, unk_token="<eos>"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", padding_side="left")


def _samples(batch: RolloutBatch) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts and responses."""
    prompts, responses = [], []
    for start, end, prompt in zip(batch.token_offsets[:-1], batch.token_offsets[1:], batch.prompt_lengths, strict=True):
        prompts.append(batch.tokens[start : start + prompt].tolist())
        responses.append(batch.tokens[start + prompt : end].tolist())
    return prompts, responses


def _without_padding(rows: Tensor) -> list[tuple[int, ...]]:
    return [tuple(token for token in row if token != PAD) for row in rows.tolist()]

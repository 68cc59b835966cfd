"""What the train loop asks of the rollout side: a batch, or an evaluation."""

from typing import Any

import numpy as np
from transformers import AutoConfig, AutoTokenizer

from fsdp_backend.batch.columns import RolloutBatch
from slime.arguments.errors import UserError
from slime.arguments.run_config import RunConfig
from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput
from slime.rollout.data_source import RolloutDataSource
from slime.rollout.to_batch import rollout_metrics, to_batch
from slime.utils.data import Dataset
from slime.utils.misc import load_function


class RolloutManager:
    """Owns tokenizer, data and plug-ins. Building it reads and checks all of them, before any process starts."""

    def __init__(self, config: RunConfig) -> None:
        """Raises UserError for data or plug-ins that can't be used."""
        self.args = config.namespace()
        folder = config.actor.hf_checkpoint
        try:
            self.args.tokenizer = AutoTokenizer.from_pretrained(folder)
        except (OSError, ValueError) as error:
            raise UserError(
                f"--hf-checkpoint {folder} has no usable tokenizer: {' '.join(str(error).split())[:200]}"
            ) from error
        default = "sft_rollout" if config.ppo.loss_type == "sft_loss" else "sglang_rollout"
        path = config.rollout.rollout_function_path or f"slime.rollout.{default}.generate_rollout"
        self.rollout_function = _load("--rollout-function-path", path)
        for flag in ("custom_generate_function_path", "custom_rm_path"):
            if getattr(self.args, flag) is not None:
                _load(f"--{flag.replace('_', '-')}", getattr(self.args, flag))
        self.args.rollout_max_prompt_len = _prompt_limit(config)
        try:
            self.data_source = RolloutDataSource(self.args)
        except ValueError as error:
            raise UserError(f"--prompt-data {error}") from error
        self.args.eval_datasets = _eval_datasets(self.args)

    def connect(self, host: str, port: int) -> None:
        """Where the rollout engines listen from now on."""
        self.args.sglang_router_ip, self.args.sglang_router_port = host, port

    def generate(self, rollout_id: int) -> tuple[RolloutBatch, dict[str, float]]:
        """The batch of one rollout, and its metrics."""
        output = self.rollout_function(self.args, rollout_id, self.data_source, evaluation=False)
        groups = output.samples if isinstance(output, RolloutFnTrainOutput) else output
        batch = to_batch(self.args, [sample for group in groups for sample in group])
        return batch, rollout_metrics(batch, rewarded=self.args.loss_type != "sft_loss")

    def evaluate(self, rollout_id: int) -> dict[str, float]:
        """Metrics of every evaluation data set."""
        output = self.rollout_function(self.args, rollout_id, self.data_source, evaluation=True)
        data = output.data if isinstance(output, RolloutFnEvalOutput) else output
        metrics = {}
        for name, result in data.items():
            metrics[f"eval/{name}/reward"] = float(np.mean(result["rewards"]))
            metrics[f"eval/{name}/truncated"] = float(np.mean(result["truncated"]))
            lengths = [sample.response_length for sample in result["samples"]]
            metrics[f"eval/{name}/response_length"] = float(np.mean(lengths))
        return metrics


def _load(flag: str, path: str) -> Any:
    try:
        function = load_function(path)
    except Exception as error:  # importing a plug-in can raise anything
        raise UserError(f"{flag} {path} can't be imported: {error!r}") from error
    if not callable(function):
        raise UserError(f"{flag} {path} is no function")
    return function


def _prompt_limit(config: RunConfig) -> int | None:
    """--rollout-max-prompt-len, or what the model's context leaves beside the longest response."""
    context = getattr(AutoConfig.from_pretrained(config.actor.hf_checkpoint), "max_position_embeddings", None)
    given = config.rollout.rollout_max_prompt_len
    if context is None or given is not None:
        return given if context is None else min(given, context - 1)
    if config.ppo.loss_type == "sft_loss":
        return int(context)
    response = max(config.rollout.rollout_max_response_len, config.eval.eval_max_response_len or 0)
    if response >= context:
        raise UserError(
            f"a response of {response} tokens (--rollout-max-response-len, --eval-max-response-len) leaves no room in a "
            f"context of {context}"
        )
    return int(context) - response


def _eval_datasets(args: Any) -> dict[str, Dataset]:
    words = args.eval_prompt_data or ()
    datasets = {}
    for name, path in zip(words[::2], words[1::2], strict=True):
        try:
            datasets[name] = Dataset(
                path,
                args.tokenizer,
                args.rollout_max_prompt_len,
                prompt_key=args.eval_input_key or args.input_key,
                label_key=args.eval_label_key or args.label_key,
                metadata_key=args.metadata_key,
                apply_chat_template=args.apply_chat_template,
            )
        except ValueError as error:
            raise UserError(f"--eval-prompt-data {name} {error}") from error
    return datasets

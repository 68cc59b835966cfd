"""What the train loop asks of the rollout side: a batch, or an evaluation."""

from typing import Any

import numpy as np
from transformers import AutoConfig, AutoTokenizer

from fsdp_backend.batch.columns import RolloutBatch
from slime.arguments.errors import UserError
from slime.arguments.run_config import RunConfig
from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput
from slime.rollout.data_source import RolloutDataSource
from slime.rollout.replay import load_samples, require_samples, save_samples
from slime.rollout.rm_hub.dispatch import require_reward_type
from slime.rollout.to_batch import rollout_metrics, to_batch
from slime.utils.data import Dataset
from slime.utils.misc import load_function
from slime.utils.types import Sample

_DEFAULT, _SUPERVISED = "slime.rollout.sglang_rollout", "slime.rollout.sft_rollout"


class RolloutManager:
    """Owns tokenizer, data and plug-ins. Building it reads and checks all of them, before any process starts."""

    def __init__(self, config: RunConfig) -> None:
        """Raises UserError for data or plug-ins that can't be used."""
        self.args = config.namespace()
        self.args.tokenizer = _load_tokenizer("--hf-checkpoint", config.actor.hf_checkpoint)
        if config.ppo.uses_critic:
            _require_same_tokenizer(config, self.args.tokenizer)
        default = _SUPERVISED if config.ppo.loss_type == "sft_loss" else _DEFAULT
        path = config.rollout.rollout_function_path or f"{default}.generate_rollout"
        self.rollout_function = _load("--rollout-function-path", path)
        for flag in ("custom_generate_function_path", "custom_rm_path", "custom_tis_function_path"):
            if getattr(self.args, flag) is not None:
                _load(f"--{flag.replace('_', '-')}", getattr(self.args, flag))
        self.args.rollout_max_prompt_len = _prompt_limit(config)
        self.args.eval_datasets = _eval_datasets(self.args)
        replayed = self.args.load_debug_rollout_data
        if replayed is not None:
            require_samples(replayed, self.args.num_rollout)
        self.data_source = _data_source(self.args) if replayed is None else None
        if path == f"{_DEFAULT}.generate_rollout" and self.args.custom_generate_function_path is None:
            if self.data_source is not None:
                _require_usable(self.args, f"--prompt-data {self.args.prompt_data}", self.data_source.dataset)
            for name, dataset in self.args.eval_datasets.items():
                _require_usable(self.args, f"--eval-prompt-data {name}", dataset)

    def state_dict(self) -> dict[str, int]:
        """Where the data source stands; empty where rollouts are read from disk."""
        return {} if self.data_source is None else self.data_source.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Let the data source go on from there."""
        if self.data_source is not None and state:
            try:
                self.data_source.load_state_dict(state)
            except ValueError as error:
                raise UserError(f"--prompt-data {self.args.prompt_data} {error}") from error

    def longest_prompt(self) -> int:
        """Tokens of the longest prompt in the data; the limit where prompts are not text yet."""
        if self.data_source is None:
            return max(len(s.tokens) - s.response_length for s in load_samples(self.args.load_debug_rollout_data, 0))
        prompts = [sample.prompt for sample in self.data_source.dataset.origin_samples]
        if not all(isinstance(prompt, str) for prompt in prompts):
            return int(self.args.rollout_max_prompt_len)
        return max(len(ids) for ids in self.args.tokenizer(prompts, add_special_tokens=False)["input_ids"])

    def connect(self, host: str, port: int) -> None:
        """Where the rollout engines listen from now on."""
        self.args.sglang_router_ip, self.args.sglang_router_port = host, port

    def generate(self, rollout_id: int) -> tuple[RolloutBatch, dict[str, float]]:
        """The batch of one rollout, and its metrics."""
        samples = self._samples(rollout_id)
        batch = to_batch(self.args, samples)
        supervised = self.args.loss_type == "sft_loss"
        return batch, rollout_metrics(batch, [] if supervised else [sample.get_reward_value(self.args) for sample in samples])

    def _samples(self, rollout_id: int) -> list[Sample]:
        """Read from disk, or generated; and written to disk where that is asked for."""
        if self.args.load_debug_rollout_data is not None:
            return load_samples(self.args.load_debug_rollout_data, rollout_id)
        output = self.rollout_function(self.args, rollout_id, self.data_source, evaluation=False)
        groups = output.samples if isinstance(output, RolloutFnTrainOutput) else output
        samples = [sample for group in groups for sample in group]
        if self.args.save_debug_rollout_data is not None:
            save_samples(self.args.save_debug_rollout_data, rollout_id, samples)
        return samples

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


def _data_source(args: Any) -> RolloutDataSource:
    try:
        return RolloutDataSource(args)
    except ValueError as error:
        raise UserError(f"--prompt-data {error}") from error


def _require_same_tokenizer(config: RunConfig, tokenizer: Any) -> None:
    """Raises UserError unless the critic reads token ids as the policy does: it sees ids, not text."""
    folder = config.critic.hf_checkpoint
    flag = "--critic-load" if config.run.critic_start else "--critic-hf-checkpoint"
    if folder == config.actor.hf_checkpoint:
        return
    theirs, ours = _load_tokenizer(flag, folder).get_vocab(), tokenizer.get_vocab()
    if theirs != ours:
        differing = min(theirs.items() ^ ours.items(), key=lambda item: item[1])[0]
        raise UserError(
            f"{flag} {folder} has another tokenizer than --hf-checkpoint {config.actor.hf_checkpoint} (first difference: token "
            f"{differing!r}): a critic must read the same token ids"
        )


def _load_tokenizer(flag: str, folder: str) -> Any:
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        # Where the folder holds no tokenizer, some model types give an empty one without complaint.
        if not tokenizer.encode("a", add_special_tokens=False):
            raise ValueError("it turns text into no tokens")
    except (OSError, ValueError) as error:
        raise UserError(f"{flag} {folder} has no usable tokenizer: {' '.join(str(error).split())[:200]}") from error
    return tokenizer


def _load(flag: str, path: str) -> Any:
    try:
        function = load_function(path)
    except Exception as error:  # importing a plug-in can raise anything
        raise UserError(f"{flag} {path} can't be imported: {error!r}") from error
    if not callable(function):
        raise UserError(f"{flag} {path} is no function")
    return function


def _require_usable(args: Any, source: str, dataset: Dataset) -> None:
    """Raises UserError for a row that the default rollout can't generate for or reward.

    The engine takes text; what to do with messages only a chat template or a plug-in knows.
    """
    for number, sample in enumerate(dataset.origin_samples):
        where = f"{source}, row {number}"
        if not isinstance(sample.prompt, str):
            raise UserError(f"{where}: the prompt is a list of messages: add --apply-chat-template")
        if args.custom_rm_path is None:
            require_reward_type(args, sample, where)


def _prompt_limit(config: RunConfig) -> int | None:
    """--rollout-max-prompt-len, or what the context, of the model or of its critic, leaves beside the longest response."""
    folders = {config.actor.hf_checkpoint}
    if config.ppo.uses_critic:
        folders.add(config.critic.hf_checkpoint)
    contexts = [getattr(AutoConfig.from_pretrained(folder), "max_position_embeddings", None) for folder in folders]
    context = min((each for each in contexts if each is not None), default=None)
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
    words = args.eval_prompt_data if args.eval_prompt_data and args.eval_interval is not None else ()
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

"""An evaluation: every prompt of every evaluation data set is answered and rewarded."""

import copy
from types import SimpleNamespace
from typing import Any

import yaml

from slime.arguments.errors import UserError
from slime.rollout.base_types import RolloutFnEvalOutput
from slime.rollout.generate import gather, generate_and_rm_group, mixed_seed
from slime.rollout.plug_in import flattened
from slime.utils.data import Dataset
from slime.utils.eval_config import EvalDatasetConfig, build_eval_dataset_configs, ensure_dataset_list
from slime.utils.types import Sample


def eval_dataset_configs(args: Any) -> list[EvalDatasetConfig]:
    """The data sets of --eval-config or --eval-prompt-data. Raises UserError, naming flag and key, for what is wrong there."""
    if args.eval_interval is None:
        return []
    words = args.eval_prompt_data or ()
    pairs = [{"name": name, "path": path} for name, path in zip(words[::2], words[1::2], strict=True)]
    flag = "--eval-prompt-data" if args.eval_config is None else f"--eval-config {args.eval_config}:"
    try:
        raw, defaults = (pairs, {}) if args.eval_config is None else _read(args.eval_config)
        return build_eval_dataset_configs(args, raw, defaults)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{flag} {' '.join(str(error).split())}") from error


def _read(file: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    with open(file) as stream:
        content = yaml.safe_load(stream)
    section = content.get("eval") if isinstance(content, dict) and set(content) == {"eval"} else None
    if not isinstance(section, dict) or set(section) - {"defaults", "datasets"} or not section.get("datasets"):
        raise ValueError("expected `eval:` with `datasets:` and, if need be, `defaults:`")
    defaults = section.get("defaults") or {}
    if not isinstance(defaults, dict):
        raise ValueError("defaults must be a mapping")
    return ensure_dataset_list(section["datasets"]), defaults


def read_eval_prompts(args: Any, config: EvalDatasetConfig) -> Dataset:
    """The prompts of a data set. Raises UserError, naming the data set, for what can't be used."""
    try:
        return Dataset(
            config.path,
            args.tokenizer,
            args.eval_max_prompt_len or args.rollout_max_prompt_len,
            prompt_key=config.input_key or "input",
            label_key=config.label_key,
            metadata_key=config.metadata_key or "metadata",
            apply_chat_template=bool(config.apply_chat_template),
        )
    except ValueError as error:
        flag = "--eval-prompt-data" if args.eval_config is None else f"--eval-config {args.eval_config}:"
        raise UserError(f"{flag} {config.name} {error}") from error


async def eval_rollout(args: Any, rollout_id: int) -> RolloutFnEvalOutput:
    """Rewards, truncated and samples of every data set in args.eval_datasets, whose prompts are in args.eval_prompts."""
    own = {
        "reward_key": args.eval_reward_key or args.reward_key,
        "rollout_max_context_len": args.eval_max_context_len or args.rollout_max_context_len,
    }
    args = SimpleNamespace(**{**vars(args), **own})
    data = {}
    for number, config in enumerate(args.eval_datasets):
        data[config.name] = await eval_rollout_single_dataset(args, number, config)
    return RolloutFnEvalOutput(data)


async def eval_rollout_single_dataset(args: Any, number: int, config: EvalDatasetConfig) -> dict[str, Any]:
    """Every prompt in order, n_samples_per_eval_prompt responses to each. The data set's number seeds its sampling."""
    params = {**config.sampling_params(), "sampling_seed": mixed_seed(args.rollout_seed, 1 + number)}
    n = config.n_samples_per_eval_prompt or 1
    prompts = args.eval_prompts[config.name].samples
    groups = [[eval_sample(prompt, group, group * n + i, config) for i in range(n)] for group, prompt in enumerate(prompts)]
    done = flattened(await gather([generate_and_rm_group(args, group, params, evaluation=True) for group in groups]))
    return {
        "rewards": [sample.get_reward_value(args) for sample in done],
        "truncated": [sample.status == Sample.Status.TRUNCATED for sample in done],
        "samples": done,
    }


def eval_sample(prompt: Sample, group: int, index: int, config: EvalDatasetConfig) -> Sample:
    """A fresh copy of the prompt, with its number and what the data set says of its generation and reward."""
    sample = copy.deepcopy(prompt)
    sample.group_index, sample.index = group, index
    sample.metadata = config.inject_metadata(sample.metadata)
    sample.custom_rm_path = config.custom_rm_path
    sample.generate_function_path = config.custom_generate_function_path
    return sample

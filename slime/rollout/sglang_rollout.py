"""The default rollout: every sample is one HTTP request in SGLang's protocol, and all of them are in flight together.

Whatever engine listens at args.sglang_router_ip:sglang_router_port answers.
"""

import asyncio
import copy
from typing import Any

from slime.arguments.errors import UserError
from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput
from slime.rollout.rm_hub.dispatch import async_rm
from slime.utils.data import Dataset
from slime.utils.http_utils import post, shared_connections
from slime.utils.misc import load_function
from slime.utils.types import Sample


class GenerateState:
    """What the requests of one rollout share."""

    def __init__(self, args: Any) -> None:
        self.args = args
        self.tokenizer = args.tokenizer
        self.semaphore = asyncio.Semaphore(args.sglang_server_concurrency)
        self.sampling_params: dict[str, Any] = {
            "temperature": args.rollout_temperature,
            "max_new_tokens": args.rollout_max_response_len,
            "stop": list(args.rollout_stop or ()),
            "stop_token_ids": list(args.rollout_stop_token_ids or ()),
            "skip_special_tokens": True,
        }


async def generate(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """Ask the engine for one response; fills in tokens, response, log-probs, weight version and status."""
    if not sample.tokens:
        sample.tokens = args.tokenizer.encode(sample.prompt, add_special_tokens=False)
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    answer = await post(url, {"input_ids": sample.tokens, "sampling_params": sampling_params, "return_logprob": True})
    meta = answer["meta_info"]
    log_probs = [entry[0] for entry in meta["output_token_logprobs"]]
    new_tokens = [entry[1] for entry in meta["output_token_logprobs"]]
    sample.tokens = sample.tokens + new_tokens
    sample.response_length += len(new_tokens)
    sample.response += answer["text"]
    sample.rollout_log_probs = (sample.rollout_log_probs or []) + log_probs
    sample.weight_versions.append(str(meta["weight_version"]))
    finish = {"stop": Sample.Status.COMPLETED, "length": Sample.Status.TRUNCATED, "abort": Sample.Status.ABORTED}
    sample.status = finish[meta["finish_reason"]["type"]]
    return sample


async def generate_and_rm(state: GenerateState, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """One response and its reward. Sampling is seeded by the sample, so a run does not depend on the order of arrival."""
    args = state.args
    function = load_function(args.custom_generate_function_path) if args.custom_generate_function_path else generate
    async with state.semaphore:
        done = await function(args, sample, sampling_params)
    if not isinstance(done, Sample):
        raise UserError(f"--custom-generate-function-path returned {done!r} for sample {sample.index}, which is no Sample")
    # An environment may have given the reward already.
    if done.reward is None:
        done.reward = await async_rm(args, done)
    return done


def _seeded(sampling_params: dict[str, Any], *key: int) -> dict[str, Any]:
    """Sampling parameters with a seed of this sample's own. The mixing is the 64-bit FNV-1a hash."""
    seed = 0xCBF29CE484222325
    for part in key:
        seed = ((seed ^ part) * 0x100000001B3) % 2**64
    return {**sampling_params, "sampling_seed": seed % 2**31}


async def _train_rollout(args: Any, data_source: Any) -> RolloutFnTrainOutput:
    state = GenerateState(args)
    groups = data_source.get_samples(args.rollout_batch_size)

    async def run(sample: Sample) -> Sample:
        return await generate_and_rm(state, sample, _seeded(state.sampling_params, args.rollout_seed, 0, sample.index or 0))

    done = await _gather([run(sample) for group in groups for sample in group])
    size = args.n_samples_per_prompt
    return RolloutFnTrainOutput([done[start : start + size] for start in range(0, len(done), size)])


async def _gather(coroutines: list[Any]) -> list[Any]:
    """All results in order; the first error cancels the rest."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(c) for c in coroutines]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def _eval_rollout(args: Any, rollout_id: int) -> RolloutFnEvalOutput:
    data = {}
    for number, (name, dataset) in enumerate(args.eval_datasets.items()):
        data[name] = await _eval_dataset(args, rollout_id, number, dataset)
    return RolloutFnEvalOutput(data)


async def _eval_dataset(args: Any, rollout_id: int, number: int, dataset: Dataset) -> dict[str, Any]:
    state = GenerateState(args)
    params = state.sampling_params | {
        "temperature": args.rollout_temperature if args.eval_temperature is None else args.eval_temperature,
        "max_new_tokens": args.eval_max_response_len or args.rollout_max_response_len,
    }

    async def run(sample: Sample) -> Sample:
        return await generate_and_rm(state, sample, _seeded(params, args.rollout_seed, 1 + number, sample.index or 0))

    samples: list[Sample] = []
    for prompt in dataset.samples:
        for _ in range(args.n_samples_per_eval_prompt):
            sample = copy.deepcopy(prompt)
            sample.index = len(samples)
            samples.append(sample)
    done = await _gather([run(sample) for sample in samples])
    return {
        "rewards": [sample.get_reward_value(args) for sample in done],
        "truncated": [sample.status == Sample.Status.TRUNCATED for sample in done],
        "samples": done,
    }


def generate_rollout(
    args: Any, rollout_id: int, data_source: Any, evaluation: bool = False
) -> RolloutFnTrainOutput | RolloutFnEvalOutput:
    """slime's rollout function: groups of rewarded samples, or with `evaluation` the results of every evaluation data set."""

    async def work() -> RolloutFnTrainOutput | RolloutFnEvalOutput:
        async with shared_connections():
            return await (_eval_rollout(args, rollout_id) if evaluation else _train_rollout(args, data_source))

    return asyncio.run(work())

"""One response and its reward: a request in SGLang's protocol, or --custom-generate-function-path.

Whatever engine listens at args.sglang_router_ip:sglang_router_port answers.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

from slime.arguments.errors import UserError
from slime.rollout.plug_in import PlugIn, describe, flattened, load_plug_in, plug_in
from slime.rollout.rm_hub.dispatch import async_rm, batched_async_rm
from slime.utils.http_utils import post
from slime.utils.types import Sample

_FINISHED = (Sample.Status.COMPLETED, Sample.Status.TRUNCATED)
_current: ContextVar["GenerateState | None"] = ContextVar("generate_state", default=None)


class _SharedByARollout(type):
    """Plug-ins ask for GenerateState(args) wherever they need it: within one rollout that is one object."""

    def __call__(cls, args: Any) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return super().__call__(args)
        if _current.get() is None:
            _current.set(super().__call__(args))
        return _current.get()


class GenerateState(metaclass=_SharedByARollout):
    """What the requests of one rollout share."""

    def __init__(self, args: Any) -> None:
        self.args = args
        self.tokenizer = args.tokenizer
        self.processor = None
        self.semaphore = asyncio.Semaphore(args.sglang_server_concurrency * max(len(args.rollout_engine_urls), 1))
        self.sampling_params: dict[str, Any] = {
            "temperature": args.rollout_temperature,
            "top_p": args.rollout_top_p,
            "top_k": args.rollout_top_k,
            "max_new_tokens": args.rollout_max_response_len,
            "stop": list(args.rollout_stop or ()),
            "stop_token_ids": list(args.rollout_stop_token_ids or ()),
            "skip_special_tokens": args.rollout_skip_special_tokens,
            "no_stop_trim": True,
            "spaces_between_special_tokens": False,
        }
        self.rollout_id: int | None = None
        self.reset()

    def reset(self) -> None:
        """As at the beginning of a rollout."""
        self.remaining_batch_size = 0
        self.pendings: set[asyncio.Task[list[Any]]] = set()
        self.aborted = False


async def generate(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """Ask the engine to go on with the sample; fills in tokens, response, log-probs, weight version and status.

    max_new_tokens is for the whole response, what it has already and observations included: where nothing is left of it, the
    sample is truncated.
    """
    if not sample.tokens:
        sample.tokens = args.tokenizer.encode(sample.prompt, add_special_tokens=False)
    left = sampling_params["max_new_tokens"] - sample.response_length
    if left <= 0:
        sample.status = Sample.Status.TRUNCATED
        return sample
    params = {**sampling_params, "max_new_tokens": left}
    if "min_new_tokens" in params:
        params["min_new_tokens"] = max(params["min_new_tokens"] - sample.response_length, 0)
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    answer = await post(url, {"input_ids": sample.tokens, "sampling_params": params, "return_logprob": True})
    meta = answer["meta_info"]
    sample.append_response_tokens(
        args,
        tokens=[entry[1] for entry in meta["output_token_logprobs"]],
        log_probs=[entry[0] for entry in meta["output_token_logprobs"]],
        meta_info=meta,
        text=answer["text"],
    )
    return sample


async def generate_and_rm(
    args: Any, sample: Sample | list[Sample], sampling_params: dict[str, Any], evaluation: bool = False
) -> Sample | list[Sample]:
    """One response (or, of a generate function that makes several samples of one, a list) and its reward.

    What is finished already is not generated again; what was aborted goes on from where it stands. Once the rollout is being
    aborted, samples come back unfinished, without a reward.
    """
    if args.partial_rollout and args.mask_offpolicy_in_partial_rollout and not evaluation:
        for each in flattened(sample):  # what it has already is of an earlier rollout, finished or not
            each.loss_mask = [0] * each.response_length if each.response_length else None
    if isinstance(sample, Sample) and sample.status not in _FINISHED:
        state = GenerateState(args)
        async with state.semaphore:
            if state.aborted:
                sample.status = Sample.Status.ABORTED
                return sample
            sample = await _generated(args, sample, _within_context(args, sample, sampling_params), evaluation)
        sample = await _hooked(args, sample, state.rollout_id, evaluation)
    if not args.group_rm:
        members = flattened(sample)
        if all(each.status != Sample.Status.ABORTED for each in members):
            await gather([_reward(args, each) for each in members if each.reward is None])
    return sample


async def generate_and_rm_group(
    args: Any, group: list[Any], sampling_params: dict[str, Any], evaluation: bool = False
) -> list[Any]:
    """The samples of one prompt, and with --group-rm their rewards, given together. Sampling is seeded by the sample, so a
    rollout does not depend on the order of arrival."""
    if GenerateState(args).aborted:
        return group
    seed = sampling_params.get("sampling_seed", args.rollout_seed)
    work = []
    for sample in group:
        own = {**sampling_params, "sampling_seed": mixed_seed(seed, flattened(sample)[0].index or 0)}
        work.append(generate_and_rm(args, sample, own, evaluation=evaluation))
    done = await gather(work)
    members = flattened(done)
    if args.group_rm and all(each.status != Sample.Status.ABORTED for each in members):
        waiting = [each for each in members if each.reward is None]
        rewards = await batched_async_rm(args, waiting) if waiting else []
        for each, reward in zip(waiting, rewards, strict=True):
            each.reward = reward
    return done


async def gather(work: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
    """All results in order; the first error cancels the rest."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in work]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def mixed_seed(*key: int) -> int:
    """A seed of this key's own: the 64-bit FNV-1a hash of its numbers, cut to 31 bits."""
    seed = 0xCBF29CE484222325
    for part in key:
        seed = ((seed ^ part) * 0x100000001B3) % 2**64
    return (seed ^ seed >> 32) % 2**31


async def _generated(args: Any, sample: Sample, params: dict[str, Any], evaluation: bool) -> Sample | list[Sample]:
    """By the sample's own generate function, the run's, or the default one."""
    if sample.generate_function_path is not None:
        own: PlugIn | None = load_plug_in(f"generate_function_path of sample {sample.index}", sample.generate_function_path)
    else:
        own = plug_in(args, "custom_generate_function_path")
    if own is None:
        return await generate(args, sample, params)
    about, index, group_index = describe(sample), sample.index, sample.group_index
    takes = {"evaluation": evaluation} if own.accepts("evaluation") else {}
    answer = await own.wait(args, sample, params, about=about, **takes)
    try:
        members = flattened(answer)
    except TypeError:
        members = []
    if not members:
        raise own.wrong(answer, "a Sample or a list of Samples", about)
    for member in members:
        member.index = index if member.index is None else member.index
        member.group_index = group_index if member.group_index is None else member.group_index
    if isinstance(answer, list):
        _become_one_rollout(own, index, members)
    return answer  # type: ignore[no-any-return]


def _become_one_rollout(own: PlugIn, index: int | None, siblings: list[Sample]) -> None:
    """Samples made of one share a rollout, and so one share of the loss: by the id they were given, or the index of the one."""
    ids = {sample.rollout_id for sample in siblings}
    if len(ids) > 1:
        raise UserError(f"{own} returned rollout_ids {sorted(map(str, ids))} for sample {index}: siblings must share one")
    for sample in siblings:
        sample.rollout_id = index if sample.rollout_id is None else sample.rollout_id


def _within_context(args: Any, sample: Sample, params: dict[str, Any]) -> dict[str, Any]:
    """With max_new_tokens cut to what --rollout-max-context-len leaves beside the prompt. A prompt of messages has no length
    before its generate function renders it."""
    limit = args.rollout_max_context_len
    if limit is None or not (sample.tokens or isinstance(sample.prompt, str)):
        return dict(params)
    tokens = sample.tokens or args.tokenizer.encode(sample.prompt, add_special_tokens=False)
    return {**params, "max_new_tokens": min(params["max_new_tokens"], limit - len(tokens) + sample.response_length)}


async def _hooked(args: Any, samples: Any, rollout_id: int | None, evaluation: bool) -> Any:
    """Every sample through every --rollout-sample-hook-path, in turn; lists keep their shape."""
    if isinstance(samples, list):
        return [await _hooked(args, each, rollout_id, evaluation) for each in samples]
    sample: Sample = samples
    for path in args.rollout_sample_hook_path or ():
        hook, about = load_plug_in("--rollout-sample-hook-path", path), describe(sample)
        takes = {"rollout_id": rollout_id, "evaluation": evaluation}
        takes = {name: value for name, value in takes.items() if hook.accepts(name)}
        answer = await hook.wait(args, sample, about=about, **takes)
        if answer is not None and not isinstance(answer, Sample):
            raise hook.wrong(answer, "a Sample or None", about)
        sample = sample if answer is None else answer
    return sample


async def _reward(args: Any, sample: Sample) -> None:
    """By the sample's own reward function, or the run's."""
    if sample.custom_rm_path is not None:
        args = SimpleNamespace(**{**vars(args), "custom_rm_path": sample.custom_rm_path})
    sample.reward = await async_rm(args, sample)

"""What the train loop asks of the rollout side: a batch, or an evaluation."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fsdp_backend.batch.columns import RolloutBatch
from slime.arguments.errors import UserError
from slime.arguments.run_config import RunConfig
from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput
from slime.rollout.data_source import RolloutDataSource, as_plain, from_plain
from slime.rollout.evaluation import eval_dataset_configs, eval_sample, read_eval_prompts
from slime.rollout.inputs import build_data_source, load_tokenizer, prompt_limit, require_same_tokenizer, require_usable
from slime.rollout.pass_rate import pass_rates
from slime.rollout.plug_in import FUNCTIONS, PlugIn, describe, flattened, groups_from, load_plug_in, plug_in
from slime.rollout.replay import load_samples, require_samples, save_samples
from slime.rollout.reward_shaping import post_processed_rewards
from slime.rollout.stream import Stream
from slime.rollout.to_batch import require_trainable, rollout_metrics, to_batch
from slime.rollout.train_data import batch_from_train_data
from slime.utils.types import Sample

_DEFAULT, _SUPERVISED = "slime.rollout.sglang_rollout", "slime.rollout.sft_rollout"


@dataclass(frozen=True)
class Made:
    """A rollout before it is a batch."""

    samples: list[Sample]
    metrics: dict[str, Any]
    """The rollout function's own."""
    seconds: float
    """What it took."""

    def as_plain(self) -> dict[str, Any]:
        """As JSON values. Raises UserError, naming sample and field, for what JSON can't hold."""
        return {"samples": as_plain(self.samples), "metrics": self.metrics, "seconds": self.seconds}

    @classmethod
    def from_plain(cls, saved: dict[str, Any]) -> "Made":
        """What as_plain gave."""
        return cls(from_plain(saved["samples"]), saved["metrics"], saved["seconds"])

    def versions_behind(self, version: int) -> list[int]:
        """Of each sample whose weights are known, how many versions its oldest token is behind."""
        return [version - min(map(int, sample.weight_versions)) for sample in self.samples if sample.weight_versions]


class RolloutManager:
    """Owns tokenizer, data and plug-ins. Building it reads and checks all of them, before any process starts."""

    def __init__(self, config: RunConfig) -> None:
        """Raises UserError for data or plug-ins that can't be used."""
        self.args = config.namespace()
        self.args.tokenizer = load_tokenizer("--hf-checkpoint", config.actor.hf_checkpoint)
        self.args.rollout_engine_urls = []
        if config.ppo.uses_critic:
            require_same_tokenizer(config, self.args.tokenizer)
        default = _SUPERVISED if config.ppo.loss_type == "sft_loss" else _DEFAULT
        path = config.rollout.rollout_function_path or f"{default}.generate_rollout"
        self.rollout_function = load_plug_in("--rollout-function-path", path)
        self.args.eval_datasets = eval_dataset_configs(self.args)
        self._require_plug_ins()
        self.eval_function = plug_in(self.args, "eval_function_path") or self.rollout_function
        lengths = [each.max_response_len for each in self.args.eval_datasets]
        lengths += [config.rollout.rollout_max_response_len] * config.has_rollouts
        self.args.rollout_max_prompt_len = prompt_limit(config, max(lengths))
        self.args.eval_prompts = {each.name: read_eval_prompts(self.args, each) for each in self.args.eval_datasets}
        replayed = self.args.load_debug_rollout_data
        if replayed is not None:
            require_samples(replayed, self.args.num_rollout)
        self.data_source = build_data_source(self.args) if replayed is None and config.has_rollouts else None
        if path == f"{_DEFAULT}.generate_rollout" and self.args.custom_generate_function_path is None:
            self._require_usable()
        self._generated = -1
        self.stream: Stream | None = None
        if self.args.max_staleness > 1 and replayed is None and config.ppo.generates:
            self.stream = Stream(self.args, self.data_source)

    def _require_plug_ins(self) -> None:
        """Every plug-in can be imported."""
        for name in FUNCTIONS:
            plug_in(self.args, name)
        for path in self.args.rollout_sample_hook_path or ():
            load_plug_in("--rollout-sample-hook-path", path)
        for each in self.args.eval_datasets:
            for name in ("custom_rm_path", "custom_generate_function_path"):
                if getattr(each, name) is not None:
                    load_plug_in(f"--eval-config, data set {each.name}: {name}", getattr(each, name))

    def _require_usable(self) -> None:
        if isinstance(self.data_source, RolloutDataSource):
            require_usable(self.args, f"--prompt-data {self.args.prompt_data}", self.data_source.prompts.rows)
        for each in self.args.eval_datasets:
            if each.custom_generate_function_path is None:
                rows = [eval_sample(row, 0, 0, each) for row in self.args.eval_prompts[each.name].origin_samples]
                require_usable(self.args, f"--eval-prompt-data {each.name}", rows)

    @property
    def _saves_itself(self) -> bool:
        """Whether the data source is one of --data-source-path with a `save` of its own."""
        return getattr(type(self.data_source), "save", None) is not RolloutDataSource.save

    def state_dict(self) -> dict[str, Any]:
        """Where the data source stands; empty where rollouts are read from disk. One with a `save` of its own saves itself."""
        if self.data_source is None:
            return {}
        if self.stream is not None:
            return self.stream.state_dict()
        if not self._saves_itself:
            return self.data_source.state_dict()  # type: ignore[no-any-return]
        self._of_data_source("save")(self._generated)
        return {"saved_after_rollout": self._generated}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the data source go on from there. Raises UserError for other data."""
        if self.data_source is None or not state:
            return
        if self._saves_itself != ("saved_after_rollout" in state):
            raise UserError(f"--data-source-path {self.args.data_source_path}: the checkpoint was written with another")
        if self._saves_itself:
            self._of_data_source("load")(state["saved_after_rollout"])
            return
        try:
            self.data_source.load_state_dict(state)
        except ValueError as error:
            raise UserError(f"--prompt-data {self.args.prompt_data} {error}") from error

    def _of_data_source(self, method: str) -> PlugIn:
        return PlugIn("--data-source-path", f"{self.args.data_source_path}.{method}", getattr(self.data_source, method))

    def longest_prompt(self) -> int:
        """Tokens of the longest prompt in the data; the limit where prompts are not text yet."""
        if self.args.load_debug_rollout_data is not None:
            return max(len(s.tokens) - s.response_length for s in load_samples(self.args.load_debug_rollout_data, 0))
        rows = self.data_source.prompts.rows if isinstance(self.data_source, RolloutDataSource) else []
        prompts = [sample.prompt for sample in rows]
        if not prompts or not all(isinstance(prompt, str) for prompt in prompts):
            return int(self.args.rollout_max_prompt_len)
        return max(len(ids) for ids in self.args.tokenizer(prompts, add_special_tokens=False)["input_ids"])

    def connect(self, host: str, port: int, engine_urls: Sequence[str] = ()) -> None:
        """Where requests go from now on, and the engines behind that address."""
        self.args.sglang_router_ip, self.args.sglang_router_port = host, port
        self.args.rollout_engine_urls = list(engine_urls)

    def make(self, rollout_id: int) -> Made:
        """The samples of one rollout."""
        started = time.perf_counter()
        samples, extra = self._samples(rollout_id)
        self._generated = rollout_id
        return Made(samples, extra, time.perf_counter() - started)

    def batch(self, rollout_id: int, made: Made) -> tuple[RolloutBatch, dict[str, float]]:
        """What is trained on of them, and the rollout's metrics."""
        batch, rewards = self._batch(made.samples)
        batch = batch.with_columns(raw_reward=np.asarray(rewards, dtype=np.float32))
        logger = plug_in(self.args, "custom_rollout_log_function_path")
        if logger is not None and _logged(logger, rollout_id, self.args, made.samples, made.metrics, made.seconds):
            return batch, {}
        supervised = self.args.loss_type == "sft_loss"
        own = _prefixed(self.rollout_function, "rollout/", made.metrics)
        return batch, own | rollout_metrics(batch, [] if supervised else rewards)

    def generate(self, rollout_id: int) -> tuple[RolloutBatch, dict[str, float]]:
        """Both."""
        return self.batch(rollout_id, self.make(rollout_id))

    def _samples(self, rollout_id: int) -> tuple[list[Sample], dict[str, Any]]:
        """Read from disk, or generated, with the rollout function's metrics; and written to disk where that is asked for."""
        if self.args.load_debug_rollout_data is not None:
            return load_samples(self.args.load_debug_rollout_data, rollout_id), {}
        if self.stream is not None:
            output: Any = self.stream.take(rollout_id)
        else:
            about = f"rollout {rollout_id}"
            output = self.rollout_function(self.args, rollout_id, self.data_source, evaluation=False, about=about)
        groups, metrics = (output.samples, output.metrics) if isinstance(output, RolloutFnTrainOutput) else (output, None)
        samples = flattened(groups_from(self.rollout_function, groups))
        if self.args.save_debug_rollout_data is not None:
            save_samples(self.args.save_debug_rollout_data, rollout_id, samples)
        return samples, dict(metrics or {})

    def _batch(self, samples: list[Sample]) -> tuple[RolloutBatch, list[float]]:
        """The batch, and the rewards as the samples got them."""
        convert = plug_in(self.args, "custom_convert_samples_to_train_data_path")
        if convert is not None:
            return batch_from_train_data(convert, convert(self.args, samples, about=describe(samples)))
        require_trainable(self.args, samples)
        raw, rewards = post_processed_rewards(self.args, samples)
        return to_batch(self.args, samples, rewards), raw

    def evaluate(self, rollout_id: int) -> dict[str, float]:
        """Metrics of every evaluation data set."""
        about = f"the evaluation before rollout {rollout_id}"
        output = self.eval_function(self.args, rollout_id, self.data_source, evaluation=True, about=about)
        data, extra = (output.data, output.metrics) if isinstance(output, RolloutFnEvalOutput) else (output, None)
        if not isinstance(data, dict) or not all(isinstance(each, dict) and "rewards" in each for each in data.values()):
            raise self.eval_function.wrong(data, "RolloutFnEvalOutput, or {rewards, truncated, samples} by name", about)
        extra = dict(extra or {})
        logger = plug_in(self.args, "custom_eval_rollout_log_function_path")
        if logger is not None and _logged(logger, rollout_id, self.args, data, extra):
            return {}
        sizes = {each.name: each.n_samples_per_eval_prompt for each in self.args.eval_datasets}
        metrics = _prefixed(self.eval_function, "eval/", extra)
        for name, result in data.items():
            size = sizes.get(name, self.args.n_samples_per_eval_prompt)
            metrics |= {f"eval/{name}/{key}": value for key, value in _eval_metrics(result, size).items()}
        return metrics


def _eval_metrics(result: dict[str, Any], n_samples: int) -> dict[str, float]:
    metrics = {"reward": float(np.mean(result["rewards"]))}
    if "truncated" in result:
        metrics["truncated"] = float(np.mean(result["truncated"]))
    if result.get("samples"):
        metrics["response_length"] = float(np.mean([sample.response_length for sample in flattened(result["samples"])]))
    return metrics | pass_rates(result["rewards"], n_samples)


def _logged(logger: PlugIn, rollout_id: int, *args: Any) -> bool:
    """Whether the plug-in has logged all there is."""
    answer = logger(rollout_id, *args, about=f"rollout {rollout_id}")
    if not isinstance(answer, bool) and answer is not None:
        raise logger.wrong(answer, "a bool")
    return bool(answer)


def _prefixed(source: PlugIn, prefix: str, metrics: dict[str, Any]) -> dict[str, float]:
    """A plug-in's metrics under a prefix that they may have already. Raises UserError for one that is no number."""
    numbers = {}
    for name, value in metrics.items():
        try:
            numbers[name if name.startswith(prefix) else f"{prefix}{name}"] = float(value)
        except (TypeError, ValueError):
            raise UserError(f"{source}: metric {name} is no number: {str(value)[:80]!r}") from None
    return numbers

"""What must hold between flags, one small function a rule. Files are looked at here too, so that no process starts in vain."""

import importlib.util
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from fsdp_backend.config import RoleConfig
from slime.arguments.errors import UserError
from slime.arguments.groups import DataArgs
from slime.arguments.reward_types import IFBENCH_MISSING, NEED_LABEL, OF_SEVERAL_ENTRIES
from slime.arguments.run_config import RunConfig
from slime.arguments.scripts.checkpoints import require_own_state

Rule = Callable[[RunConfig], None]


def check(config: RunConfig, rules: Sequence[Rule]) -> None:
    """Raises UserError at the first rule that does not hold."""
    for rule in rules:
        rule(config)


def _backend(config: RunConfig) -> None:
    if config.run.train_backend == "megatron":
        raise UserError("--train-backend megatron is for the command line of slime train only, which is handed on as it is")


def _positive_counts(config: RunConfig) -> None:
    flags = config.flags()
    for name in (
        "num_rollout",
        "rollout_batch_size",
        "n_samples_per_prompt",
        "rollout_max_response_len",
        "rollout_max_prompt_len",
        "rollout_max_context_len",
        "over_sampling_batch_size",
        "eval_max_response_len",
        "eval_max_prompt_len",
        "eval_max_context_len",
        "n_samples_per_eval_prompt",
        "actor_num_nodes",
        "actor_num_gpus_per_node",
        "critic_num_nodes",
        "critic_num_gpus_per_node",
        "rollout_num_gpus",
        "rollout_num_gpus_per_engine",
        "update_weight_buffer_size",
        "sglang_server_concurrency",
        "save_interval",
        "keep_last",
        "eval_interval",
    ):
        if flags[name] is not None and flags[name] < 1:
            raise UserError(f"--{name.replace('_', '-')} must be at least 1, got {flags[name]}")


def _temperature(config: RunConfig) -> None:
    if not 0 < config.rollout.rollout_temperature < math.inf:
        raise UserError(
            f"--rollout-temperature must be greater than 0, got {config.rollout.rollout_temperature}: "
            "PPO needs sampled responses (greedy is --eval-temperature 0)"
        )
    if config.eval.eval_temperature is not None and not 0 <= config.eval.eval_temperature < math.inf:
        raise UserError(f"--eval-temperature must be at least 0, got {config.eval.eval_temperature}")


def _cut_sampling(config: RunConfig) -> None:
    top_p, top_k = config.rollout.rollout_top_p, config.rollout.rollout_top_k
    if not 0 < top_p <= 1:
        raise UserError(f"--rollout-top-p must lie in (0, 1], got {top_p}")
    if top_k != -1 and top_k < 1:
        raise UserError(f"--rollout-top-k must be -1 (all) or at least 1, got {top_k}")
    if (top_p != 1 or top_k != -1) and config.ppo.generates and not config.rollout.debug_rollout_only:
        raise UserError(
            "--rollout-top-p and --rollout-top-k can't be trained on: log-probs are of the whole distribution, not of the cut "
            "one that was sampled from (for evaluation there are --eval-top-p and --eval-top-k)"
        )


def _over_sampling(config: RunConfig) -> None:
    size = config.rollout.over_sampling_batch_size
    if size is not None and size < config.rollout.rollout_batch_size:
        raise UserError(
            f"--over-sampling-batch-size {size} is less than --rollout-batch-size {config.rollout.rollout_batch_size}: it is "
            "how many prompts to begin with"
        )


def _data_weights(config: RunConfig) -> None:
    weights, paths = config.data.prompt_data_weights, config.data.prompt_data or ()
    if weights is not None and (len(weights) != len(paths) or not all(0 < each < math.inf for each in weights)):
        given = " ".join(map(str, weights))
        raise UserError(f"--prompt-data-weights {given} must be {len(paths)} positive numbers, one for each of --prompt-data")


def _one_node(config: RunConfig) -> None:
    for flag, nodes in (
        ("--actor-num-nodes", config.cluster.actor_num_nodes),
        ("--critic-num-nodes", config.cluster.critic_num_nodes),
    ):
        if (nodes or 1) > 1:
            raise UserError(f"{flag} {nodes}: runs over several nodes are not supported yet, give 1")


def _stop_strings(config: RunConfig) -> None:
    if "" in (config.rollout.rollout_stop or ()):
        raise UserError("--rollout-stop must not be empty: it would end every response at once")


def _batch_sizes_divide(config: RunConfig) -> None:
    samples = config.rollout.rollout_batch_size * config.rollout.n_samples_per_prompt
    rollout = (
        f"the {samples} samples of a rollout (--rollout-batch-size {config.rollout.rollout_batch_size} x "
        f"--n-samples-per-prompt {config.rollout.n_samples_per_prompt})"
    )
    _steps_divide("--", config.actor, samples, rollout)
    if not config.ppo.uses_critic:
        return
    if held_out := config.ppo.held_out(config.rollout.rollout_batch_size) * config.rollout.n_samples_per_prompt:
        whole, samples = samples, samples - held_out
        fraction = config.ppo.critic_holdout_fraction
        rollout = f"the {samples} of {whole} samples that --critic-holdout-fraction {fraction} leaves to train on"
    sizes = [(role.global_batch_size, role.num_steps_per_rollout) for role in (config.actor, config.critic)]
    _steps_divide("--critic-", config.critic, samples, rollout, " (as the actor's)" if sizes[0] == sizes[1] else "")


def _steps_divide(prefix: str, role: RoleConfig, samples: int, rollout: str, note: str = "") -> None:
    if samples < 1:
        raise UserError(f"nothing is left to train the critic on: {rollout}")
    size, steps = role.global_batch_size, role.num_steps_per_rollout
    for flag, number in ((f"{prefix}global-batch-size", size), (f"{prefix}num-steps-per-rollout", steps)):
        if number is not None and samples % number:
            raise UserError(f"{flag} {number}{note} does not divide {rollout}")
    if size is not None and steps is not None and size * steps != samples:
        raise UserError(
            f"{prefix}global-batch-size {size} and {prefix}num-steps-per-rollout {steps} contradict each other: "
            f"{size} x {steps} is {size * steps}, not {rollout}; give one of them"
        )


def _one_reward(config: RunConfig) -> None:
    # Neither may be given where the data says it row by row: the rollout manager looks.
    if config.ppo.generates and config.reward.rm_type is not None and config.reward.custom_rm_path is not None:
        raise UserError("give one of --rm-type and --custom-rm-path: what a response is worth")


def _rollouts_have_a_source(config: RunConfig) -> None:
    load, save = config.rollout.load_debug_rollout_data, config.rollout.save_debug_rollout_data
    if load is None and config.data.prompt_data is None:
        raise UserError("missing --prompt-data (or --load-debug-rollout-data); see slime train --help")
    for flag, pattern in (("--load-debug-rollout-data", load), ("--save-debug-rollout-data", save)):
        if pattern is not None and "{rollout_id}" not in pattern:
            raise UserError(f"{flag} {pattern} must hold {{rollout_id}}, which stands for the rollout's number")
    if load is not None and config.eval.eval_interval is not None:
        raise UserError("--eval-interval has no meaning with --load-debug-rollout-data, which starts no rollout engine")
    if config.rollout.debug_train_only and load is None:
        raise UserError("--debug-train-only needs --load-debug-rollout-data: what to train on")
    if config.rollout.debug_rollout_only and (load is not None or config.run.save is not None or not config.ppo.generates):
        raise UserError(
            "--debug-rollout-only trains nothing: not with --load-debug-rollout-data, --save or --loss-type sft_loss"
        )
    if load is not None and save is not None:
        raise UserError("--save-debug-rollout-data has no meaning with --load-debug-rollout-data: nothing is generated")


def _exports_do_not_meet(config: RunConfig) -> None:
    if config.run.save_hf is not None and config.run.save_hf == config.run.critic_save_hf:
        raise UserError(f"--save-hf and --critic-save-hf are both {config.run.save_hf}: one would replace the other")


def _staleness(config: RunConfig) -> None:
    staleness, rollout = config.rollout.max_staleness, config.rollout
    if staleness < 0:
        raise UserError(f"--max-staleness must be at least 0, got {staleness}")
    if staleness > 0 and (config.cluster.colocate or config.cluster.offload_train or config.engine.offload_rollout):
        away = "--colocate, --offload-train or --offload-rollout"
        raise UserError(f"--max-staleness {staleness} generates while training: not with {away}")
    if staleness > 1 and rollout.rollout_function_path is not None:
        raise UserError(f"--max-staleness {staleness} generates by itself: above 1 there can be no --rollout-function-path")
    if staleness > 1 and config.data.data_source_path != DataArgs.data_source_path:
        raise UserError(f"--max-staleness {staleness} puts prompts back: above 1 there can be no --data-source-path")


def _restarts_and_halves_need_units(config: RunConfig) -> None:
    if config.run.restarts < 0:
        raise UserError(f"--restarts must be at least 0, got {config.run.restarts}")
    for flag, given in (("--restarts", config.run.restarts), ("--critic-save", config.run.critic_save)):
        if given and config.run.save is None:
            raise UserError(f"{flag} {given} needs --save: where checkpoints to go on from are")
    if config.run.critic_load is not None and config.run.critic_start is None and config.run.load is None:
        raise UserError(f"--critic-load {config.run.critic_load} is half of a checkpoint: give the other by --load")


def _critic_only_rollouts(config: RunConfig) -> None:
    alone = config.ppo.num_critic_only_steps
    if alone > config.run.num_rollout:
        raise UserError(f"--num-critic-only-steps {alone} is more than --num-rollout {config.run.num_rollout}")


def _groups_have_a_baseline(config: RunConfig) -> None:
    name, size = config.ppo.advantage_estimator, config.rollout.n_samples_per_prompt
    if config.ppo.has_group_baseline and not config.reward.disable_rewards_normalization and size == 1:
        raise UserError(
            f"--advantage-estimator {name} compares the responses to a prompt: with --n-samples-per-prompt 1 every one is 0"
        )


def _reward_type_has_what_it_needs(config: RunConfig) -> None:
    reward = config.reward
    if reward.rm_type is None:
        return
    base = reward.rm_type.removeprefix("boxed_")
    if base == "ifbench":
        raise UserError(f"--rm-type {reward.rm_type}: {IFBENCH_MISSING}")
    if base == "remote_rm" and reward.rm_url is None:
        raise UserError(f"--rm-type {reward.rm_type} needs --rm-url: where the reward model listens")
    if base in NEED_LABEL and config.data.label_key is None:
        raise UserError(f"--rm-type {reward.rm_type} needs --label-key: the column with the right answer")
    if base not in OF_SEVERAL_ENTRIES and reward.reward_key is not None:
        raise UserError(f"--reward-key has no meaning with --rm-type {reward.rm_type}, whose reward is a number")


def _evaluation_has_data(config: RunConfig) -> None:
    pairs = config.eval.eval_prompt_data or ()
    if len(pairs) % 2:
        raise UserError(f"--eval-prompt-data takes pairs of a name and a file, got {len(pairs)} words")
    if len(set(pairs[::2])) < len(pairs) // 2:
        raise UserError(f"--eval-prompt-data has a name twice: {' '.join(pairs[::2])}")
    if pairs and config.eval.eval_config is not None:
        raise UserError("--eval-config takes the place of --eval-prompt-data: give one of them")
    has_data = bool(pairs) or config.eval.eval_config is not None
    if config.eval.eval_interval is not None and not has_data:
        raise UserError("--eval-interval needs --eval-prompt-data or --eval-config: what to evaluate on")
    if config.ppo.loss_type == "sft_loss" and has_data:
        raise UserError("--eval-prompt-data has no meaning with --loss-type sft_loss: it generates no responses")


def _wandb_is_installed(config: RunConfig) -> None:
    if config.wandb.use_wandb and importlib.util.find_spec("wandb") is None:
        raise UserError("--use-wandb needs the package wandb: pip install wandb, or leave the flag out")


def _checkpoints_readable(config: RunConfig) -> None:
    folders = {"--hf-checkpoint": config.actor.hf_checkpoint}
    if config.ppo.uses_critic:
        folders["--critic-load" if config.run.critic_start else "--critic-hf-checkpoint"] = config.critic.hf_checkpoint
    if config.ppo.uses_reference and config.ppo.ref_load:
        folders["--ref-load"] = config.ppo.ref_load
    for flag, folder in folders.items():
        check_checkpoint(flag, Path(folder))


def check_checkpoint(flag: str, folder: Path) -> None:
    """Whether `folder` looks like a Hugging Face checkpoint of safetensors; UserError names what is missing."""
    if not folder.is_dir():
        raise UserError(f"{flag} {folder} is no folder: give a Hugging Face checkpoint on disk (`hf download` fetches one)")
    try:
        json.loads((folder / "config.json").read_text())
    except FileNotFoundError:
        raise UserError(f"{flag} {folder} has no config.json: not a Hugging Face checkpoint") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{flag} {folder}/config.json is not readable: {error}") from error
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    try:
        files = {single} if not index.is_file() else {folder / f for f in json.loads(index.read_text())["weight_map"].values()}
    except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        raise UserError(f"{flag} {index} is not readable: {error!r}") from error
    for file in sorted(files):
        _check_safetensors(flag, file)


def _check_safetensors(flag: str, file: Path) -> None:
    """Header present and the file as long as the header says: a download cut short is found here."""
    if not file.is_file():
        raise UserError(f"{flag} {file} is missing: only safetensors checkpoints are read")
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        try:
            header = json.loads(stream.read(length) if length < size else b"")
            end = 8 + length + max((t["data_offsets"][1] for name, t in header.items() if name != "__metadata__"), default=0)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            raise UserError(f"{flag} {file} is not a safetensors file") from None
    if end != size:
        raise UserError(f"{flag} {file} is torn: {size} bytes where its header says {end}")


def _engines_take_what_is_asked(config: RunConfig) -> None:
    engine, embedded = config.engine, config.engine.rollout_engine == "embedded"
    if engine.update_weight_transport in ("nccl", "tensor") and embedded:
        raise UserError(
            f"--update-weight-transport {engine.update_weight_transport} is for --rollout-engine sglang: the embedded engine "
            "takes weights from disk only"
        )
    if engine.update_weight_transport == "nccl" and config.cluster.colocate:
        raise UserError("--update-weight-transport nccl can't join processes that share a GPU (--colocate): give tensor")
    if engine.rollout_external_engine_addrs is not None and embedded:
        raise UserError("--rollout-external-engine-addrs needs --rollout-engine sglang: the servers speak its protocol")
    for address in engine.rollout_external_engine_addrs or ():
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise UserError(f"--rollout-external-engine-addrs takes host:port, got {address}")


def _engines_have_whole_gpus(config: RunConfig) -> None:
    each, total = config.engine.rollout_num_gpus_per_engine, config.cluster.rollout_num_gpus
    if each > 1 and config.engine.rollout_engine == "embedded":
        raise UserError(f"--rollout-num-gpus-per-engine {each} is for --rollout-engine sglang: the embedded one is not split")
    if total is not None and total % each:
        raise UserError(f"--rollout-num-gpus-per-engine {each} does not divide --rollout-num-gpus {total}")
    if each > 1 and config.cluster.colocate:
        raise UserError(f"--rollout-num-gpus-per-engine {each} with --colocate is not supported yet: give 1")


RULES: tuple[Rule, ...] = (
    _backend,
    _positive_counts,
    _one_node,
    _temperature,
    _cut_sampling,
    _stop_strings,
    _over_sampling,
    _data_weights,
    _rollouts_have_a_source,
    _exports_do_not_meet,
    _staleness,
    _restarts_and_halves_need_units,
    _critic_only_rollouts,
    _groups_have_a_baseline,
    _batch_sizes_divide,
    _one_reward,
    _reward_type_has_what_it_needs,
    _evaluation_has_data,
    _wandb_is_installed,
    require_own_state,
    _engines_take_what_is_asked,
    _engines_have_whole_gpus,
    _checkpoints_readable,
)
_OF_TRAINING = {
    _one_node,
    _over_sampling,
    _data_weights,
    _rollouts_have_a_source,
    _exports_do_not_meet,
    _staleness,
    _restarts_and_halves_need_units,
    _critic_only_rollouts,
    _groups_have_a_baseline,
    _batch_sizes_divide,
}
EVALUATION_RULES: tuple[Rule, ...] = tuple(rule for rule in RULES if rule not in _OF_TRAINING)
"""Of `slime eval`: all but those of training."""

"""What a run is told but has no use for: not an error, so that one flag can be changed to compare, but said."""

from dataclasses import MISSING, fields
from typing import Any

from fsdp_backend.config import PPOConfig, RoleConfig
from slime.arguments.groups import ClusterArgs, DataArgs, EngineArgs, EvalArgs, RewardArgs, RolloutArgs, RunArgs, WandbArgs
from slime.arguments.run_config import RunConfig

_CRITIC: tuple[str, ...] = (
    "critic_update_steps",
    "critic_targets",
    "advantage_values",
    "critic_holdout_fraction",
    "num_critic_only_steps",
    "critic_load",
    "critic_save",
    "critic_lambd",
    "lambd",
    "lambd_alpha",
    "value_clip",
    "critic_num_nodes",
    "critic_num_gpus_per_node",
)
_ACTOR: tuple[str, ...] = (
    "advantage_values",
    "lambd_alpha",
    "normalize_advantages",
    "entropy_coef",
    "use_kl_loss",
    "kl_loss_coef",
    "use_tis",
    "use_opsm",
    "use_rollout_logprobs",
    "dis_eps_low",
    "dis_eps_high",
    "eps_clip",
    "eps_clip_high",
    "eps_clip_c",
)
_SUPERVISED = ("loss_type", "actor_update_steps", "calculate_per_token_loss")
_WANDB = tuple(field.name for field in fields(WandbArgs) if field.name != "use_wandb")
_SGLANG = ("sglang_python", "offload_rollout")
_ENGINES = ("rollout_engine", "rollout_num_gpus", "rollout_num_gpus_per_engine", "update_weight_transport")
_GENERATION = (
    "rollout_function_path",
    "custom_generate_function_path",
    "rollout_sample_hook_path",
    "over_sampling_batch_size",
    "dynamic_sampling_filter_path",
    "partial_rollout",
    "max_staleness",
    "mask_offpolicy_in_partial_rollout",
    "buffer_filter_path",
    "rollout_sample_filter_path",
    "rollout_all_samples_process_path",
)
_REWARDS = ("rm_type", "rm_url", "custom_rm_path", "group_rm", "prompt_data", "prompt_data_weights", *_GENERATION)


def notices(config: RunConfig) -> list[str]:
    """One line for each group of flags that were given and have no meaning in this run."""
    flags, defaults = config.flags(), default_values()
    lines, said = [], set()
    for applies, names, why in _meaningless(config):
        given = [name for name in names if applies and name not in said and flags[name] != defaults.get(name, MISSING)]
        if given:
            said |= set(given)
            lines.append(f"{', '.join('--' + name.replace('_', '-') for name in given)} set aside: {why}")
    if config.ppo.use_opsm and not config.ppo.use_rollout_logprobs and _single_step(config):
        lines.append(
            "--use-opsm finds nothing to leave out: the actor takes one step a rollout, and no response sinks before it"
        )
    return lines


def _meaningless(config: RunConfig) -> list[tuple[bool, tuple[str, ...], str]]:
    """(whether it holds, flags that then mean nothing, why)."""
    ppo, estimator = config.ppo, f"--advantage-estimator {config.ppo.advantage_estimator}"
    of_role = tuple(f"critic_{f.name}" for f in fields(RoleConfig) if _differs(config, f.name))
    supervised = tuple(f.name for f in fields(PPOConfig) if f.name not in _SUPERVISED)
    std = ("disable_grpo_std_normalization",)
    return [
        (not ppo.generates, (*supervised, *_CRITIC, *of_role), "--loss-type sft_loss trains on the data's own answers"),
        (not ppo.uses_critic, (*_CRITIC, *of_role), f"{estimator} has no critic"),
        (ppo.has_group_baseline, ("gamma",), f"{estimator} gives every token the same"),
        (not ppo.has_group_baseline, ("disable_rewards_normalization", *std), f"{estimator} compares no responses"),
        (ppo.advantage_estimator == "reinforce_plus_plus_baseline", std, f"{estimator} never divides"),
        (ppo.advantage_estimator == "cispo", ("eps_clip_c",), "cispo clips the weight, not the loss"),
        (not config.has_critic_updates, (*_CRITIC, *of_role), "--debug-rollout-only trains nothing"),
        (config.rollout.debug_rollout_only, ("custom_advantage_function_path",), "--debug-rollout-only trains nothing"),
        (not config.has_actor_updates, _ACTOR, "no rollout trains the actor"),
        (ppo.dis_eps_low is not None, ("eps_clip", "eps_clip_high"), "--dis-eps-low and --dis-eps-high take their place"),
        (not ppo.use_tis, ("tis_mode", "tis_clip", "tis_clip_low"), "they are for --use-tis"),
        (
            ppo.loss_type == "custom_loss",
            ("custom_tis_function_path", "use_tis", "use_opsm"),
            "--custom-loss-function-path computes the whole loss (it sees these flags in args)",
        ),
        (not ppo.use_opsm, ("opsm_delta",), "it is for --use-opsm"),
        (not ppo.use_kl_loss, ("use_unbiased_kl",), "it is for --use-kl-loss"),
        (
            not ppo.uses_reference,
            ("ref_load", "kl_loss_type"),
            "neither --use-kl-loss nor --kl-coef asks for a reference",
        ),
        (config.run.save is None, ("keep_last", "async_save", "no_save_optim"), "what is saved is --save's"),
        (config.run.load is None, ("no_load_optim",), "nothing is loaded: it is for --load"),
        (
            config.reward.custom_rm_path is None,
            ("group_rm",),
            "it is for --custom-rm-path",
        ),
        (not config.wandb.use_wandb, _WANDB, "they are for --use-wandb"),
        (
            config.eval.eval_interval is None,
            ("eval_prompt_data", "eval_config"),
            "without --eval-interval nothing is evaluated",
        ),
        (config.actor.use_dynamic_batch_size, ("micro_batch_size",), "--max-tokens-per-gpu says what a micro-batch holds"),
        (not config.actor.use_dynamic_batch_size, ("max_tokens_per_gpu",), "it is for --use-dynamic-batch-size"),
        (True, ("num_epoch",), "--num-rollout says how many rollouts"),
        (not ppo.generates, _GENERATION[1:], "--loss-type sft_loss generates nothing"),
        (
            config.rollout.max_staleness > 1,
            ("over_sampling_batch_size", "partial_rollout"),
            "prompts go on anyway",
        ),
        (not config.rollout.partial_rollout, ("mask_offpolicy_in_partial_rollout",), "it is for --partial-rollout"),
        (config.engine.rollout_engine == "embedded", (*config.sglang, *_SGLANG), "they are for --rollout-engine sglang"),
        (config.engine.rollout_external_engine_addrs is not None, tuple(config.sglang), "no SGLang is started"),
        (config.weight_transport == "disk", ("update_weight_buffer_size",), "weights travel by disk, as a whole"),
        (not config.generates_responses, (*config.sglang, *_SGLANG, *_ENGINES), "no rollout engine is started"),
        (config.rollout.load_debug_rollout_data is not None, _REWARDS, "samples and rewards come from disk"),
    ]


def _differs(config: RunConfig, name: str) -> bool:
    loaded = name == "hf_checkpoint" and config.run.critic_start is not None
    return not loaded and bool(getattr(config.critic, name) != getattr(config.actor, name))


def _single_step(config: RunConfig) -> bool:
    samples = config.rollout.rollout_batch_size * config.rollout.n_samples_per_prompt
    role, one_pass = config.actor, config.ppo.actor_update_steps == 1
    return one_pass and role.global_batch_size in (None, samples) and role.num_steps_per_rollout in (None, 1)


def default_values() -> dict[str, Any]:
    """The default of every flag; of the critic's own, nothing equals it."""
    sections = (RoleConfig, RunArgs, ClusterArgs, EngineArgs, DataArgs, RolloutArgs, RewardArgs, EvalArgs, PPOConfig, WandbArgs)
    found: dict[str, Any] = {field.name: field.default for section in sections for field in fields(section)}
    return found | {f"critic_{field.name}": MISSING for field in fields(RoleConfig)}

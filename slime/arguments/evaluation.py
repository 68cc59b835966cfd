"""What `slime eval` makes of the flags of `slime train`: it takes those of generation, rewards and evaluation, and sets aside
those of training."""

from dataclasses import replace

from fsdp_backend.config import PPOConfig, RoleConfig
from slime.arguments.errors import UserError
from slime.arguments.groups import ClusterArgs, RolloutArgs, RunArgs
from slime.arguments.notices import default_values
from slime.arguments.run_config import RunConfig
from slime.arguments.scripts.read import ScriptFlags

_WHY = "slime eval trains nothing"
_OF_TRAINING = ("num_rollout", "rollout_batch_size")
"""Flags without a default."""


def words_not_needed(given: dict[str, str]) -> list[str]:
    """Values for the flags that only training needs, where they were not given."""
    return [word for name in _OF_TRAINING if name not in given for word in (f"--{name.replace('_', '-')}", "1")]


def for_evaluation(config: RunConfig) -> RunConfig:
    """The config with every flag of training at its default; its `script` says which were given. Raises UserError where there
    is nothing to evaluate on."""
    if not config.eval.eval_prompt_data and config.eval.eval_config is None:
        raise UserError("slime eval needs --eval-prompt-data or --eval-config: what to evaluate on")
    run, actor, rollout = config.run, config.actor, config.rollout
    role = RoleConfig(hf_checkpoint=actor.hf_checkpoint, bf16=actor.bf16)
    evaluated = replace(
        config,
        run=RunArgs(
            num_rollout=1,
            train_backend=run.train_backend,
            launcher=run.launcher,
            run_dir=run.run_dir,
            load=run.load,
            seed=run.seed,
        ),
        cluster=ClusterArgs(rollout_num_gpus=config.cluster.rollout_num_gpus),
        data=replace(config.data, prompt_data=None, prompt_data_weights=None, rollout_shuffle=False),
        rollout=_generation(rollout),
        eval=replace(config.eval, eval_interval=1, skip_eval_before_train=False),
        ppo=PPOConfig(),
        actor=role,
        critic=role,
    )
    return replace(evaluated, script=config.script + ScriptFlags(set_aside=_set_aside(config, evaluated)))


def _generation(rollout: RolloutArgs) -> RolloutArgs:
    """Only what says how a response is made."""
    return RolloutArgs(
        rollout_batch_size=1,
        rollout_max_response_len=rollout.rollout_max_response_len,
        rollout_max_context_len=rollout.rollout_max_context_len,
        rollout_max_prompt_len=rollout.rollout_max_prompt_len,
        rollout_temperature=rollout.rollout_temperature,
        rollout_top_p=rollout.rollout_top_p,
        rollout_top_k=rollout.rollout_top_k,
        rollout_skip_special_tokens=rollout.rollout_skip_special_tokens,
        rollout_stop=rollout.rollout_stop,
        rollout_stop_token_ids=rollout.rollout_stop_token_ids,
        rollout_function_path=rollout.rollout_function_path,
        custom_generate_function_path=rollout.custom_generate_function_path,
        rollout_sample_hook_path=rollout.rollout_sample_hook_path,
        sglang_server_concurrency=rollout.sglang_server_concurrency,
        debug_rollout_only=True,
    )


def _set_aside(given: RunConfig, evaluated: RunConfig) -> tuple[tuple[str, str], ...]:
    before, after, defaults = given.flags(), evaluated.flags(), default_values()
    names = [name for name, value in before.items() if after[name] != value and defaults.get(name) != value]
    # An unset flag of the critic follows the actor's.
    own = [name for name in names if not name.startswith("critic_") or before.get(name.removeprefix("critic_")) != before[name]]
    return tuple((f"--{name.replace('_', '-')}", _WHY) for name in own)

"""RunConfig: everything a run was told, resolved and frozen, and the flat view of it that plug-ins see as `args`."""

from dataclasses import asdict, dataclass, field
from types import SimpleNamespace
from typing import Any

from fsdp_backend.config import PPOConfig, RoleConfig, TrainConfig
from slime.arguments.groups import ClusterArgs, DataArgs, EngineArgs, EvalArgs, RewardArgs, RolloutArgs, RunArgs, WandbArgs
from slime.arguments.scripts.read import ScriptFlags


@dataclass(frozen=True)
class RunConfig:
    """One section for each flag group; `critic` has its unset values filled in from `actor`."""

    run: RunArgs
    cluster: ClusterArgs
    engine: EngineArgs
    data: DataArgs
    rollout: RolloutArgs
    reward: RewardArgs
    eval: EvalArgs
    ppo: PPOConfig
    actor: RoleConfig
    critic: RoleConfig
    wandb: WandbArgs
    script: ScriptFlags = field(default=ScriptFlags(), compare=False)
    """What became of flags that are none of ours. It says how the run was told what to do, not what."""
    sglang: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """SGLang's own flags as they were given, `sglang_x` to its words."""

    def flags(self) -> dict[str, Any]:
        """Every flag by its slime name (`lr`, `critic_lr`, `rollout_batch_size` …) with its resolved value."""
        sections = {name: section for name, section in asdict(self).items() if name not in ("critic", "script")}
        flat = {flag: value for section in sections.values() for flag, value in section.items()}
        return flat | {f"critic_{flag}": value for flag, value in asdict(self.critic).items()}

    def namespace(self) -> SimpleNamespace:
        """`args` as slime's plug-in functions know it: a fresh flat copy."""
        flags = self.flags()
        # slime's names for what the flags turn off.
        flags["grpo_std_normalization"] = not flags["disable_grpo_std_normalization"]
        flags["rewards_normalization"] = not flags["disable_rewards_normalization"]
        flags["wandb_random_suffix"] = not flags["disable_wandb_random_suffix"]
        # In slime there is one data set, and its path is text.
        if flags["prompt_data"] is not None and len(flags["prompt_data"]) == 1:
            flags["prompt_data"] = flags["prompt_data"][0]
        return SimpleNamespace(**flags)

    @property
    def weight_transport(self) -> str:
        """--update-weight-transport, resolved."""
        given = self.engine.update_weight_transport
        if given is not None:
            return given
        if self.engine.rollout_engine == "embedded":
            return "disk"
        return "tensor" if self.cluster.colocate else "nccl"

    @property
    def engine_gpus(self) -> int:
        """Of one rollout engine."""
        return self.engine.rollout_num_gpus_per_engine

    @property
    def generates_responses(self) -> bool:
        """Whether rollouts are generated, not read from disk or taken from the data."""
        return self.ppo.generates and self.rollout.load_debug_rollout_data is None

    @property
    def has_rollouts(self) -> bool:
        """Whether there is anything besides evaluations."""
        return self.data.prompt_data is not None or self.rollout.load_debug_rollout_data is not None

    @property
    def has_actor_updates(self) -> bool:
        """Whether there is a rollout that the actor trains on."""
        return not self.rollout.debug_rollout_only and self.run.num_rollout > self.ppo.rollouts_without_actor

    @property
    def has_critic_updates(self) -> bool:
        """Whether there is a critic to train."""
        return not self.rollout.debug_rollout_only and self.ppo.uses_critic

    def trains_actor(self, rollout_id: int) -> bool:
        """Whether the actor trains on this rollout."""
        return self.has_actor_updates and self.ppo.trains_actor(rollout_id)

    def train_config(self) -> TrainConfig:
        """The part that training processes need."""
        return TrainConfig(
            actor=self.actor,
            critic=self.critic,
            ppo=self.ppo,
            num_rollout=self.run.num_rollout,
            rollout_temperature=self.rollout.rollout_temperature,
            seed=self.run.seed,
            require_value_head=self.run.critic_start is not None,
        )

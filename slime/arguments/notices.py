"""What a run is told but has no use for: not an error, so that one flag can be changed to compare, but said."""

from dataclasses import fields

from fsdp_backend.config import PPOConfig
from slime.arguments.run_config import RunConfig

_OF_THE_CRITIC = (
    "critic_update_steps",
    "critic_targets",
    "advantage_values",
    "critic_holdout_fraction",
    "critic_load",
    "critic_lambd",
    "lambd",
    "lambd_alpha",
    "value_clip",
)
_OF_THE_CLIP = ("eps_clip", "eps_clip_high")


def notices(config: RunConfig) -> list[str]:
    """One line for each group of flags that were given and have no meaning in this run."""
    lines = []
    if config.ppo.generates and not config.ppo.uses_critic:
        of_role = [
            f"critic_{f.name}" for f in fields(config.critic) if getattr(config.critic, f.name) != getattr(config.actor, f.name)
        ]
        unused = _changed(config.ppo, _OF_THE_CRITIC) + of_role
        lines += _line(unused, f"--advantage-estimator {config.ppo.advantage_estimator} has no critic")
    if config.ppo.dis_eps_low is not None:
        lines += _line(_changed(config.ppo, _OF_THE_CLIP), "--dis-eps-low and --dis-eps-high take the place of the PPO clip")
    return lines


def _changed(ppo: PPOConfig, names: tuple[str, ...]) -> list[str]:
    return [field.name for field in fields(ppo) if field.name in names and getattr(ppo, field.name) != field.default]


def _line(names: list[str], why: str) -> list[str]:
    flags = ", ".join(f"--{name.replace('_', '-')}" for name in names)
    return [f"{flags} set aside: {why}"] if names else []

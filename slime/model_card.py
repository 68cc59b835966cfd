"""The README.md of an exported model: what it is, what trained it, and how far."""

from collections.abc import Mapping
from pathlib import Path

from huggingface_hub import ModelCardData

from slime.arguments.run_config import RunConfig

_SHOWN = ("rollout/reward", "rollout/response_length", "rollout/truncated", "train/entropy", "train/ppo_kl")


def write_card(folder: Path, role: str, config: RunConfig, rollouts: int, metrics: Mapping[str, float]) -> None:
    """Put the card beside the weights of a role, after so many rollouts, the last with these metrics."""
    (folder / "README.md").write_text(card(role, config, rollouts, metrics), encoding="utf-8")


def card(role: str, config: RunConfig, rollouts: int, metrics: Mapping[str, float]) -> str:
    """The text: Hugging Face's front matter, then sentences, the flags that shape the objective, and the last metrics."""
    start = config.actor.hf_checkpoint if role == "actor" else config.critic.hf_checkpoint
    task = "text-generation" if role == "actor" else "token-classification"
    data = ModelCardData(library_name="transformers", pipeline_tag=task, tags=["reinforcement-learning", "slime-fsdp"])
    what = "language model" if role == "actor" else "value model: its one output is the expected return from a token on"
    lines = [
        "---",
        data.to_yaml(),
        "---",
        "",
        f"# {Path(start).name}, {role}",
        "",
        f"A {what}. {_trained_by(config)} Trained with slime-fsdp for {rollouts} of {config.run.num_rollout} rollouts.",
        "",
        "| | |",
        "| --- | --- |",
        *(f"| {name} | {value} |" for name, value in _facts(role, config, start).items()),
        *(f"| last {name} | {metrics[name]:.4g} |" for name in (*_SHOWN, *_evaluations(metrics)) if name in metrics),
        "",
    ]
    return "\n".join(lines)


def _trained_by(config: RunConfig) -> str:
    if not config.ppo.generates:
        return "Supervised training on given answers."
    if config.ppo.uses_critic:
        return f"PPO with a critic, K = {config.ppo.critic_update_steps}."
    return f"Policy gradient, {config.ppo.advantage_estimator}."


def _facts(role: str, config: RunConfig, start: str) -> dict[str, object]:
    settings = config.actor if role == "actor" else config.critic
    facts: dict[str, object] = {
        "started from": start,
        "prompts": ", ".join(config.data.prompt_data or ()) or config.rollout.load_debug_rollout_data,
        "reward": config.reward.rm_type or config.reward.custom_rm_path,
        "prompts a rollout": config.rollout.rollout_batch_size,
        "responses a prompt": config.rollout.n_samples_per_prompt,
        "learning rate": settings.lr,
        "seed": config.run.seed,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _evaluations(metrics: Mapping[str, float]) -> list[str]:
    return [name for name in metrics if name.startswith("eval/") and name.endswith("/reward")]

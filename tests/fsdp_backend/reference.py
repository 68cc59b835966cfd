"""PPO with a K-step critic in plain PyTorch: one process, float32, one sample at a time, no code of ours. Slow and easy to
check."""

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification


@dataclass
class Sample:
    """One prompt with its response; masked tokens have mask 0."""

    tokens: list[int]
    response: int
    mask: list[int]
    reward: float
    old: dict[str, Tensor] = field(default_factory=dict)
    """Detached per-token tensors that are fixed before the update."""


@dataclass
class Settings:
    """The flags that the reference understands, by slime's names."""

    critic_update_steps: int
    lr: float
    critic_lr: float
    global_batch_size: int
    critic_global_batch_size: int
    adam_eps: float
    weight_decay: float
    clip_grad: float
    seed: int
    eps_clip: float = 0.2
    value_clip: float = 0.2
    """Infinity: none."""
    entropy_coef: float = 0.01
    kl_coef: float = 0.05
    kl_loss_coef: float = 0.1
    gamma: float = 0.98
    lambd: float = 0.9
    temperature: float = 0.8
    actor_update_steps: int = 1
    critic_targets: str = "frozen"
    advantage_values: str = "before-update"
    num_critic_only_steps: int = 0


class ReferencePPO:
    """Actor, critic and reference model as transformers loads them."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.s = settings
        self.actor = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.frozen = copy.deepcopy(self.actor).requires_grad_(False)
        self.critic = AutoModelForTokenClassification.from_pretrained(folder, dtype=torch.float32, num_labels=1)
        self.critic.dropout.p = 0.0
        torch.nn.init.zeros_(self.critic.score.weight)
        torch.nn.init.zeros_(self.critic.score.bias)
        self.actor_optimizer = _adamw(self.actor, settings.lr, settings)
        self.critic_optimizer = _adamw(self.critic, settings.critic_lr, settings)

    def iterate(self, samples: list[Sample], rollout_id: int) -> None:
        """One rollout."""
        s = self.s
        with torch.no_grad():
            for x in samples:
                values, (log_probs, _), (ref, _) = self.values(x), self.log_probs(self.actor, x), self.log_probs(self.frozen, x)
                x.old = {"values": values, "log_probs": log_probs, "ref": ref}
        self.target(samples)
        first_values = [x.old["values"] for x in samples]
        self.train_critic(samples, rollout_id)
        if rollout_id < s.num_critic_only_steps:
            return
        for x, v_old in zip(samples, first_values, strict=True):
            x.old["values"] = v_old
        if s.advantage_values == "after-update":
            self.revalue(samples)
        self.target(samples)
        self.train_actor(samples, rollout_id)

    def train_critic(self, samples: list[Sample], rollout_id: int) -> None:
        """K passes for each of the actor's."""
        s = self.s
        for k in range(s.critic_update_steps * s.actor_update_steps):
            if k and s.critic_targets == "refreshed":
                self.revalue(samples)
                self.target(samples)
            order = np.random.default_rng([s.seed, rollout_id, k]).permutation(len(samples))
            for start in range(0, len(samples), s.critic_global_batch_size):
                step = [samples[i] for i in order[start : start + s.critic_global_batch_size]]
                _step(self.critic_optimizer, self.critic, [self.value_loss(x) for x in step], s.clip_grad)

    def train_actor(self, samples: list[Sample], rollout_id: int) -> None:
        """Its passes, the first in the samples' order."""
        s = self.s
        for e in range(s.actor_update_steps):
            order = np.random.default_rng([s.seed, rollout_id, e]).permutation(len(samples)) if e else range(len(samples))
            for start in range(0, len(samples), s.global_batch_size):
                step = [samples[i] for i in order[start : start + s.global_batch_size]]
                _step(self.actor_optimizer, self.actor, [self.policy_loss(x) for x in step], s.clip_grad)

    def revalue(self, samples: list[Sample]) -> None:
        """Take the critic's values as they are now."""
        with torch.no_grad():
            for x in samples:
                x.old["values"] = self.values(x)

    def target(self, samples: list[Sample]) -> None:
        """Advantages and returns of the values there are."""
        for x in samples:
            values = x.old["values"]
            penalty = [-self.s.kl_coef * float(k) for k in x.old["log_probs"] - x.old["ref"]]
            x.old["advantages"] = gae(x, values, penalty, self.s.gamma, self.s.lambd)
            x.old["returns"] = x.old["advantages"] + values

    def values(self, x: Sample) -> Tensor:
        """V of each response token, from the position before it."""
        return self.critic(torch.tensor([x.tokens])).logits[0, -x.response - 1 : -1, 0]  # type: ignore[no-any-return]

    def log_probs(self, model: Any, x: Sample) -> tuple[Tensor, Tensor]:
        """Log-prob and entropy of each response token."""
        logits = model(torch.tensor([x.tokens])).logits[0, -x.response - 1 : -1] / self.s.temperature
        table = torch.log_softmax(logits, dim=-1)
        chosen = torch.tensor(x.tokens[-x.response :])
        return table[torch.arange(x.response), chosen], -(table.exp() * table).sum(-1)

    def value_loss(self, x: Sample) -> Tensor:
        """Masked mean of the clipped squared error."""
        values, old, returns = self.values(x), x.old["values"], x.old["returns"]
        terms = []
        for v, o, r, m in zip(values, old, returns, x.mask, strict=True):
            clipped = o + torch.clamp(v - o, -self.s.value_clip, self.s.value_clip)
            terms.append(m * torch.max((v - r) ** 2, (clipped - r) ** 2))
        return torch.stack(terms).sum() / max(sum(x.mask), 1)

    def policy_loss(self, x: Sample) -> Tensor:
        """Masked mean of clipped surrogate, minus entropy bonus, plus KL loss (k1)."""
        s, terms = self.s, []
        log_probs, entropy = self.log_probs(self.actor, x)
        for t, m in enumerate(x.mask):
            ratio, a = torch.exp(log_probs[t] - x.old["log_probs"][t]), x.old["advantages"][t]
            surrogate = torch.min(ratio * a, torch.clamp(ratio, 1 - s.eps_clip, 1 + s.eps_clip) * a)
            kl = log_probs[t] - x.old["ref"][t]
            terms.append(m * (-surrogate - s.entropy_coef * entropy[t] + s.kl_loss_coef * kl))
        return torch.stack(terms).sum() / max(sum(x.mask), 1)


def gae(x: Sample, values: Tensor, shaped: list[float], gamma: float, lambd: float) -> Tensor:
    """The recursion, over trainable tokens only; the reward stands on the last of them."""
    kept = [t for t in range(x.response) if x.mask[t]]
    result = torch.zeros(x.response)
    running = next_value = 0.0
    for t in reversed(kept):
        reward = shaped[t] + (x.reward if t == kept[-1] else 0.0)
        running = reward + gamma * next_value - float(values[t]) + gamma * lambd * running
        next_value = float(values[t])
        result[t] = running
    return result


def _adamw(model: torch.nn.Module, lr: float, s: Settings) -> torch.optim.AdamW:
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": s.weight_decay},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=s.adam_eps)


def _step(optimizer: torch.optim.Optimizer, model: torch.nn.Module, losses: list[Tensor], clip_grad: float) -> None:
    optimizer.zero_grad()
    torch.autograd.backward(torch.stack(losses).mean())
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip_grad)
    optimizer.step()

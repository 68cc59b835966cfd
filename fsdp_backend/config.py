"""What training can be told, for one role and for PPO. Standard library only: importing this must not import torch.

The field names are slime's flag names, and the docstring under a field is that flag's help: slime's command line is made from
these classes, so a default stands in one place. Errors begin with the name of the field.
"""

import re
from dataclasses import dataclass
from typing import Literal

GROUP_ESTIMATORS = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
"""Advantage estimators whose baseline is the mean reward of the responses to the same prompt."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _is_regular_expression(text: str) -> bool:
    try:
        re.compile(text)
    except re.error:
        return False
    return True


@dataclass(frozen=True)
class RoleConfig:
    """One role's training: model, learning rate, optimizer and batches. Each flag exists twice, `--x` for the actor and
    `--critic-x` for the critic; an unset `--critic-x` takes the actor's value."""

    hf_checkpoint: str
    """Hugging Face checkpoint folder the model starts from. A critic that starts from a causal language model gets a fresh
    value head; one that starts from an earlier critic or a reward model keeps its head."""

    lr: float = 1e-6
    """Peak learning rate."""
    lr_decay_style: Literal["constant", "linear", "cosine", "inverse-square-root", "WSD"] = "constant"
    """Shape of the learning rate after warmup. The clock counts rollouts, never optimizer steps."""
    lr_warmup_iters: float = 0
    """Rollouts of linear warmup. The first of them trains at --lr-warmup-init."""
    lr_warmup_init: float = 0.0
    """Learning rate at the start of warmup."""
    min_lr: float = 0.0
    """Learning rate that decay ends at."""
    lr_decay_iters: int | None = None
    """Rollout at which decay has reached --min-lr. None: the last rollout of the run."""
    lr_wsd_decay_iters: int | None = None
    """Length of the final decay of the WSD style, in rollouts. None: the whole of --lr-decay-iters."""
    lr_wsd_decay_style: Literal["linear", "cosine", "exponential", "minus_sqrt"] = "exponential"
    """Shape of the final decay of the WSD style."""

    optimizer: str = "adam"
    """adam is AdamW. Else the dotted path of a class or function that is called as f(parameter_groups, lr=…) and returns a
    torch optimizer; each group brings its weight_decay."""
    adam_beta1: float = 0.9
    """AdamW: decay of the first moment."""
    adam_beta2: float = 0.95
    """AdamW: decay of the second moment."""
    adam_eps: float = 1e-8
    """AdamW: added to the denominator."""
    weight_decay: float = 0.0
    """Weight decay, on matrices only (not on norms and biases); AdamW's is decoupled."""
    clip_grad: float = 1.0
    """Largest gradient norm of an optimizer step; larger gradients are scaled down to it. 0 turns clipping off."""
    max_skipped_steps: int = 10
    """Optimizer steps in a row that may be skipped because their gradient is not finite; one more ends the run."""
    freeze_params_name_list: tuple[str, ...] | None = None
    """Regular expressions, searched in parameter names; what they find is not trained."""
    only_train_params_name_list: tuple[str, ...] | None = None
    """Regular expressions, searched in parameter names; what none of them finds is not trained."""

    global_batch_size: int | None = None
    """Rollouts in an optimizer step. None: the whole rollout batch, one step a pass."""
    num_steps_per_rollout: int | None = None
    """Optimizer steps that a pass over the rollout batch is cut into, another way to say --global-batch-size: the rollouts
    divided by the steps. None: --global-batch-size says it."""
    micro_batch_size: int = 1
    """Samples in a micro-batch, when --use-dynamic-batch-size is off."""
    use_dynamic_batch_size: bool = False
    """Pack samples into micro-batches by --max-tokens-per-gpu rather than by number."""
    max_tokens_per_gpu: int | None = None
    """Tokens in a packed micro-batch, prompt and response together. A longer sample travels alone."""
    gradient_checkpointing: bool = False
    """Recompute each transformer block in the backward pass: less memory, about a third more time."""
    bf16: bool = False
    """Compute in bfloat16. Master weights, gradient reduction and optimizer stay in float32, and so does the value head."""
    dp_replicate_size: int = 1
    """Copies of the sharded model (HSDP): shards are spread over ranks / dp_replicate_size ranks, gradients are then averaged
    over the copies. 1 shards over all ranks."""
    fsdp_reshard_after_forward: bool = True
    """Free a transformer block's gathered parameters after its forward and gather them again for its backward. Off is faster
    and needs room for the whole model."""
    fsdp_cpu_offload: bool = False
    """Keep parameters, gradients and optimizer state in host memory and bring each block to the accelerator when it is used.
    Without an accelerator they are in host memory anyway."""
    fsdp_defer_grad_reduce: bool = True
    """Reduce gradients over the ranks once an optimizer step, after its last micro-batch. Off reduces after every micro-batch,
    which needs no room for the whole model's gradients."""

    def __post_init__(self) -> None:
        _require(self.lr >= 0, f"lr must not be negative, got {self.lr}")
        _require(self.lr_warmup_iters >= 0, f"lr_warmup_iters must not be negative, got {self.lr_warmup_iters}")
        _require(self.min_lr <= self.lr, f"min_lr is {self.min_lr}, more than lr, which is {self.lr}")
        for name in ("lr_decay_iters", "lr_wsd_decay_iters", "global_batch_size", "num_steps_per_rollout"):
            value = getattr(self, name)
            _require(value is None or value >= 1, f"{name} must be at least 1, got {value}")
        _require(self.clip_grad >= 0, f"clip_grad must not be negative (0 turns it off), got {self.clip_grad}")
        _require(self.max_skipped_steps >= 0, f"max_skipped_steps must not be negative, got {self.max_skipped_steps}")
        _require(0 <= self.adam_beta1 < 1, f"adam_beta1 must lie in [0, 1), got {self.adam_beta1}")
        _require(0 <= self.adam_beta2 < 1, f"adam_beta2 must lie in [0, 1), got {self.adam_beta2}")
        _require(self.dp_replicate_size >= 1, f"dp_replicate_size must be at least 1, got {self.dp_replicate_size}")
        for name in ("freeze_params_name_list", "only_train_params_name_list"):
            for expression in getattr(self, name) or ():
                _require(_is_regular_expression(expression), f"{name}: {expression!r} is not a regular expression")
        _require(self.micro_batch_size >= 1, f"micro_batch_size must be at least 1, got {self.micro_batch_size}")
        _require(
            not self.use_dynamic_batch_size or (self.max_tokens_per_gpu or 0) >= 1,
            "max_tokens_per_gpu is needed with use_dynamic_batch_size: the tokens that fit in a micro-batch, say 8192",
        )


@dataclass(frozen=True)
class PPOConfig:
    """What is optimised, and how often."""

    loss_type: Literal["policy_loss", "sft_loss", "custom_loss"] = "policy_loss"
    """policy_loss is PPO. sft_loss is supervised training of the actor on the data's own answers, without a critic. custom_loss
    is policy_loss, but for the actor's loss, which --custom-loss-function-path computes."""
    custom_loss_function_path: str | None = None
    """The actor's loss of your own, as module.function: (args, batch, logits, sum_of_sample_mean) -> (loss, metrics). It gets a
    micro-batch by slime's keys and its logits [1, tokens, vocabulary] in float32, before --rollout-temperature. They are built
    for this loss alone, and with their gradient they take 8 bytes x tokens of a micro-batch x vocabulary."""
    advantage_estimator: Literal["ppo", "grpo", "gspo", "cispo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"] = "ppo"
    """ppo: generalised advantage estimation with a critic (Schulman et al., arXiv 1506.02438). The others have no critic. grpo:
    the reward among the responses to its prompt (arXiv 2402.03300); gspo: the same with one ratio a response (2507.18071);
    cispo: the same with a clipped weight instead of a clipped loss (2506.13585). reinforce_plus_plus: discounted rewards;
    reinforce_plus_plus_baseline: rewards minus their prompt's mean (2501.03262)."""
    actor_update_steps: int = 1
    """Passes the actor makes over a rollout (PPO epochs)."""
    critic_update_steps: int = 1
    """K: passes the critic makes over a rollout for each pass of the actor. It never cuts a pass into more steps: that is
    --critic-global-batch-size."""
    critic_targets: Literal["frozen", "refreshed"] = "frozen"
    """frozen: values and returns from before the first pass anchor all K passes. refreshed: both are computed anew before each
    pass, as if it were an update of its own."""
    advantage_values: Literal["before-update", "after-update"] = "before-update"
    """Whose values the actor's advantages are made of: the critic's before its update, or after it, as in the SAO paper.
    Before: actor and critic train at the same time. After: the actor waits for the critic."""
    critic_holdout_fraction: float = 0.0
    """Share of a rollout's prompts that the critic does not train on, but is measured on after each pass: learning or
    memorising? At least one, drawn anew in each rollout. The actor trains on all."""
    num_critic_only_steps: int = 0
    """Rollouts at the start that train the critic only: the actor and its learning-rate clock stand still. As many as
    --num-rollout: a run that pretrains the critic."""
    eps_clip: float = 0.2
    """PPO clip: the probability ratio counts down to 1 - eps_clip."""
    eps_clip_high: float | None = None
    """PPO clip: the ratio counts up to 1 + eps_clip_high. None: --eps-clip."""
    eps_clip_c: float | None = None
    """Dual clip: with a negative advantage the loss is at most eps_clip_c times its size. Must exceed 1. None: off."""
    use_rollout_logprobs: bool = False
    """Take the rollout engine's log-probs as those from before the update, instead of computing them."""
    dis_eps_low: float | None = None
    """Double-sided mask of SAO (arXiv 2607.07508), in place of the PPO clip: only tokens whose ratio to the rollout policy lies
    between 1 - dis_eps_low and 1 + dis_eps_high are trained. Needs --use-rollout-logprobs. None: off."""
    dis_eps_high: float | None = None
    """Upper side of the double-sided mask, see --dis-eps-low. None: off."""
    use_tis: bool = False
    """Weigh the policy loss by the ratio of the policy before the update to the one that sampled (truncated importance
    sampling)."""
    tis_clip: float = 2.0
    """Largest importance weight."""
    tis_clip_low: float = 0.0
    """Smallest importance weight."""
    tis_mode: Literal["truncate", "icepop"] = "truncate"
    """What happens to a weight outside [tis_clip_low, tis_clip]. truncate: it is set to the bound. icepop: to 0 (arXiv
    2510.18855)."""
    custom_tis_function_path: str | None = None
    """Correction of your own, as module.function, in place of the weight: with slime's keyword arguments, returns the loss,
    masks and metrics. Needs --use-tis."""
    use_opsm: bool = False
    """Leave out tokens of negative advantage in responses that have become improbable (off-policy sequence masking)."""
    opsm_delta: float = 1e-4
    """How far, in mean log-prob a token, a response must have sunk for --use-opsm to leave it out."""
    value_clip: float | Literal["none"] = 0.2
    """A value moves at most this far from the value before the update before its loss stops falling. none: the plain squared
    error."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    use_kl_loss: bool = False
    """Add --kl-loss-coef times the KL divergence from the reference model to the policy loss."""
    kl_loss_coef: float = 0.0
    """Weight of the KL loss."""
    kl_loss_type: Literal["k1", "k2", "k3", "low_var_kl"] = "k1"
    """Estimator of the KL divergence per token (http://joschu.net/blog/kl-approx.html); low_var_kl is k3 within [-10, 10]."""
    use_unbiased_kl: bool = False
    """Multiply the KL estimate by the probability ratio, which makes its gradient unbiased off policy (arXiv 2512.02556)."""
    kl_coef: float = 0.0
    """KL penalty in the token rewards, of the actor's advantages and the critic's targets alike."""
    ref_load: str | None = None
    """Hugging Face checkpoint of the reference model. None: --hf-checkpoint."""
    gamma: float = 1.0
    """Discount per token."""
    lambd: float = 1.0
    """GAE lambda of the actor's advantages."""
    critic_lambd: float | None = None
    """GAE lambda of the critic's targets. None: --lambd."""
    lambd_alpha: float | None = None
    """Length-adaptive GAE: the actor's lambda is 1 - 1/(alpha * l) for a response of l trainable tokens. None: --lambd."""
    custom_advantage_function_path: str | None = None
    """Advantages and returns of your own, as module.function, in place of the estimator's: (args, rollout_data) -> None sets
    rollout_data["advantages"] and rollout_data["returns"], a tensor a sample. It is called once a rollout, after values and
    log-probs and before both updates: the critic trains on these returns. None: --advantage-estimator computes them."""
    normalize_advantages: bool = False
    """Shift and scale the advantages of a rollout to mean 0 and standard deviation 1 over its trainable tokens."""
    calculate_per_token_loss: bool = False
    """Average a step's loss over its tokens, rather than over its rollouts and within each over its tokens."""

    def __post_init__(self) -> None:
        _require(
            self.critic_update_steps >= 1,
            f"critic_update_steps must be at least 1, got {self.critic_update_steps}: the critic's passes over each rollout",
        )
        _require(self.actor_update_steps >= 1, f"actor_update_steps must be at least 1, got {self.actor_update_steps}")
        _require(
            self.num_critic_only_steps >= 0, f"num_critic_only_steps must not be negative, got {self.num_critic_only_steps}"
        )
        _require(
            0 <= self.critic_holdout_fraction < 1,
            f"critic_holdout_fraction must lie in [0, 1), got {self.critic_holdout_fraction}",
        )
        _require(self.eps_clip >= 0, f"eps_clip must not be negative, got {self.eps_clip}")
        _require(
            self.eps_clip_high is None or self.eps_clip_high >= 0,
            f"eps_clip_high must not be negative, got {self.eps_clip_high}",
        )
        _require(self.eps_clip_c is None or self.eps_clip_c > 1, f"eps_clip_c must exceed 1, got {self.eps_clip_c}")
        _require(self.value_clip == "none" or self.value_clip >= 0, f"value_clip must not be negative, got {self.value_clip}")
        _require(0 <= self.gamma <= 1, f"gamma must lie in [0, 1], got {self.gamma}")
        _require(0 <= self.lambd <= 1, f"lambd must lie in [0, 1], got {self.lambd}")
        _require(
            self.critic_lambd is None or 0 <= self.critic_lambd <= 1,
            f"critic_lambd must lie in [0, 1], got {self.critic_lambd}",
        )
        _require(self.lambd_alpha is None or self.lambd_alpha > 0, f"lambd_alpha must be positive, got {self.lambd_alpha}")
        _require(
            self.use_kl_loss or self.kl_loss_coef == 0,
            f"kl_loss_coef is {self.kl_loss_coef} but use_kl_loss is off: add --use-kl-loss, or leave the coefficient out",
        )
        self._check_estimator()
        self._check_off_policy()

        _require(
            (self.loss_type == "custom_loss") == (self.custom_loss_function_path is not None),
            "loss_type custom_loss and custom_loss_function_path need each other",
        )

    def _check_estimator(self) -> None:
        name = self.advantage_estimator
        _require(
            self.kl_coef == 0 or name not in ("grpo", "gspo", "cispo"),
            f"kl_coef is {self.kl_coef}, but advantage_estimator {name} has no token rewards to put a KL penalty in: "
            "use --use-kl-loss and --kl-loss-coef",
        )

        if self.custom_advantage_function_path is not None and self.uses_critic:
            _require(
                self.critic_targets == "frozen",
                "critic_targets refreshed computes returns anew before each pass, custom_advantage_function_path gives them "
                "once: leave one of the two out",
            )
            _require(
                self.advantage_values == "before-update",
                "advantage_values after-update computes advantages after the critic's update, custom_advantage_function_path "
                "gives them with the returns of that update: leave one of the two out",
            )

    def _check_off_policy(self) -> None:
        _require(
            (self.dis_eps_low is None) == (self.dis_eps_high is None),
            "dis_eps_low and dis_eps_high need each other: the two sides of one mask",
        )
        if self.dis_eps_low is not None and self.dis_eps_high is not None:
            _require(0 < self.dis_eps_low <= 1, f"dis_eps_low must lie in (0, 1], got {self.dis_eps_low}")
            _require(self.dis_eps_high > 0, f"dis_eps_high must be positive, got {self.dis_eps_high}")
            _require(
                self.use_rollout_logprobs,
                "dis_eps_low masks by the ratio to the rollout policy: add --use-rollout-logprobs",
            )
            _require(
                self.advantage_estimator not in ("gspo", "cispo") and self.eps_clip_c is None,
                "dis_eps_low takes the place of the clip: not with eps_clip_c, nor with advantage_estimator gspo or cispo",
            )
        _require(
            not (self.use_tis and self.use_rollout_logprobs),
            "use_tis corrects from the rollout engine's log-probs to the trainer's, which use_rollout_logprobs leaves out: "
            "give one of them",
        )
        _require(
            0 <= self.tis_clip_low <= self.tis_clip,
            f"tis_clip_low must lie between 0 and tis_clip, got {self.tis_clip_low} and {self.tis_clip}",
        )
        _require(
            self.use_tis or self.custom_tis_function_path is None,
            "custom_tis_function_path has no meaning without use_tis: add --use-tis",
        )
        _require(self.opsm_delta >= 0, f"opsm_delta must not be negative, got {self.opsm_delta}")

    @property
    def generates(self) -> bool:
        """Whether responses are generated, rather than given by the data."""
        return self.loss_type != "sft_loss"

    @property
    def uses_critic(self) -> bool:
        """Whether there is a value model."""
        return self.generates and self.advantage_estimator == "ppo"

    @property
    def reads_log_probs(self) -> bool:
        """Whether a function of the user's may read the log-probs from before the actor's update."""
        return self.generates and (self.custom_advantage_function_path or self.custom_loss_function_path) is not None

    @property
    def has_group_baseline(self) -> bool:
        """Whether rewards are taken relative to those of the other responses to their prompt."""
        return self.generates and self.advantage_estimator in GROUP_ESTIMATORS

    @property
    def uses_reference(self) -> bool:
        """Whether log-probs of a reference model are needed."""
        return self.generates and (self.use_kl_loss or self.kl_coef != 0)

    @property
    def uses_rollout_log_probs(self) -> bool:
        """Whether the update can't do without the rollout engine's log-probs."""
        return self.generates and (self.use_tis or self.use_rollout_logprobs)

    @property
    def critic_passes(self) -> int:
        """Passes of the critic over each rollout: K for each pass of the actor."""
        return self.critic_update_steps * self.actor_update_steps

    @property
    def rollouts_without_actor(self) -> int:
        """Rollouts at the start that train the critic alone."""
        return self.num_critic_only_steps if self.uses_critic else 0

    def trains_actor(self, rollout_id: int) -> bool:
        """Whether the actor trains on this rollout, rather than the critic alone."""
        return rollout_id >= self.rollouts_without_actor

    def needs_old_policy(self, rollout_id: int) -> bool:
        """Whether log-probs of the actor or its reference can be needed before the updates of this rollout."""
        return self.trains_actor(rollout_id) or self.kl_coef != 0

    def held_out(self, prompts: int) -> int:
        """How many of these prompts the critic does not train on."""
        # A product such as 0.29 * 100 falls short of its own value.
        return max(1, int(self.critic_holdout_fraction * prompts + 1e-9)) if self.critic_holdout_fraction else 0


@dataclass(frozen=True)
class TrainConfig:
    """All that a training process needs to know: both roles, the objective, and what the run fixes for them."""

    actor: RoleConfig
    critic: RoleConfig
    ppo: PPOConfig
    num_rollout: int
    """Rollouts in the run: the horizon of the critic's learning-rate clock; that of the actor's is those it trains on."""
    rollout_temperature: float = 1.0
    """Temperature the responses were sampled at; logits are divided by it before log-probs are taken."""
    seed: int = 1234
    """Seed of all randomness of training."""
    require_value_head: bool = False
    """Whether the critic's checkpoint must hold a value head, rather than getting a fresh one."""

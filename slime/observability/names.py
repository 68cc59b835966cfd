"""Every metric a run may write, declared once: its name, its unit and what it means."""

import re
from dataclasses import dataclass
from functools import cache

PHASES = (
    "generate",
    "generate_wait",
    "values",
    "log_probs",
    "critic_wait",
    "critic_update",
    "actor_update",
    "update_weights",
    "evaluate",
    "save",
    "rollout",
)
WHOLE_PHASE = "rollout"
CONCURRENT_PHASE = "critic_update"
"""Runs beside the others: the driver does not wait for it there."""

# A dataset name is the user's own and may hold a slash; passes are counted from one.
_PLACEHOLDERS = {"dataset": ".+", "name": ".+", "k": "[1-9][0-9]*", "n": "[1-9][0-9]*", "phase": "|".join(PHASES)}


@dataclass(frozen=True)
class Metric:
    """One declared metric; `pattern` may hold {dataset}, {name}, {k} (the critic's pass) or {phase}."""

    pattern: str
    unit: str
    meaning: str


def match(pattern: str, name: str) -> dict[str, str] | None:
    """Return what the pattern's placeholders stand for in `name`, or None where it is another metric's name."""
    found = _compiled(pattern).fullmatch(name)
    return found.groupdict() if found else None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    regex = re.escape(pattern)
    for placeholder, accepted in _PLACEHOLDERS.items():
        regex = regex.replace(re.escape(f"{{{placeholder}}}"), f"(?P<{placeholder}>{accepted})")
    return re.compile(regex)


_ROLLOUT = (
    Metric("rollout/reward", "reward", "mean reward of the rollout's samples"),
    Metric("rollout/reward_std", "reward", "standard deviation of the samples' rewards"),
    Metric("rollout/response_length", "tokens", "mean length of a response"),
    Metric("rollout/truncated", "fraction", "share of responses cut off at the length limit"),
    Metric("rollout/trainable_length", "tokens", "mean number of trainable tokens in a response: all but observations"),
    Metric("rollout/prompt_length", "tokens", "mean length of a prompt"),
    Metric("rollout/num_samples", "samples", "samples in the rollout"),
    Metric("rollout/dynamic_filter/drop_{name}", "groups", "groups that the dynamic sampling filter dropped, by its reason"),
    Metric(
        "rollout/staleness",
        "weight versions",
        "how far a sample's oldest token is behind the weights, mean",
    ),
    Metric("rollout/staleness_max", "weight versions", "the same of the oldest"),
    Metric(
        "rollout/stale_groups",
        "groups",
        "groups begun anew because they had become older than --max-staleness",
    ),
    Metric("rollout/put_back_groups", "groups", "groups begun and not used, which come again in a later rollout"),
    Metric("rollout/put_back_tokens", "tokens", "response tokens that those have already"),
    Metric("rollout/{name}", "as reported", "what a rollout function of one's own reports"),
)

_EVAL = (
    Metric("eval/{dataset}/reward", "reward", "mean reward on an evaluation set"),
    Metric("eval/{dataset}/response_length", "tokens", "mean length of a response on an evaluation set"),
    Metric("eval/{dataset}/truncated", "fraction", "share of an evaluation set's responses cut off at the length limit"),
    Metric("eval/{dataset}/pass@{n}", "fraction", "chance that one of n responses is right, where rewards are 0 or 1"),
    Metric("eval/{name}", "as reported", "what an evaluation function of one's own reports"),
)

_ACTOR = (
    Metric("train/loss", "loss", "the loss the actor's step minimises"),
    Metric("train/pg_loss", "loss", "policy-gradient loss, clipped, weighted or masked as asked"),
    Metric("train/pg_clipfrac", "fraction", "share of tokens whose policy ratio is clipped"),
    Metric("train/ppo_kl", "nats", "KL estimate between the policy that sampled and the policy being trained"),
    Metric("train/entropy", "nats", "mean entropy of the policy's next-token distribution"),
    Metric("train/kl_loss", "nats", "KL to the reference model, as added to the loss"),
    Metric(
        "train/train_rollout_logprob_abs_diff",
        "nats",
        "mean |rollout engine's log-prob - actor's, before its update (with --use-rollout-logprobs: now)|",
    ),
    Metric("train/sft_loss", "nats", "mean cross-entropy of a target token in a supervised run"),
    Metric("train/grad_norm", "norm", "actor's gradient norm before clipping"),
    Metric("train/lr", "rate", "actor's learning rate"),
    Metric("train/num_steps", "steps", "actor's optimizer steps taken"),
    Metric("train/skipped_steps", "steps", "actor's optimizer steps skipped because the gradient was not finite"),
    Metric("train/ois", "ratio", "mean probability ratio of the policy now to the policy before its update"),
    Metric("train/tis", "ratio", "mean probability ratio of the policy before its update to the one that sampled"),
    Metric("train/tis_clipfrac", "fraction", "share of tokens whose importance weight left its interval"),
    Metric("train/tis_abs", "ratio", "mean distance of the importance ratio from 1"),
    Metric("train/opsm_clipfrac", "fraction", "share of tokens left out because their response has become improbable"),
    Metric("train/custom_loss/{name}", "as reported", "what a loss of --custom-loss-function-path reports"),
    Metric("train/custom_tis/{name}", "as reported", "what a correction of --custom-tis-function-path reports"),
)

_CRITIC = (
    Metric("train/critic-lr", "rate", "critic's learning rate"),
    Metric("train/critic-num_steps", "steps", "critic's optimizer steps taken, over all passes"),
    Metric("train/critic-skipped_steps", "steps", "critic's optimizer steps skipped because the gradient was not finite"),
    Metric("train/critic-pass_{k}/value_loss", "loss", "clipped value loss of the critic's pass k"),
    Metric("train/critic-pass_{k}/value_clipfrac", "fraction", "share of tokens whose value is clipped in pass k"),
    Metric("train/critic-pass_{k}/grad_norm", "norm", "critic's gradient norm before clipping in pass k"),
    Metric("train/critic-pass_{k}/explained_variance_before", "fraction", "returns' variance explained before pass k"),
    Metric("train/critic-pass_{k}/explained_variance_after", "fraction", "returns' variance explained after pass k"),
    Metric(
        "train/critic-pass_{k}/holdout_explained_variance_before",
        "fraction",
        "the same before pass k, on samples never trained on",
    ),
    Metric(
        "train/critic-pass_{k}/holdout_explained_variance_after",
        "fraction",
        "the same after pass k, on samples never trained on",
    ),
    Metric("train/critic-pass_{k}/values_mean", "reward", "mean value of a token in pass k"),
    Metric("train/critic-pass_{k}/values_std", "reward", "standard deviation of the tokens' values in pass k"),
    Metric("train/critic-pass_{k}/returns_mean", "reward", "mean return of a token in pass k"),
    Metric("train/critic-pass_{k}/returns_std", "reward", "standard deviation of the tokens' returns in pass k"),
)

_SPEED = (
    Metric(
        "time/{phase}",
        "seconds",
        "wall time of a phase; `rollout` is the whole, `critic_wait` and `generate_wait` what the driver waited "
        "for the critic and for a rollout made meanwhile",
    ),
    Metric("time/engine_idle", "seconds", "in which the rollout engines had nothing to do"),
    Metric("perf/tokens_per_second", "tokens/s", "tokens generated or trained on for each second of the rollout"),
)

METRICS: tuple[Metric, ...] = _ROLLOUT + _EVAL + _ACTOR + _CRITIC + _SPEED


@cache
def find(name: str) -> Metric:
    """Return the declaration of the metric called `name`; raise ValueError where there is none."""
    for metric in METRICS:
        if match(metric.pattern, name) is not None:
            return metric
    raise ValueError(f"metric {name!r} is not declared in slime/observability/names.py")


def check(name: str) -> None:
    """Raise ValueError when no declared metric is called `name`."""
    find(name)

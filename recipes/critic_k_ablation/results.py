"""What the ablation's runs show: a picture, and a table, with 95 % confidence intervals over seeds."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray
from scipy.stats import sem, t

from slime.observability.writers import read_metrics

VALUES = ("before-update", "after-update")
CRITIC_LR = 1e-3


@dataclass(frozen=True)
class Arm:
    """What is compared."""

    k: int
    values: str
    critic_lr: float = CRITIC_LR

    @property
    def name(self) -> str:
        """In folder names."""
        return f"k{self.k}-{self.values}" + ("" if self.critic_lr == CRITIC_LR else f"-lr{self.critic_lr:g}")

    @property
    def label(self) -> str:
        """In the picture."""
        return f"K = {self.k}" + ("" if self.critic_lr == CRITIC_LR else f", critic's rate x {self.critic_lr / CRITIC_LR:g}")


ARMS = (
    *(Arm(k, values) for k in (1, 2, 4) for values in VALUES),
    # Would a faster critic by one pass do as well?
    Arm(1, "before-update", 4 * CRITIC_LR),
)
REWARD, EXPLAINED = "rollout/reward", "train/critic-pass_1/explained_variance_before"
_COLORS = {"K = 1": "#475569", "K = 2": "#2563eb", "K = 4": "#ea580c"}
_CONTROL = "#059669"

Curve = NDArray[np.float64]
"""A metric by rollout."""
Curves = dict[Arm, dict[int, Curve]]
"""By arm, by seed."""


def draw(folder: Path) -> str:
    """Write result.svg and result.md to `folder` from the runs there; returns the table."""
    reward, explained = curves(folder, REWARD), curves(folder, EXPLAINED)
    _picture(folder / "result.svg", reward, explained)
    text = table(reward, explained)
    (folder / "result.md").write_text(text + "\n")
    return text


def finished(run_dir: Path) -> bool:
    """Whether a run came to its end: its checkpoint is the last thing that it writes."""
    return (run_dir / "checkpoints" / "latest").exists()


def curves(folder: Path, metric: str) -> Curves:
    """A metric of every finished run."""
    found: Curves = {arm: {} for arm in ARMS}
    for arm, by_seed in found.items():
        for run in filter(finished, sorted(folder.glob(f"{arm.name}-seed*/"))):
            rows = read_metrics(run / "metrics.jsonl")
            by_seed[int(run.name.rpartition("seed")[2])] = np.array([row[metric] for row in rows])
    return found


def table(reward: Curves, explained: Curves) -> str:
    """Markdown: means over seeds, and differences to K = 1 seed by seed."""
    lines = [
        "| advantages of values | | seeds | mean reward | less that of K = 1 | reward, last 10 | less that of K = 1 | "
        "explained variance |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for arm in (arm for values in VALUES for arm in ARMS if arm.values == values and reward[arm]):
        base = Arm(1, arm.values)
        cells = [arm.values.removesuffix("-update"), arm.label, str(len(reward[arm]))]
        for part in (np.mean, _last):
            cells += [_mean(reward[arm], part), "" if arm == base else _difference(reward[arm], reward[base], part)]
        lines.append("| " + " | ".join([*cells, _mean(explained[arm], np.nanmean)]) + " |")
    return "\n".join(lines)


def _last(curve: Curve) -> np.float64:
    return np.float64(np.mean(curve[-10:]))


def _mean(by_seed: dict[int, Curve], part: Callable[..., Any]) -> str:
    numbers = np.array([part(curve) for curve in by_seed.values()])
    low, high = interval(numbers)
    return f"{numbers.mean():.3f} [{low:.3f}, {high:.3f}]"


def _difference(here: dict[int, Curve], base: dict[int, Curve], part: Callable[..., Any]) -> str:
    """Paired: one seed draws the same prompts, in the same order, for all arms."""
    numbers = np.array([part(here[seed]) - part(base[seed]) for seed in here.keys() & base.keys()])
    if not len(numbers):
        return ""
    low, high = interval(numbers)
    return f"{numbers.mean():+.3f} [{low:+.3f}, {high:+.3f}]"


def interval(numbers: NDArray[np.float64]) -> tuple[float, float]:
    """95 % confidence interval of the mean, by Student's t; NaN for fewer than two numbers."""
    if len(numbers) < 2:
        return float("nan"), float("nan")
    low, high = t.interval(0.95, len(numbers) - 1, numbers.mean(), sem(numbers) or 1e-12)
    return float(low), float(high)


def _picture(file: Path, reward: Curves, explained: Curves) -> None:
    matplotlib.rcParams["svg.hashsalt"] = "critic_k_ablation"
    figure, axes = plt.subplots(2, len(VALUES), figsize=(10, 6), layout="constrained", sharex=True, sharey="row")
    for column, values in enumerate(VALUES):
        for row, (metric, label) in enumerate(((reward, "reward"), (explained, "explained variance, before the update"))):
            for arm in (arm for arm in ARMS if arm.values == values and metric[arm]):
                _band(axes[row][column], metric[arm], arm)
            axes[row][column].grid(alpha=0.3)
            axes[row][0].set_ylabel(label)
        axes[0][column].set_title(f"advantages of values {values.replace('-', ' the ')}")
        axes[1][column].set(xlabel="rollout", ylim=(-0.2, 1))
    axes[0][0].legend()
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


def _band(axes: Any, by_seed: dict[int, Curve], arm: Arm) -> None:
    """Mean over seeds, and its confidence interval at each rollout."""
    stacked = np.stack(list(by_seed.values()))
    known = [column[~np.isnan(column)] for column in stacked.T]
    low, high = np.array([interval(numbers) for numbers in known]).T
    color = _COLORS.get(arm.label, _CONTROL)
    axes.plot(
        [numbers.mean() if len(numbers) else np.nan for numbers in known],
        color=color,
        label=f"{arm.label} ({len(by_seed)} seeds)",
    )
    axes.fill_between(range(len(known)), low, high, color=color, alpha=0.2, linewidth=0)

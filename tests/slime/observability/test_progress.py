"""The progress display."""

import io
import math
from collections.abc import Iterator

from rich.console import Console

from slime.observability.progress import Progress, summary_line

METRICS = {
    "rollout/reward": 0.4321,
    "eval/gsm8k/reward": 0.5,
    "train/critic-pass_1/explained_variance_before": 0.1,
    "train/critic-pass_1/explained_variance_after": 0.3,
    "train/critic-pass_2/explained_variance_before": 0.3,
    "train/critic-pass_2/explained_variance_after": 0.55,
    "train/critic-pass_1/value_loss": 0.21,
    "train/critic-pass_2/value_loss": 0.18,
    "train/skipped_steps": 0.0,
    "perf/tokens_per_second": 1234.6,
}


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def plain_console() -> tuple[Console, io.StringIO]:
    output = io.StringIO()
    return Console(file=output, force_terminal=False, width=40), output


def terminal_console() -> tuple[Console, io.StringIO]:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, force_interactive=True, width=120, _environ={"TERM": "xterm"})
    return console, output


def test_the_summary_shows_reward_critic_speed_and_time() -> None:
    assert summary_line(11, 60, METRICS, seconds_left=3723.0, seconds_elapsed=61.0) == (
        "rollout 12/60 | reward 0.432 | eval gsm8k 0.500 | explained variance 0.10 -> 0.55 | "
        "value loss 0.21 -> 0.18 | 1,235 tokens/s | elapsed 1:01 | left 1:02:03"
    )


def test_a_supervised_run_shows_its_loss_and_nothing_of_a_critic() -> None:
    line = summary_line(0, 5, {"train/sft_loss": 1.25}, seconds_left=None)
    assert line == "rollout 1/5 | sft loss 1.25"


def test_skipped_steps_of_actor_and_critic_are_called_out() -> None:
    line = summary_line(0, 5, {"train/skipped_steps": 1.0, "train/critic-skipped_steps": 2.0}, None)
    assert "SKIPPED STEPS 3" in line
    assert "SKIPPED" not in summary_line(0, 5, {"train/skipped_steps": 0.0}, None)


def test_a_metric_that_is_nan_is_shown_as_nan() -> None:
    assert "reward nan" in summary_line(0, 5, {"rollout/reward": math.nan}, None)


def test_an_explained_variance_of_returns_that_do_not_vary_says_so() -> None:
    line = summary_line(0, 5, METRICS | {"train/critic-pass_2/explained_variance_after": math.nan}, None)
    assert "explained variance 0.10 -> n/a (n/a: the returns measured do not vary) | value loss" in line


def test_without_a_terminal_each_rollout_is_one_unwrapped_line() -> None:
    console, output = plain_console()
    clock = Clock()
    with Progress(4, 2, console, clock) as progress:
        for rollout in range(2):
            progress.phase("generate")
            clock.now += 10.0
            progress.update(rollout, METRICS)
    lines = output.getvalue().splitlines()
    assert len(lines) == 2
    for line, number, left in zip(lines, (1, 2), ("0:30", "0:20"), strict=True):
        assert f"rollout {number}/4" in line
        assert "reward 0.432" in line
        assert "explained variance 0.10 -> 0.55" in line
        assert f"left {left}" in line


def test_the_first_rollouts_warm_up_does_not_lengthen_the_time_left() -> None:
    console, output = plain_console()
    clock = Clock()
    with Progress(12, 1, console, clock) as progress:
        for rollout, seconds in enumerate((100.0, 10.0)):
            clock.now += seconds
            progress.update(rollout, {})
    assert output.getvalue().splitlines()[-1].endswith("left 1:40")


def test_a_resumed_run_counts_from_its_first_rollout() -> None:
    console, output = plain_console()
    clock = Clock()
    with Progress(53, 1, console, clock) as progress:
        clock.now += 7.0
        progress.update(50, {})
    assert output.getvalue() == "rollout 51/53 | elapsed 0:07 | left 0:14\n"


def test_a_message_is_printed_as_it_is() -> None:
    console, output = plain_console()
    text = "saved [bold]to a path that is longer than the console is wide: 40 columns[/bold]"
    with Progress(4, 2, console) as progress:
        progress.print(text)
    assert output.getvalue() == text + "\n"


def test_a_terminal_shows_the_phase_the_summary_and_messages() -> None:
    console, output = terminal_console()
    clock = Clock()
    with Progress(4, 2, console, clock) as progress:
        progress.phase("critic_update")
        clock.now += 10.0
        progress.update(0, METRICS)
        progress.print("saved [1]")
    shown = output.getvalue()
    assert "critic update (2 passes)" in shown
    assert "explained variance 0.10 -> 0.55" in shown
    assert "saved [1]" in shown
    assert shown.index("saved [1]") < shown.rindex("rollout 1/4")


def test_the_terminal_display_ends_also_when_the_run_fails() -> None:
    console, output = terminal_console()
    display = Progress(4, 1, console)

    def fail() -> Iterator[None]:
        with display:
            yield
            raise RuntimeError("out of memory")

    failing = fail()
    next(failing)
    try:
        next(failing)
    except RuntimeError:
        display.print("after")
    assert "stopped" in output.getvalue()
    assert output.getvalue().endswith("after\n")


def test_the_phase_of_a_single_pass_is_not_counted() -> None:
    console, output = terminal_console()
    with Progress(4, 1, console) as progress:
        progress.phase("critic_update")
        progress.update(0, {})
    assert "critic update" in output.getvalue()
    assert "passes" not in output.getvalue()

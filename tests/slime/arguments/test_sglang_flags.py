"""Flags that are SGLang's own."""

from pathlib import Path

import pytest

from slime.arguments.notices import notices
from slime.arguments.parse import parse_arguments
from slime.observability.run_log import CONFIG_FILE, RunLog
from tests.slime.arguments.command_lines import parse, refusal, required


def test_they_are_kept_as_given_and_ours_with_the_same_beginning_are_not_among_them(checkpoint: Path) -> None:
    words = "--sglang-mem-fraction-static 0.7 --sglang-enable-metrics --lr 1e-3 --sglang_cuda_graph_bs 1 2 4 --sglang-x=-1"
    config = parse(checkpoint, *words.split(), "--sglang-server-concurrency", "3", "--sglang-python", "p")
    assert config.sglang == {
        "sglang_mem_fraction_static": ("0.7",),
        "sglang_enable_metrics": (),
        "sglang_cuda_graph_bs": ("1", "2", "4"),
        "sglang_x": ("-1",),
    }
    assert (config.actor.lr, config.rollout.sglang_server_concurrency, config.engine.sglang_python) == (1e-3, 3, "p")


def test_the_last_of_several_wins_and_no_takes_it_back(checkpoint: Path) -> None:
    assert parse(checkpoint, *["--sglang-x", "1", "2", "--sglang-x", "3"]).sglang == {"sglang_x": ("3",)}
    assert parse(checkpoint, *["--sglang-x", "1", "--no-sglang-x"]).sglang == {}


def test_the_command_line_wins_over_the_file(checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("sglang_x: [1, 2]\nsglang-y: true\nsglang_z: false\n")
    config = parse(checkpoint, "--config", str(file), "--sglang-x", "3")
    assert config.sglang == {"sglang_x": ("3",), "sglang_y": ()}


def test_the_config_that_a_run_writes_parses_back_to_the_same(checkpoint: Path, tmp_path: Path) -> None:
    words = "--rollout-engine sglang --sglang-a 0.7 --sglang-b --sglang-c 1 2 --rollout-external-engine-addrs a:1 b:2"
    config = parse(checkpoint, *words.split(), "--sglang-d", '{"a": 1}')
    RunLog(tmp_path, config.flags(), 3, 3)
    assert parse_arguments(["--config", str(tmp_path / CONFIG_FILE)]) == config


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--sglang-model-path", "--sglang-model-path follows --hf-checkpoint: give that"),
        ("--sglang-tp-size", "--sglang-tp-size follows --rollout-num-gpus-per-engine: give that"),
        ("--sglang-random-seed", "--sglang-random-seed follows --rollout-seed: give that"),
        ("--sglang-port=3", "--sglang-port is set by the run itself: leave it out"),
    ],
)
def test_what_the_run_decides_is_refused(checkpoint: Path, flag: str, message: str) -> None:
    assert refusal([*required(checkpoint), flag]) == message


def test_they_are_set_aside_where_the_engines_run_already(checkpoint: Path) -> None:
    words = "--rollout-engine sglang --rollout-external-engine-addrs a:1 --sglang-context-length 9"
    assert notices(parse(checkpoint, *words.split())) == ["--sglang-context-length set aside: no SGLang is started"]

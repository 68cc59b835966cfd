"""Bad input: one clear line, exit status 2, and no process started or folder made in vain."""

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

import slime.local.launch
from slime.rollout.manager import RolloutManager
from tests.end_to_end.runs import make_inputs, metrics_of, ppo_flags, run


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture
def nothing_may_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(config: object) -> None:
        raise AssertionError("something was started")

    monkeypatch.setattr(slime.local.launch, "launch", launch)


CASES = {
    "missing checkpoint": (["--hf-checkpoint", "nowhere"], ["--hf-checkpoint", "nowhere"]),
    "missing critic checkpoint": (["--critic-hf-checkpoint", "nowhere"], ["--critic-hf-checkpoint", "nowhere"]),
    "missing data": (["--prompt-data", "nowhere.jsonl"], ["--prompt-data", "nowhere.jsonl", "does not exist"]),
    "missing prompt column": (["--input-key", "question"], ["--prompt-data", "question", "label"]),
    "missing label column": (["--label-key", "truth"], ["--prompt-data", "truth"]),
    "prompt too long": (["--rollout-max-prompt-len", "4"], ["--prompt-data", "row 0", "tokens", "4"]),
    "response too long": (["--rollout-max-response-len", "128"], ["--rollout-max-response-len", "128"]),
    "no pass of the critic": (["--critic-update-steps", "0"], ["--critic-update-steps", "0"]),
    "batch that does not divide": (["--global-batch-size", "3"], ["--global-batch-size 3", "8 samples"]),
    "critic batch that does not divide": (["--critic-global-batch-size", "5"], ["--critic-global-batch-size 5"]),
    "unknown flag": (["--critic-update-step", "2"], ["--critic-update-step", "--critic-update-steps?"]),
    "reward that does not import": (["--custom-rm-path", "no.such.reward"], ["--custom-rm-path", "no.such.reward"]),
    "missing evaluation data": (
        ["--eval-interval", "1", "--eval-prompt-data", "held", "gone.jsonl"],
        ["--eval-prompt-data", "held", "gone.jsonl"],
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("nothing_may_start")
def test_bad_input_is_one_line_before_anything_starts(
    case: str, inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags, words = CASES[case]
    assert run(ppo_flags(inputs, tmp_path / "run", *flags)) == 2
    error = capsys.readouterr().err
    assert error.startswith("slime: error: ")
    assert error.count("\n") == 1
    for word in words:
        assert word in error
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("nothing_may_start")
def test_an_empty_data_set_is_refused(inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    assert run(ppo_flags(inputs, tmp_path / "run", "--prompt-data", str(tmp_path / "empty.jsonl"))) == 2
    assert "empty.jsonl holds no rows" in capsys.readouterr().err


@pytest.mark.usefixtures("nothing_may_start")
def test_a_folder_that_holds_a_run_is_left_alone(inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("precious")
    assert run(ppo_flags(inputs, tmp_path / "run")) == 2
    assert "--run-dir" in capsys.readouterr().err
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == "precious"


def test_a_checkpoint_that_lacks_a_tensor_is_one_line(inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(inputs / "model", tmp_path / "model")
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "model" / "model.safetensors")
    assert run(ppo_flags(inputs, tmp_path / "run", "--hf-checkpoint", str(tmp_path / "model"))) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("slime: error: ")
    assert "model.norm.weight" in error


@pytest.mark.parametrize(
    ("function", "words"),
    [("fails_on_sample_five", ["sample 5", "no such answer"]), ("is_not_a_number", ["sample 3", "nan"])],
)
def test_a_reward_that_raises_or_is_not_a_number_names_the_sample(
    function: str, words: list[str], inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = f"tests.end_to_end.runs.{function}"
    assert run(ppo_flags(inputs, tmp_path / "run", "--custom-rm-path", path)) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    for word in ["slime: error: ", path, *words]:
        assert word in error


def test_help_and_an_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    assert "train" in capsys.readouterr().out
    assert run(["trian"]) == 2
    assert "trian" in capsys.readouterr().err


def test_an_interrupt_is_one_line_and_leaves_what_was_recorded(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make = RolloutManager.make

    def interrupted(self: RolloutManager, rollout_id: int) -> object:
        if rollout_id == 2:
            raise KeyboardInterrupt
        return make(self, rollout_id)

    monkeypatch.setattr(RolloutManager, "make", interrupted)
    assert run(ppo_flags(inputs, tmp_path / "run")) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "slime: interrupted"
    assert [row["rollout"] for row in metrics_of(tmp_path / "run")] == [0, 1]
    assert (tmp_path / "run" / "report.html").is_file()

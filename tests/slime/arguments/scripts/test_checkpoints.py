"""Checkpoints in Megatron's format, where a launch script names them."""

from pathlib import Path

import pytest

from tests.slime.arguments.command_lines import parse, refusal, required


@pytest.fixture
def megatron(tmp_path: Path) -> Path:
    folder = tmp_path / "model_torch_dist"
    (folder / "iter_0000001").mkdir(parents=True)
    (folder / "latest_checkpointed_iteration.txt").write_text("1")
    return folder


def test_a_reference_in_megatrons_format_is_set_aside_where_no_gradient_depends_on_it(checkpoint: Path, megatron: Path) -> None:
    config = parse(checkpoint, "--use-kl-loss", "--ref-load", str(megatron))
    assert config.ppo.ref_load is None
    ((flag, why),) = config.script.set_aside
    assert flag == f"--ref-load {megatron}"
    assert "for the metric alone" in why


@pytest.mark.parametrize("flags", ["--use-kl-loss --kl-loss-coef 0.01", "--kl-coef 0.01"])
def test_a_reference_in_megatrons_format_is_an_error_where_it_counts(checkpoint: Path, megatron: Path, flags: str) -> None:
    message = refusal([*required(checkpoint), *flags.split(), "--ref-load", str(megatron)])
    assert message.startswith(f"--ref-load {megatron} is a Megatron checkpoint, which can't be read here: give a Hugging Face")


def test_a_converted_checkpoint_that_is_not_here_is_known_by_its_name(checkpoint: Path, tmp_path: Path) -> None:
    missing = str(tmp_path / "gone_torch_dist")
    assert parse(checkpoint, "--use-kl-loss", "--ref-load", missing).ppo.ref_load is None
    assert "is no folder" in refusal([*required(checkpoint), "--use-kl-loss", "--ref-load", str(tmp_path / "gone")])


def test_a_reference_that_can_be_read_is_read(checkpoint: Path) -> None:
    config = parse(checkpoint, "--use-kl-loss", "--ref-load", str(checkpoint))
    assert (config.ppo.ref_load, config.script.set_aside) == (str(checkpoint), ())


@pytest.mark.parametrize("flag", ["--load", "--save"])
def test_training_state_of_megatrons_is_not_taken_for_an_empty_folder(checkpoint: Path, megatron: Path, flag: str) -> None:
    message = refusal([*required(checkpoint), flag, str(megatron)])
    assert message == f"{flag} {megatron} holds a Megatron checkpoint, which can't be read here: give a new folder"

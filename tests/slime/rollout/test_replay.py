"""Samples written to disk and read again."""

import os
import pickle
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from slime.arguments.errors import UserError
from slime.rollout.replay import load_samples, save_samples
from slime.utils.types import PrefixCacheInfo, Sample, SpecInfo


def full_sample() -> Sample:
    """No field has its default."""
    return Sample(
        group_index=3,
        index=7,
        rollout_id=2,
        prompt=[{"role": "user", "content": "1 + 1"}],
        tokens=[1, 2, 3],
        response="é",
        response_length=2,
        label=["2", 2],
        reward={"acc": 1.0},
        loss_mask=[1, 0],
        weight_versions=["3", "4"],
        rollout_log_probs=[-0.5, -1e-7],
        remove_sample=True,
        status=Sample.Status.TRUNCATED,
        multimodal_inputs={"images": []},
        multimodal_train_inputs={"pixels": "x"},
        multimodal_train_input_id="a",
        apply_chat_template_kwargs={"thinking": True},
        rollout_top_p_token_ids=[1, 2],
        rollout_top_p_token_offsets=[0, 1, 2],
        rollout_routed_experts=[[1]],
        teacher_log_probs=[-1.0, -1.0],
        generate_function_path="a.b",
        custom_rm_path="a.c",
        train_metadata={"loss": "mine"},
        session_id="s",
        non_generation_time=0.5,
        spec_info=SpecInfo(1, 2, 3, 4),
        prefix_cache_info=PrefixCacheInfo(5, 6),
        metadata={"level": None, "hidden": torch.ones(2)},
    )


def pattern(folder: Path) -> str:
    return str(folder / "new" / "rollout_{rollout_id}.pt")


def refusal(folder: Path) -> str:
    """The one line about rollout 0 of the folder."""
    with pytest.raises(UserError) as caught:
        load_samples(pattern(folder), 0)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_field_comes_back(tmp_path: Path) -> None:
    saved, fresh = full_sample(), Sample(index=8)
    assert all(getattr(saved, field.name) != getattr(Sample(), field.name) for field in fields(Sample))
    save_samples(pattern(tmp_path), 5, [saved, fresh])
    loaded, other = load_samples(pattern(tmp_path), 5)
    assert torch.equal(loaded.metadata.pop("hidden"), saved.metadata.pop("hidden"))
    assert (loaded, other) == (saved, fresh)


def test_the_file_is_slimes(tmp_path: Path) -> None:
    save_samples(pattern(tmp_path), 5, [full_sample()])
    content = torch.load(tmp_path / "new" / "rollout_5.pt", weights_only=True)
    assert content["rollout_id"] == 5
    assert (content["samples"][0]["status"], content["samples"][0]["index"]) == ("truncated", 7)


def test_values_that_are_no_fields_become_attributes_and_are_kept(tmp_path: Path) -> None:
    save_samples(pattern(tmp_path), 0, [Sample.from_dict({**full_sample().to_dict(), "mine": {"accepted": 3}})])
    (loaded,) = load_samples(pattern(tmp_path), 0)
    assert (loaded.mine, loaded.index) == ({"accepted": 3}, 7)  # type: ignore[attr-defined]


class Code:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.folder,)


@pytest.mark.parametrize("dump", [torch.save, lambda content, file: file.write_bytes(pickle.dumps(content))])
def test_a_file_with_code_in_it_is_refused_and_runs_nothing(tmp_path: Path, dump: Any) -> None:
    (tmp_path / "new").mkdir()
    dump({"samples": [Code(tmp_path / "ran")]}, tmp_path / "new" / "rollout_0.pt")
    assert refusal(tmp_path).startswith(f"--load-debug-rollout-data {tmp_path / 'new' / 'rollout_0.pt'}: UnpicklingError")
    assert not (tmp_path / "ran").exists()


def test_a_file_that_is_missing_or_not_whole_is_named(tmp_path: Path) -> None:
    file = tmp_path / "new" / "rollout_0.pt"
    assert refusal(tmp_path).startswith(f"--load-debug-rollout-data {file}: FileNotFoundError")
    save_samples(pattern(tmp_path), 0, [full_sample()])
    whole = file.read_bytes()
    for length in (0, 1, 100, len(whole) // 2, len(whole) - 10):
        file.write_bytes(whole[:length])
        assert refusal(tmp_path).startswith(f"--load-debug-rollout-data {file}: ")


NO_SAMPLES = [{}, {"samples": 1}, {"samples": [[1]]}, {"samples": [{"index": 1}]}, {"samples": [{"status": "odd"}]}]


@pytest.mark.parametrize("content", [*NO_SAMPLES, [full_sample().to_dict()], torch.zeros(3)])
def test_a_file_of_something_else_is_named(tmp_path: Path, content: Any) -> None:
    (tmp_path / "new").mkdir()
    torch.save(content, tmp_path / "new" / "rollout_0.pt")
    assert refusal(tmp_path).startswith(f"--load-debug-rollout-data {tmp_path / 'new' / 'rollout_0.pt'}: ")


@pytest.mark.parametrize("value", [Path(), lambda: 0, object()])
def test_samples_that_hold_more_than_plain_values_are_refused_and_leave_the_file_as_it_was(tmp_path: Path, value: Any) -> None:
    save_samples(pattern(tmp_path), 0, [Sample(index=1)])
    with pytest.raises(UserError, match=r"^--save-debug-rollout-data .*rollout_0.pt: [^\n]*$"):
        save_samples(pattern(tmp_path), 0, [Sample(index=2, metadata={"value": value})])
    assert [sample.index for sample in load_samples(pattern(tmp_path), 0)] == [1]
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["rollout_0.pt"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "new").write_text("a file")
    with pytest.raises(UserError, match=r"^--save-debug-rollout-data .*rollout_0.pt: FileExistsError"):
        save_samples(pattern(tmp_path), 0, [Sample()])

"""Units of training state: what counts, what is replaced, what is deleted."""

from pathlib import Path
from typing import Any

import pytest

from slime.arguments.errors import UserError
from slime.arguments.groups import RunArgs
from slime.checkpoint import DriverState, begin, commit, newest


def unit(folder: Path, rollout_id: int, keep_last: int | None = None) -> Path:
    made = begin(run_args(folder), state(rollout_id))
    for role in made.state.roles:
        made.of_role(role).mkdir()
    commit(made, keep_last)
    return made.folder


def run_args(save: Path, **flags: Any) -> RunArgs:
    return RunArgs(num_rollout=1, save=str(save), **flags)


def state(rollout_id: int) -> DriverState:
    return DriverState(rollout_id, 2, {"actor": "actor", "critic": "critic"}, {"epoch_id": 1})


def test_the_newest_is_that_of_the_latest_rollout_and_comes_back_as_it_was(tmp_path: Path) -> None:
    for rollout_id in (9, 10, 100):
        unit(tmp_path, rollout_id)
    found = newest(tmp_path)
    assert found is not None
    assert found.folder.name == "rollout_000100"
    assert found.state == state(100)


def test_what_has_no_marker_does_not_count_and_is_replaced(tmp_path: Path) -> None:
    assert newest(tmp_path / "missing") is None
    unit(tmp_path, 3)
    torn = begin(run_args(tmp_path), state(4)).folder
    (torn / "half").write_text("written")
    found = newest(tmp_path)
    assert found is not None
    assert found.state.rollout_id == 3
    assert list(begin(run_args(tmp_path), state(4)).folder.iterdir()) == []


def test_a_committed_unit_is_never_replaced(tmp_path: Path) -> None:
    made = unit(tmp_path, 3)
    with pytest.raises(UserError, match=rf"^--save {made} is a committed checkpoint already"):
        begin(run_args(tmp_path), state(3))


def test_older_units_are_deleted_once_the_new_one_counts(tmp_path: Path) -> None:
    for rollout_id in range(4):
        unit(tmp_path, rollout_id, keep_last=2)
    begin(run_args(tmp_path), state(9))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rollout_000002", "rollout_000003", "rollout_000009"]


def test_a_folder_that_can_not_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"^--save .*rollout_000000 can't be written: ") as refused:
        begin(run_args(tmp_path / "file"), state(0))
    assert "\n" not in str(refused.value)

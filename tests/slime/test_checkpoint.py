"""Units of training state: what counts, what is replaced, what is deleted."""

from pathlib import Path

import pytest

from slime.arguments.errors import UserError
from slime.checkpoint import DriverState, begin, commit, newest


def unit(folder: Path, rollout_id: int, keep_last: int | None = None) -> Path:
    made = begin(folder, rollout_id)
    (made / "actor").mkdir()
    commit(made, DriverState(rollout_id, 2, ("actor", "critic"), {"epoch_id": 1}), keep_last)
    return made


def test_the_newest_is_that_of_the_latest_rollout_and_comes_back_as_it_was(tmp_path: Path) -> None:
    for rollout_id in (9, 10, 100):
        unit(tmp_path, rollout_id)
    found = newest(tmp_path)
    assert found is not None
    assert found.folder.name == "rollout_000100"
    assert found.state == DriverState(100, 2, ("actor", "critic"), {"epoch_id": 1})


def test_what_has_no_marker_does_not_count_and_is_replaced(tmp_path: Path) -> None:
    assert newest(tmp_path / "missing") is None
    unit(tmp_path, 3)
    torn = begin(tmp_path, 4)
    (torn / "half").write_text("written")
    found = newest(tmp_path)
    assert found is not None
    assert found.state.rollout_id == 3
    assert list(begin(tmp_path, 4).iterdir()) == []


def test_a_committed_unit_is_never_replaced(tmp_path: Path) -> None:
    made = unit(tmp_path, 3)
    with pytest.raises(UserError, match=rf"^--save {made} is a committed checkpoint already"):
        begin(tmp_path, 3)


def test_older_units_are_deleted_once_the_new_one_counts(tmp_path: Path) -> None:
    for rollout_id in range(4):
        unit(tmp_path, rollout_id, keep_last=2)
    begin(tmp_path, 9)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rollout_000002", "rollout_000003", "rollout_000009"]


def test_a_folder_that_can_not_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"^--save .*rollout_000000 can't be written: ") as refused:
        begin(tmp_path / "file", 0)
    assert "\n" not in str(refused.value)

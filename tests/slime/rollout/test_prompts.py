"""Several data sets, interleaved."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from slime.rollout.data_source import RolloutDataSourceWithBuffer
from tests.slime.rollout.test_data_source import prompts, source

SIZES = {"a": 3, "b": 12}


def mixed(folder: Path, weights: tuple[float, ...] | None = None, **settings: Any) -> RolloutDataSourceWithBuffer:
    """Prompts a0 to a2 and b0 to b11, from two files."""
    for name, size in SIZES.items():
        rows = ({"input": f"{name}{i}"} for i in range(size))
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    paths = tuple(str(folder / f"{name}.jsonl") for name in SIZES)
    return source(folder, prompt_data=paths, prompt_data_weights=weights, **settings)


@pytest.mark.parametrize(("weights", "share"), [(None, 3 / 15), ((1.0, 1.0), 1 / 2), ((30.0, 10.0), 3 / 4)])
def test_each_data_set_has_its_turn_by_weight_or_by_its_rows(
    tmp_path: Path, weights: tuple[float, ...] | None, share: float
) -> None:
    taken = prompts(mixed(tmp_path, weights).get_samples(2000))
    assert sum(text.startswith("a") for text in taken) / 2000 == pytest.approx(share, abs=0.03)


def test_each_goes_through_its_own_epochs_in_its_own_order(tmp_path: Path) -> None:
    taken = prompts(mixed(tmp_path, (1.0, 2.0), rollout_shuffle=True).get_samples(300))
    for name, size in SIZES.items():
        own = [text for text in taken if text.startswith(name)]
        epochs = [own[start : start + size] for start in range(0, len(own) - size, size)]
        assert all(len(set(epoch)) == size for epoch in epochs)
        assert len({tuple(epoch) for epoch in epochs}) > 1


def test_the_sequence_depends_on_the_seed_and_not_on_the_size_of_the_rollouts(tmp_path: Path) -> None:
    def taken(seed: int, *sizes: int) -> list[str]:
        data = mixed(tmp_path, rollout_seed=seed)
        return [text for size in sizes for text in prompts(data.get_samples(size))]

    assert taken(1, 40) == taken(1, 10, 25, 5)
    assert Counter(taken(1, 40)) != Counter(taken(2, 40))


def test_it_goes_on_exactly_where_it_stood(tmp_path: Path) -> None:
    data = mixed(tmp_path, rollout_shuffle=True)
    data.get_samples(23)
    state = json.loads(json.dumps(data.state_dict()))
    again = mixed(tmp_path, rollout_shuffle=True)
    again.load_state_dict(state)
    assert again.get_samples(50) == data.get_samples(50)


def test_other_data_is_refused(tmp_path: Path) -> None:
    state = source(tmp_path).state_dict()
    with pytest.raises(ValueError, match="names 2 data sets, the checkpoint was written with 1"):
        mixed(tmp_path).load_state_dict(state)

"""Where a rollout's prompts come from."""

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recipes.quickstart.tokenizer import build_tokenizer
from slime.arguments.errors import UserError
from slime.rollout.data_source import RolloutDataSourceWithBuffer
from slime.utils.types import Sample
from tests.slime.rollout import hooks
from tests.slime.rollout.hooks import HOOKS

PROMPTS = ["a", "b", "c", "d", "e"]


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    hooks.seen.clear()


def source(folder: Path, **settings: Any) -> RolloutDataSourceWithBuffer:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"input": text, "metadata": {"n": [1]}}) + "\n" for text in PROMPTS))
    args = {
        "loss_type": "policy_loss",
        "prompt_data": str(path),
        "tokenizer": build_tokenizer(),
        "rollout_max_prompt_len": None,
        "input_key": "input",
        "label_key": None,
        "metadata_key": "metadata",
        "apply_chat_template": False,
        "rollout_seed": 42,
        "rollout_shuffle": False,
        "n_samples_per_prompt": 2,
        "prompt_data_weights": None,
        "buffer_filter_path": None,
        "save": str(folder),
        "load": str(folder),
        **settings,
    }
    return RolloutDataSourceWithBuffer(SimpleNamespace(**args))


def prompts(groups: list[list[Any]]) -> list[Any]:
    return [group[0].prompt for group in groups]


def test_prompts_come_in_order_and_start_again_after_the_last(tmp_path: Path) -> None:
    data = source(tmp_path)
    assert [prompts(data.get_samples(3)) for _ in range(4)] == [list("abc"), list("dea"), list("bcd"), list("eab")]
    assert prompts(data.get_samples(12)) == list("cdeabcdeabcd")
    assert len(data) == 5


def test_each_group_holds_copies_of_one_prompt_that_are_independent(tmp_path: Path) -> None:
    (first, second), _ = source(tmp_path).get_samples(2)
    assert (first.prompt, first.metadata) == (second.prompt, second.metadata)
    first.metadata["n"].append(2)
    first.tokens.append(1)
    assert (second.metadata, second.tokens) == ({"n": [1]}, [])


def test_what_a_plug_in_does_to_a_sample_does_not_reach_the_next_epoch(tmp_path: Path) -> None:
    data = source(tmp_path)
    data.get_samples(5)[0][0].metadata["n"].append(2)
    assert data.get_samples(1)[0][0].metadata == {"n": [1]}


def test_samples_and_groups_are_numbered_through_the_whole_run(tmp_path: Path) -> None:
    data = source(tmp_path)
    groups = data.get_samples(4) + data.get_samples(4)
    assert [sample.index for group in groups for sample in group] == list(range(16))
    assert [sample.group_index for group in groups for sample in group] == [i // 2 for i in range(16)]


def test_with_shuffling_every_epoch_holds_every_prompt_once_in_an_order_of_its_own(tmp_path: Path) -> None:
    data = source(tmp_path, rollout_shuffle=True)
    epochs = [prompts(data.get_samples(5)) for _ in range(6)]
    assert all(sorted(epoch) == PROMPTS for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 3


def test_the_order_depends_on_the_seed_and_not_on_the_size_of_the_rollouts(tmp_path: Path) -> None:
    def order(seed: int, *sizes: int) -> list[Any]:
        data = source(tmp_path, rollout_shuffle=True, rollout_seed=seed)
        return [prompt for size in sizes for prompt in prompts(data.get_samples(size))]

    assert order(1, 12) == order(1, 3, 3, 3, 3) == order(1, 7, 5)
    assert order(1, 12) != order(2, 12)


def test_supervised_prompts_stay_messages(tmp_path: Path) -> None:
    settings = {"apply_chat_template": True, "n_samples_per_prompt": 1}
    assert prompts(source(tmp_path, **settings).get_samples(1)) == ["<|user|>a<|end|><|assistant|>"]
    assert prompts(source(tmp_path, **settings, loss_type="sft_loss").get_samples(1)) == ["a"]


def numbers(groups: list[list[Any]]) -> list[Any]:
    return [group[0].group_index for group in groups]


def test_groups_that_were_put_back_come_first_and_are_counted_in(tmp_path: Path) -> None:
    data = source(tmp_path)
    first = data.get_samples(3)
    data.add_samples([first[2], first[0]])
    assert data.get_buffer_length() == 2
    assert numbers(data.get_samples(1)) == [2]
    assert numbers(data.get_samples(3)) == [0, 3, 4]
    assert data.get_buffer_length() == 0


def test_a_buffer_filter_chooses_what_comes_again(tmp_path: Path) -> None:
    data = source(tmp_path, buffer_filter_path=f"{HOOKS}.takes_the_last")
    groups = data.get_samples(3)
    data.add_samples(groups)
    assert numbers(data.get_samples(2)) == [2, 1]
    assert hooks.seen == [("takes_the_last", None, 2)]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("leaves_it_in", "must take what it returns out of the buffer, but left samples 0 to 1"),
        ("takes_too_many", "must return at most 1 groups, not 2"),
        ("returns_samples", "must give a list of groups"),
        ("fails", r"raised: KeyError: 'oops' \(hooks.py, line \d+\)"),
    ],
)
def test_a_buffer_filter_that_fails_is_named(tmp_path: Path, name: str, reason: str) -> None:
    data = source(tmp_path, buffer_filter_path=f"{HOOKS}.{name}")
    data.add_samples(data.get_samples(2))
    with pytest.raises(UserError, match=f"^--buffer-filter-path {HOOKS}.{name} {reason}"):
        data.get_samples(1)


def test_what_is_no_group_is_not_put_back(tmp_path: Path) -> None:
    data = source(tmp_path)
    (group,) = data.get_samples(1)
    with pytest.raises(UserError, match=r"groups of --n-samples-per-prompt 2, not of 1 \(sample 0\)"):
        data.add_samples([group[:1]])
    with pytest.raises(UserError, match="add_samples must give a list of groups"):
        data.add_samples(group)  # type: ignore[arg-type]


def partial_groups(data: RolloutDataSourceWithBuffer) -> list[list[Sample]]:
    """Two groups: one begun, one with a sample of which a generate function has made two."""
    begun, other = data.get_samples(2)
    begun[0].tokens = [1, 2]
    begun[0].append_response_tokens(
        tokens=[3, 4], log_probs=[-0.1, -1e-17], meta_info={"finish_reason": {"type": "abort"}, "weight_version": "5"}, text="é"
    )
    begun[0].append_response_tokens(tokens=[5], trainable=False)
    begun[1].status, begun[1].reward = Sample.Status.COMPLETED, {"acc": 1.0}
    other[1] = [other[1], copy.deepcopy(other[1])]  # type: ignore[call-overload]
    return [begun, other]


def test_buffer_and_place_come_back_exactly_from_json(tmp_path: Path) -> None:
    data = source(tmp_path, rollout_shuffle=True)
    data.get_samples(4)
    data.add_samples(partial_groups(data))
    state = json.loads(json.dumps(data.state_dict()))
    again = source(tmp_path, rollout_shuffle=True)
    again.load_state_dict(state)
    assert again.buffer == data.buffer
    assert again.buffer[0][0].status == Sample.Status.ABORTED
    assert again.get_samples(9) == data.get_samples(9)


@pytest.mark.parametrize(
    ("metadata", "where"),
    [
        ({"pair": (1, 2)}, r"metadata\['pair'\] holds a tuple"),
        ({"deep": [{"set": {1}}]}, r"metadata\['deep'\]\['set'\] holds a set"),
        ({3: "x"}, "metadata has the key 3"),
    ],
)
def test_what_json_would_change_is_refused_with_the_samples_name(tmp_path: Path, metadata: dict[Any, Any], where: str) -> None:
    data = source(tmp_path)
    data.add_samples(data.get_samples(2))
    data.buffer[1][0].metadata = metadata
    with pytest.raises(UserError, match=f"^sample 2 in the buffer: {where}"):
        data.state_dict()


def test_a_class_derived_from_it_can_save_and_load_by_itself(tmp_path: Path) -> None:
    data = source(tmp_path)
    data.add_samples(data.get_samples(3))
    data.save(7)
    again = source(tmp_path)
    again.load(7)
    assert again.get_samples(5) == data.get_samples(5)


def test_data_that_has_become_shorter_is_refused(tmp_path: Path) -> None:
    data = source(tmp_path)
    data.get_samples(4)
    state = data.state_dict()
    path = str(tmp_path / "prompts.jsonl@[:3]")
    with pytest.raises(ValueError, match="has 3 rows, the checkpoint stands at row 4: other data"):
        source(tmp_path, prompt_data=path).load_state_dict(state)

"""Where a rollout's prompts come from."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from recipes.quickstart.tokenizer import build_tokenizer
from slime.rollout.data_source import RolloutDataSourceWithBuffer

PROMPTS = ["a", "b", "c", "d", "e"]


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

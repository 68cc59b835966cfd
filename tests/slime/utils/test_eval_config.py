"""Settings of evaluation data sets."""

from types import SimpleNamespace
from typing import Any

import pytest

from slime.utils.eval_config import EvalDatasetConfig, build_eval_dataset_configs, ensure_dataset_list
from tests.slime.rollout.runs import default_args


def resolved(entry: dict[str, Any], defaults: dict[str, Any] | None = None, **flags: Any) -> EvalDatasetConfig:
    (config,) = build_eval_dataset_configs(default_args(**flags), [{"name": "a", "path": "a.jsonl", **entry}], defaults or {})
    return config


def test_the_data_set_wins_over_defaults_over_eval_flags_over_rollout_flags() -> None:
    flags: dict[str, Any] = {"rollout_temperature": 0.1}
    assert resolved({}, **flags).temperature == 0.1
    flags["eval_temperature"] = 0.2
    assert resolved({}, **flags).temperature == 0.2
    assert resolved({}, {"temperature": 0.3}, **flags).temperature == 0.3
    assert resolved({"temperature": 0}, {"temperature": 0.3}, **flags).temperature == 0


FALLBACKS = [
    ("top_p", "rollout_top_p", 0.5, 0.25),
    ("top_k", "rollout_top_k", 1, 2),
    ("max_response_len", "rollout_max_response_len", 1, 2),
    ("input_key", "input_key", "x", "y"),
    ("label_key", "label_key", "x", "y"),
]


@pytest.mark.parametrize(("name", "fallback", "value", "own"), FALLBACKS)
def test_every_setting_has_its_own_flags(name: str, fallback: str, value: Any, own: Any) -> None:
    assert getattr(resolved({}, **{fallback: value}), name) == value
    assert getattr(resolved({}, **{fallback: value, f"eval_{name}": own}), name) == own


def test_a_request_asks_for_what_is_set() -> None:
    params = resolved({"stop": ["x"], "repetition_penalty": 1.1}, eval_min_new_tokens=2, eval_top_k=3).sampling_params()
    assert params["stop"] == ["x"]
    assert (params["repetition_penalty"], params["min_new_tokens"], params["top_k"]) == (1.1, 2, 3)
    assert not {"repetition_penalty", "min_new_tokens"} & resolved({}).sampling_params().keys()


def test_rows_get_the_reward_type_and_the_overrides() -> None:
    config = resolved({"rm_type": "math", "metadata_overrides": {"level": 5}})
    assert config.inject_metadata({"level": 1, "hint": "h"}) == {"level": 5, "hint": "h", "rm_type": "math"}
    assert EvalDatasetConfig("a", "b").inject_metadata(None) == {}


def test_data_sets_come_as_a_list_or_by_name() -> None:
    entries = [{"name": "a", "path": "x"}]
    assert ensure_dataset_list(entries) == ensure_dataset_list({"a": {"path": "x"}}) == entries
    for wrong in (None, "a", [1]):
        with pytest.raises(ValueError, match="datasets must be a list of mappings"):
            ensure_dataset_list(wrong)


@pytest.mark.parametrize(
    ("entries", "defaults", "reason"),
    [
        ([{"name": "a", "path": "x", "tempertaure": 1}], {}, "data set a has unknown keys: tempertaure"),
        ([{"name": "a", "path": "x"}], {"name": "b"}, "defaults has unknown keys: name"),
        ([{"name": "a"}], {}, "data set a has no path"),
        ([{"path": "x"}], {}, "data set 0 has no name"),
        ([{"name": "a", "path": "x"}] * 2, {}, "the name a is given twice"),
        ([{"name": "a", "path": "x", "temperature": -1}], {}, "data set a: temperature must be a number of at least 0, got -1"),
        ([{"name": "a", "path": "x"}], {"n_samples_per_eval_prompt": 0}, "n_samples_per_eval_prompt must be an integer"),
        ([{"name": "a", "path": "x", "top_p": 1.5}], {}, "top_p must be a number in"),
    ],
)
def test_what_is_wrong_is_named(entries: list[dict[str, Any]], defaults: dict[str, Any], reason: str) -> None:
    args: SimpleNamespace = default_args()
    with pytest.raises(ValueError, match=reason):
        build_eval_dataset_configs(args, entries, defaults)

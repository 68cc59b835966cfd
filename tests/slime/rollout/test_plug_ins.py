"""Every plug-in by slime's signature: what it is called with, what its answer does, and how it is named when it fails."""

import json
from pathlib import Path
from typing import Any

import pytest

from slime.arguments.errors import UserError
from slime.rollout.manager import RolloutManager
from tests.slime.backends.embedded.engines import save_chat_model
from tests.slime.rollout import hooks
from tests.slime.rollout.hooks import HOOKS
from tests.slime.rollout.runs import manager, write_prompts

GENERATE = "--custom-generate-function-path"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_chat_model(tmp_path_factory.mktemp("plug_ins") / "model")


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    hooks.seen.clear()


def own(model: Path, folder: Path, *flags: str, generate: str = "scripted") -> RolloutManager:
    """Two prompts, two responses each; `name=value` stands for a plug-in of hooks.py."""
    words = [f"{HOOKS}.{word[1:]}" if word.startswith("@") else word for word in flags]
    return manager(model, write_prompts(folder), GENERATE, f"{HOOKS}.{generate}", *words)


def evaluated(model: Path, folder: Path, *flags: str, **settings: str) -> dict[str, float]:
    prompts = write_prompts(folder)
    return own(model, folder, "--eval-interval", "1", "--eval-prompt-data", "all", str(prompts), *flags, **settings).evaluate(0)


def refused(work: Any) -> str:
    with pytest.raises(UserError) as caught:
        work()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_generate_function_learns_whether_it_is_for_evaluation_if_it_asks(model: Path, tmp_path: Path) -> None:
    own(model, tmp_path, generate="knows_evaluation").generate(0)
    assert hooks.seen == [False] * 4
    evaluated(model, tmp_path, generate="knows_evaluation")
    assert hooks.seen[4:] == [True] * 6


def test_samples_made_of_one_are_one_rollout(model: Path, tmp_path: Path) -> None:
    batch, metrics = own(model, tmp_path, generate="makes_three").generate(0)
    assert batch.rollout_index.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert batch.sample_index.tolist()[:6] == [1000, 1001, 0, 990, 991, 1]
    assert batch.reward.tolist() == [0.0, 1.0, 2.0] * 4
    assert metrics["rollout/num_samples"] == 12


def test_samples_made_of_one_each_get_a_reward_if_they_have_none(model: Path, tmp_path: Path) -> None:
    batch, _ = own(model, tmp_path, "--custom-rm-path", "@seven", generate="leaves_the_rewards_of_two").generate(0)
    assert batch.reward.tolist() == [7.0] * 8


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("makes_strangers", r"returned rollout_ids \['.*'\] for sample \d: siblings must share one"),
        ("makes_none", r"must return a Sample or a list of Samples for sample \d, not list \[\]"),
        ("fails", r"raised on sample \d: KeyError: 'oops' \(hooks.py, line \d+\)"),
        ("answers_text", r"must return a Sample or a list of Samples for sample \d, not str text"),
    ],
)
def test_a_generate_function_that_fails_is_named(model: Path, tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(UserError, match=rf"^{GENERATE} {HOOKS}.{name} {reason}"):
        own(model, tmp_path, generate=name).generate(0)


def test_a_group_is_rewarded_at_once(model: Path, tmp_path: Path) -> None:
    flags = ["--group-rm", "--custom-rm-path", "@ranks"]
    batch, _ = own(model, tmp_path, *flags, generate="leaves_the_reward").generate(0)
    assert (batch.reward.tolist(), sorted(hooks.seen)) == ([0.0, 1.0, 0.0, 1.0], [[0, 1], [2, 3]])
    hooks.seen.clear()
    batch, _ = own(model, tmp_path, *flags, generate="leaves_the_rewards_of_two").generate(0)
    assert (batch.reward.tolist(), sorted(hooks.seen)) == ([0.0, 1.0, 2.0, 3.0] * 2, [[0, 0, 1, 1], [2, 2, 3, 3]])


def test_a_sample_may_bring_its_own_generate_and_reward_function(model: Path, tmp_path: Path) -> None:
    both = own(model, tmp_path)
    assert both.data_source is not None
    groups = both.data_source.get_samples(2)
    groups[0][0].generate_function_path = f"{HOOKS}.leaves_the_reward"
    groups[0][0].custom_rm_path = f"{HOOKS}.seven"
    both.data_source.add_samples(groups)
    assert both.generate(0)[0].reward.tolist() == [7.0, 1.0, 2.0, 3.0]
    groups = both.data_source.get_samples(2)
    groups[1][1].generate_function_path = f"{HOOKS}.fails"
    both.data_source.add_samples(groups)
    assert refused(lambda: both.generate(1)).startswith(
        f"generate_function_path of sample 7 {HOOKS}.fails raised on sample 7: "
    )


def test_hooks_see_each_sample_in_turn_before_its_reward(model: Path, tmp_path: Path) -> None:
    flags = ["--rollout-sample-hook-path", "@marks", "--rollout-sample-hook-path", "@doubles"]
    rollouts = own(model, tmp_path, *flags)
    output = rollouts.rollout_function(rollouts.args, 5, rollouts.data_source)
    samples = [sample for group in output.samples for sample in group]
    assert [sample.reward for sample in samples] == [0.0, 2.0, 4.0, 6.0]
    assert [sample.metadata["marked"] for sample in samples] == [[5, False]] * 4
    fanned, _ = own(model, tmp_path, *flags, generate="makes_three").generate(0)
    assert fanned.reward.tolist() == [0.0, 2.0, 4.0] * 4


def test_a_filter_chooses_the_groups_and_its_reasons_are_counted(model: Path, tmp_path: Path) -> None:
    rollouts = own(model, tmp_path, "--dynamic-sampling-filter-path", "@keeps_even_groups")
    batch, metrics = rollouts.generate(0)
    assert sorted(set((batch.sample_index // 2 % 2).tolist())) == [0]
    assert (len(batch), metrics["rollout/dynamic_filter/drop_odd_group"] >= 1) == (4, True)


def test_a_filter_may_answer_with_a_bool(model: Path, tmp_path: Path) -> None:
    batch, metrics = own(model, tmp_path, "--dynamic-sampling-filter-path", "@is_even").generate(0)
    assert (len(batch), "rollout/dynamic_filter/drop_no_reason" in metrics) == (4, True)


def test_a_filter_may_give_in_where_another_round_would_be_needed(model: Path, tmp_path: Path) -> None:
    flags = ["--dynamic-sampling-filter-path", "@keeps_none_if_possible", "--over-sampling-batch-size", "5"]
    batch, metrics = own(model, tmp_path, *flags).generate(0)
    assert (len(batch), metrics["rollout/dynamic_filter/drop_never"]) == (4, 3.0)


def test_kept_groups_and_all_groups_are_shown(model: Path, tmp_path: Path) -> None:
    flags = ["--rollout-sample-filter-path", "@removes_the_first", "--rollout-all-samples-process-path", "@counts"]
    batch, _ = own(model, tmp_path, *flags).generate(0)
    assert batch.loss_mask.tolist() == [0, 0, 1, 1, 1, 1, 1, 1]
    assert hooks.seen == [([0, 1], "RolloutDataSourceWithBuffer")]


def test_rewards_are_post_processed_and_reported_raw(model: Path, tmp_path: Path) -> None:
    batch, metrics = own(model, tmp_path, "--custom-reward-post-process-path", "@negated").generate(0)
    assert (batch.reward.tolist(), metrics["rollout/reward"]) == ([0.0, -1.0, -2.0, -3.0], 1.5)


def test_train_data_may_be_made_by_a_function(model: Path, tmp_path: Path) -> None:
    batch, metrics = own(model, tmp_path, "--custom-convert-samples-to-train-data-path", "@converts").generate(0)
    assert (batch.reward.tolist(), batch.rollout_index.tolist()) == ([9.0] * 4, [0] * 4)
    assert (batch.response_lengths.tolist(), metrics["rollout/reward"]) == ([1] * 4, 3.0)


def test_a_log_function_may_add_to_the_metrics_or_replace_them(model: Path, tmp_path: Path) -> None:
    flags = ["--custom-rollout-log-function-path", "@logs", "--rollout-function-path", "@reports"]
    rollouts = own(model, tmp_path, *flags)
    _, metrics = rollouts.generate(0)
    assert (metrics["rollout/turns"], metrics["rollout/tools"], metrics["rollout/added"]) == (3.0, 1.0, 4.0)
    assert rollouts.generate(1)[1] == {}
    extra = {"turns": 3, "rollout/tools": 1}
    assert hooks.seen == [(0, 4, extra, True), (1, 4, extra, True)]


def test_a_log_function_may_replace_the_metrics_of_an_evaluation(model: Path, tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path)
    flags = ["--eval-interval", "1", "--eval-prompt-data", "all", str(prompts)]
    rollouts = own(model, tmp_path, *flags, "--custom-eval-rollout-log-function-path", "@logs_evaluation")
    assert set(rollouts.evaluate(0)) == {"eval/all/reward", "eval/all/truncated", "eval/all/response_length"}
    assert rollouts.evaluate(1) == {}
    assert hooks.seen == [(0, ["all"]), (1, ["all"])]


def test_an_evaluation_function_of_ones_own_may_report_what_it_likes(model: Path, tmp_path: Path) -> None:
    metrics = evaluated(model, tmp_path, "--eval-function-path", "@reports")
    assert metrics == {"eval/turns": 2.0, "eval/own/reward": 0.5}


def test_the_reward_that_an_evaluation_reports_may_have_its_own_key(model: Path, tmp_path: Path) -> None:
    flags = ["--custom-rm-path", "@with_key", "--reward-key", "acc"]
    assert evaluated(model, tmp_path, *flags, generate="leaves_the_reward")["eval/all/reward"] == 1.0
    flags += ["--eval-reward-key", "format"]
    assert evaluated(model, tmp_path, *flags, generate="leaves_the_reward")["eval/all/reward"] == 0.5


def test_an_evaluation_config_gives_each_data_set_its_own_settings(model: Path, tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path)
    one: dict[str, Any] = {"name": "one", "path": f"{prompts}@[:1]", "custom_rm_path": f"{HOOKS}.seven"}
    one |= {"custom_generate_function_path": f"{HOOKS}.leaves_the_reward", "n_samples_per_eval_prompt": 3}
    config = {"eval": {"defaults": {"n_samples_per_eval_prompt": 2}, "datasets": [one, {"name": "all", "path": str(prompts)}]}}
    (tmp_path / "eval.yaml").write_text(json.dumps(config))
    rollouts = own(model, tmp_path, "--eval-interval", "1", "--eval-config", str(tmp_path / "eval.yaml"))
    data = rollouts.rollout_function(rollouts.args, 0, rollouts.data_source, evaluation=True).data
    assert (data["one"]["rewards"], len(data["all"]["rewards"])) == ([7.0] * 3, 12)
    assert [sample.group_index for sample in data["all"]["samples"]] == [i // 2 for i in range(12)]
    assert "eval/one/pass@1" not in rollouts.evaluate(0)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("eval: {datasets: [{name: a, path: x, speed: 1}]}", "data set a has unknown keys: speed"),
        ("eval: {datasets: []}", "expected `eval:` with `datasets:`"),
        ("evaluation: {}", "expected `eval:` with `datasets:`"),
        ("eval: {datasets: [{name: a, path: missing.jsonl}]}", "a missing.jsonl does not exist"),
        ("eval: [", "while parsing"),
        (
            f"eval: {{datasets: [{{name: a, path: x, custom_rm_path: {HOOKS}.no}}]}}",
            f"--eval-config, data set a: custom_rm_path {HOOKS}.no can't be imported",
        ),
    ],
)
def test_an_evaluation_config_that_cannot_be_used_is_named(model: Path, tmp_path: Path, content: str, reason: str) -> None:
    file = tmp_path / "eval.yaml"
    file.write_text(content)
    line = refused(lambda: own(model, tmp_path, "--eval-interval", "1", "--eval-config", str(file)))
    assert reason in line
    assert line.startswith("--eval-config")


def test_a_data_source_of_ones_own_hands_out_and_saves_its_prompts(model: Path, tmp_path: Path) -> None:
    rollouts = own(model, tmp_path, "--data-source-path", "@OwnSource")
    batch, _ = rollouts.generate(4)
    assert batch.sample_index.tolist() == [0, 1, 2, 3]
    state = rollouts.state_dict()
    assert hooks.seen == [("save", 4, 2)]
    own(model, tmp_path, "--data-source-path", "@OwnSource").load_state_dict(json.loads(json.dumps(state)))
    assert hooks.seen[1:] == [("load", 4)]
    assert "another" in refused(lambda: own(model, tmp_path).load_state_dict(state))
    own(model, tmp_path, "--data-source-path", "@DerivedSource").state_dict()
    assert hooks.seen[2:] == [("save", -1)]


FAILING = [
    ("--dynamic-sampling-filter-path", "@fails", "raised on samples 0 to 1: KeyError: 'oops' (hooks.py"),
    (
        "--dynamic-sampling-filter-path",
        "@answers_text",
        "must return a DynamicFilterOutput or a bool for samples 0 to 1",
    ),
    ("--rollout-sample-hook-path", "@fails", "raised on sample "),
    ("--rollout-sample-hook-path", "@answers_text", "must return a Sample or None for sample "),
    ("--rollout-sample-filter-path", "@fails", "raised on samples 0 to 3: KeyError"),
    ("--rollout-all-samples-process-path", "@fails", "raised on samples 0 to 3: KeyError"),
    ("--custom-reward-post-process-path", "@fails", "raised on samples 0 to 3: KeyError"),
    (
        "--custom-reward-post-process-path",
        "@one_short",
        "must return (raw rewards, rewards), each 4 numbers",
    ),
    ("--custom-reward-post-process-path", "@not_a_number", "must return finite numbers, not [0.0, nan] for sample 0"),
    ("--custom-reward-post-process-path", "@answers_text", "must return (raw rewards, rewards), each 4 numbers"),
    ("--custom-convert-samples-to-train-data-path", "@fails", "raised on samples 0 to 3: KeyError"),
    ("--custom-convert-samples-to-train-data-path", "@answers_text", "must return a dict of slime's train data, not str"),
    ("--custom-rollout-log-function-path", "@fails", "raised on rollout 0: KeyError"),
    ("--custom-rollout-log-function-path", "@answers_text", "must return a bool, not str text"),
    ("--rollout-function-path", "@fails", "raised on rollout 0: KeyError"),
    ("--rollout-function-path", "@answers_text", "must give a list of groups"),
    ("--rollout-function-path", "@reports_text", ": metric turns is no number: 'many'"),
    ("--data-source-path", "@fails", "has no get_samples, add_samples, save, load, __len__"),
]


@pytest.mark.parametrize(("flag", "name", "reason"), FAILING)
def test_a_plug_in_that_fails_or_answers_wrongly_is_named_in_one_line(
    model: Path, tmp_path: Path, flag: str, name: str, reason: str
) -> None:
    line = refused(lambda: own(model, tmp_path, flag, name).generate(0))
    assert line.startswith(f"{flag} {HOOKS}.{name[1:]}")
    assert reason in line


def test_a_data_source_that_gives_nothing_is_named(model: Path, tmp_path: Path) -> None:
    line = refused(lambda: own(model, tmp_path, "--data-source-path", "@GivesNothing").generate(0))
    assert line == f"get_samples of --data-source-path {HOOKS}.GivesNothing gave no groups: there is nothing to generate for"

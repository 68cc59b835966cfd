"""What is checked before any process starts, and what the train loop gets."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from slime.arguments.errors import UserError
from slime.rollout.replay import load_samples
from tests.slime.backends.embedded.engines import save_chat_model
from tests.slime.rollout.runs import PLUGINS, manager, write_prompts
from tests.tiny import save_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_chat_model(tmp_path_factory.mktemp("manager") / "model")


def refusal(model: Path, prompts: Path | str, *flags: str) -> str:
    with pytest.raises(UserError) as caught:
        manager(model, prompts, *flags)
    assert "\n" not in str(caught.value)
    return str(caught.value)


PLUGIN_FLAGS = ["rollout-function-path", "custom-generate-function-path", "custom-rm-path", "custom-tis-function-path"]
PLUGIN_FLAGS += ["custom-advantage-function-path"]


@pytest.mark.parametrize("flag", [f"--{name}" for name in PLUGIN_FLAGS])
@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("no_such_module.function", "can't be imported: ModuleNotFoundError"),
        (f"{PLUGINS}.no_such_function", "can't be imported: AttributeError"),
        ("nodot", "can't be imported: ValueError"),
        (f"{PLUGINS}.NUMBER", "is no function"),
    ],
)
def test_a_plug_in_that_cannot_be_used_is_named_with_its_flag(
    model: Path, tmp_path: Path, flag: str, path: str, reason: str
) -> None:
    assert refusal(model, write_prompts(tmp_path), "--use-tis", flag, path).startswith(f"{flag} {path} {reason}")


def test_a_checkpoint_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    bare = save_tiny_model(tmp_path / "bare")
    assert refusal(bare, write_prompts(tmp_path)).startswith(f"--hf-checkpoint {bare} has no usable tokenizer")


def test_prompts_that_cannot_be_read_are_named_with_their_flag(model: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing.jsonl"
    assert refusal(model, missing) == f"--prompt-data {missing} does not exist"
    prompts = write_prompts(tmp_path)
    assert refusal(model, prompts, "--label-key", "gold").endswith("no column 'gold'; it has 'question', 'answer'")
    message = refusal(model, prompts, "--eval-interval", "1", "--eval-prompt-data", "good", str(prompts), "bad", str(missing))
    assert message == f"--eval-prompt-data bad {missing} does not exist"


def test_evaluation_data_is_not_read_where_nothing_is_evaluated(model: Path, tmp_path: Path) -> None:
    data = ["--eval-prompt-data", "gone", str(tmp_path / "gone.jsonl")]
    assert manager(model, write_prompts(tmp_path), *data).args.eval_datasets == []


def test_a_prompt_must_fit_the_context_beside_the_longest_response(model: Path, tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path, [{"question": "x" * 120, "answer": "1"}])
    manager(model, prompts)
    assert refusal(model, prompts, "--rollout-max-response-len", "9").endswith("the prompt has 120 tokens, 119 are allowed")
    data = ["--eval-interval", "1", "--eval-prompt-data", "a", str(prompts)]
    assert "119 are allowed" in refusal(model, prompts, *data, "--eval-max-response-len", "9")
    assert "no room in a context of 128" in refusal(model, prompts, "--rollout-max-response-len", "128")


def test_the_longest_prompt_that_a_person_allows_counts_unless_the_context_is_shorter(model: Path, tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path, [{"question": "x" * 20, "answer": "1"}])
    manager(model, prompts, "--rollout-max-prompt-len", "20")
    assert "20 tokens, 19 are allowed" in refusal(model, prompts, "--rollout-max-prompt-len", "19")
    long = write_prompts(tmp_path, [{"question": "x" * 128, "answer": "1"}])
    assert "128 tokens, 127 are allowed" in refusal(model, long, "--rollout-max-prompt-len", "500")


CRITIC_FOLDERS = ["--critic-hf-checkpoint", "--critic-load"]


def copy_with_tokens(model: Path, folder: Path, *added: str) -> Path:
    """The model with these tokens behind those of its tokenizer."""
    shutil.copytree(model, folder)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_tokens(list(added))
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("flag", CRITIC_FOLDERS)
def test_a_critic_that_would_read_other_token_ids_is_refused(model: Path, tmp_path: Path, flag: str) -> None:
    ours, prompts = copy_with_tokens(model, tmp_path / "policy", "<a>", "<b>"), write_prompts(tmp_path)
    same = copy_with_tokens(model, tmp_path / "same", "<a>", "<b>")
    manager(ours, prompts, flag, str(same))
    for name, added, differing in (("more", ["<a>", "<b>", "<c>"], "<c>"), ("swapped", ["<b>", "<a>"], "<[ab]>")):
        folder = copy_with_tokens(model, tmp_path / name, *added)
        message = f"{flag} {folder} has another tokenizer than --hf-checkpoint {ours} .*first difference: token '{differing}'"
        assert re.match(message, refusal(ours, prompts, flag, str(folder)))
    manager(ours, prompts, flag, str(tmp_path / "more"), "--advantage-estimator", "grpo")


@pytest.mark.parametrize("flag", CRITIC_FOLDERS)
def test_a_critic_without_a_tokenizer_is_named(model: Path, tmp_path: Path, flag: str) -> None:
    bare = save_tiny_model(tmp_path / "bare")
    assert refusal(model, write_prompts(tmp_path), flag, str(bare)).startswith(f"{flag} {bare} has no usable tokenizer")


@pytest.mark.parametrize("flag", CRITIC_FOLDERS)
def test_a_prompt_must_fit_the_critics_context_too(model: Path, tmp_path: Path, flag: str) -> None:
    critic = save_chat_model(tmp_path / "critic", max_position_embeddings=64)
    larger = save_chat_model(tmp_path / "larger", max_position_embeddings=256)
    prompts = write_prompts(tmp_path, [{"question": "x" * 57, "answer": "1"}])
    assert refusal(model, prompts, flag, str(critic)).endswith("the prompt has 57 tokens, 56 are allowed")
    manager(model, prompts, flag, str(critic), "--rollout-max-response-len", "7")
    manager(model, prompts, flag, str(critic), "--advantage-estimator", "grpo")
    assert manager(model, prompts, flag, str(larger)).args.rollout_max_prompt_len == 120


def test_messages_without_a_chat_template_are_refused_unless_a_plug_in_takes_them(model: Path, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}]
    prompts = write_prompts(tmp_path, [{"question": "text", "answer": "1"}, {"question": messages, "answer": "1"}])
    evaluation = ["--eval-interval", "1", "--eval-prompt-data", "a", f"{prompts}@[1:]"]
    reason = "row 1: the prompt is a list of messages: add --apply-chat-template"
    assert refusal(model, prompts) == f"--prompt-data {prompts}, {reason}"
    assert refusal(model, f"{prompts}@[:1]", *evaluation).startswith("--eval-prompt-data a, row 0: the prompt is")
    manager(model, prompts, "--apply-chat-template")
    manager(model, prompts, "--custom-generate-function-path", f"{PLUGINS}.two_turns")
    manager(model, prompts, "--rollout-function-path", f"{PLUGINS}.constant_rollout")
    supervised = [{"question": messages, "answer": "1"}]
    manager(model, write_prompts(tmp_path, supervised), "--loss-type", "sft_loss")


@pytest.mark.parametrize("function", ["constant_rollout", "raw_rollout"])
def test_a_rollout_function_of_ones_own_makes_batch_and_evaluation(model: Path, tmp_path: Path, function: str) -> None:
    own = manager(model, write_prompts(tmp_path), "--rollout-function-path", f"{PLUGINS}.{function}")
    batch, metrics = own.generate(7)
    assert batch.tokens.tolist() == [5, 1, 2] * 4
    assert (batch.reward.tolist(), metrics["rollout/reward"], metrics["rollout/truncated"]) == ([7.0] * 4, 7.0, 1.0)
    assert own.generate(8)[0].sample_index.tolist() == [4, 5, 6, 7]
    assert own.evaluate(0) == {
        "eval/words/reward": 0.75,
        "eval/words/truncated": 0.25,
        "eval/words/response_length": 2.0,
    }


def test_supervised_training_takes_its_responses_from_the_data_and_has_no_reward(model: Path, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    prompts = write_prompts(tmp_path, [{"question": messages, "answer": ""}] * 4)
    supervised = manager(model, prompts, "--loss-type", "sft_loss", "--n-samples-per-prompt", "1")
    batch, metrics = supervised.generate(0)
    assert np.array_equal(batch.response_lengths, [4, 4])
    assert "rollout/reward" not in metrics


def test_the_metric_is_the_reward_that_samples_got_whatever_training_makes_of_it(model: Path, tmp_path: Path) -> None:
    flags = ["--rollout-function-path", f"{PLUGINS}.constant_rollout", "--advantage-estimator", "grpo"]
    batch, metrics = manager(model, write_prompts(tmp_path), *flags).generate(7)
    assert (batch.reward.tolist(), metrics["rollout/reward"]) == ([0.0] * 4, 7.0)


def test_rollouts_that_were_saved_are_trained_on_again_without_prompts(model: Path, tmp_path: Path) -> None:
    prompts, pattern = write_prompts(tmp_path), str(tmp_path / "saved" / "{rollout_id}.pt")
    own = ["--rollout-function-path", f"{PLUGINS}.constant_rollout"]
    saving = manager(model, prompts, *own, "--save-debug-rollout-data", pattern)
    first, second = saving.generate(0), saving.generate(1)
    replaying = manager(model, "None", "--load-debug-rollout-data", pattern)
    assert replaying.longest_prompt() == 1
    for rollout_id, (batch, metrics) in ((1, second), (0, first)):
        again, again_metrics = replaying.generate(rollout_id)
        assert again_metrics == metrics
        for name, column in vars(batch).items():
            assert np.array_equal(getattr(again, name), column), name
    assert [sample.index for sample in load_samples(pattern, 1)] == [4, 5, 6, 7]
    with pytest.raises(UserError, match=r"^--load-debug-rollout-data .*2.pt: FileNotFoundError"):
        replaying.generate(2)


def test_a_rollout_without_a_file_is_found_before_anything_starts(model: Path, tmp_path: Path) -> None:
    (tmp_path / "0.pt").write_bytes(b"")
    pattern = str(tmp_path / "{rollout_id}.pt")
    with pytest.raises(
        UserError, match=rf"^--load-debug-rollout-data {tmp_path}/1.pt does not exist: --num-rollout 2 needs it$"
    ):
        manager(model, "None", "--load-debug-rollout-data", pattern)


def test_every_row_must_have_a_reward_that_can_be_given(model: Path, tmp_path: Path) -> None:
    rows = [{"question": "a", "answer": "1", "metadata": {"rm_type": name}} for name in ("math", "boxed_f1", "no_such")]
    prompts = write_prompts(tmp_path, [*rows, {"question": "b", "answer": None}])
    flags = ["--custom-rm-path", "None"]
    unknown = f"--prompt-data {prompts}, row 2: metadata rm_type 'no_such' is none of math, dapo"
    assert refusal(model, prompts, *flags).startswith(unknown)
    assert refusal(model, f"{prompts}@[3:]", *flags) == (
        f"--prompt-data {prompts}@[3:], row 0 has no metadata rm_type: give --rm-type or --custom-rm-path"
    )
    assert "row 0 has no label, which the reward math" in refusal(model, f"{prompts}@[3:]", *flags, "--rm-type", "math")
    evaluation = ["--eval-interval", "1", "--eval-prompt-data", "held", f"{prompts}@[2:]"]
    assert refusal(model, f"{prompts}@[:2]", *flags, *evaluation).startswith("--eval-prompt-data held, row 0: metadata rm_type")
    manager(model, f"{prompts}@[:2]", *flags)
    manager(model, prompts)

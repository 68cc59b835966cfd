"""The default rollout, against a real engine."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from slime.arguments.errors import UserError
from slime.backends.embedded.server import EmbeddedServer
from slime.rollout.manager import RolloutManager
from slime.rollout.sglang_rollout import GenerateState, generate_rollout
from slime.utils.types import Sample
from tests.slime.backends.embedded.engines import open_server, save_chat_model
from tests.slime.rollout import plugins
from tests.slime.rollout.runs import PLUGINS, manager, write_prompts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rollout")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[EmbeddedServer]:
    with open_server(save_chat_model(folder / "model")) as opened:
        yield opened


def connected(server: EmbeddedServer, folder: Path, *flags: str) -> RolloutManager:
    own = manager(folder / "model", write_prompts(folder), *flags)
    own.connect(server.host, server.port)
    return own


def samples(own: RolloutManager) -> list[Sample]:
    output = generate_rollout(own.args, 0, own.data_source)
    return [sample for group in output.samples for sample in group]  # type: ignore[union-attr]


def test_every_sample_has_tokens_log_probs_version_status_and_reward(server: EmbeddedServer, folder: Path) -> None:
    done = samples(connected(server, folder))
    assert [sample.index for sample in done] == [0, 1, 2, 3]
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    for sample in done:
        tokenizer, prompt = server.engine.tokenizer, sample.tokens[: -sample.response_length]
        assert tokenizer.decode(prompt) == sample.prompt
        logits = model(torch.tensor([sample.tokens])).logits[0, len(prompt) - 1 : -1]
        response = torch.tensor(sample.tokens[len(prompt) :])
        expected = logits.log_softmax(-1).gather(-1, response[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(sample.rollout_log_probs), expected, atol=1e-4, rtol=0)
        assert (sample.weight_versions, sample.reward) == (["0"], float(sample.response_length))
        ended = response[-1] == tokenizer.eos_token_id
        assert sample.status == (Sample.Status.COMPLETED if ended else Sample.Status.TRUNCATED)
        assert ended or sample.response_length == 8


def test_copies_of_a_prompt_get_different_responses_and_a_run_repeats_itself(server: EmbeddedServer, folder: Path) -> None:
    first, again = (connected(server, folder) for _ in range(2))
    tokens = [[sample.tokens for sample in samples(own)] for own in (first, first, again, again)]
    assert tokens[:2] == tokens[2:]
    assert len({tuple(sample) for sample in tokens[0] + tokens[1]}) == 8
    other = connected(server, folder, "--rollout-seed", "7")
    assert [sample.tokens for sample in samples(other)] != tokens[0]


def test_sampling_flags_reach_the_engine(server: EmbeddedServer, folder: Path) -> None:
    own = connected(server, folder, "--rollout-max-response-len", "3", "--rollout-stop-token-ids", *map(str, range(5, 101)))
    done = samples(own)
    assert all(sample.response_length <= 3 for sample in done)
    assert any(sample.response_length == 1 and sample.status == Sample.Status.COMPLETED for sample in done)
    vowels = connected(server, folder, "--rollout-stop", *"abcdefghijklmnopqrstuvwxyz")
    assert not any(char.islower() for sample in samples(vowels) for char in sample.response[:-1])


def test_the_temperature_reaches_the_engine(server: EmbeddedServer, folder: Path) -> None:
    cold = samples(connected(server, folder, "--rollout-temperature", "0.0001"))
    assert cold[0].tokens == cold[1].tokens


def test_the_manager_makes_a_batch_of_it(server: EmbeddedServer, folder: Path) -> None:
    batch, metrics = connected(server, folder).generate(0)
    assert len(batch) == 4
    assert np.array_equal(batch.reward, batch.response_lengths)
    assert batch.rollout_log_probs is not None
    assert metrics["rollout/reward"] == metrics["rollout/response_length"]


def test_a_generate_function_of_ones_own_may_ask_twice_mask_tokens_and_give_the_reward(
    server: EmbeddedServer, folder: Path
) -> None:
    batch, _ = connected(server, folder, "--custom-generate-function-path", f"{PLUGINS}.two_turns").generate(0)
    assert batch.response_lengths.tolist() == [7] * 4
    assert batch.loss_mask.reshape(4, 7).tolist() == [[1, 1, 1, 0, 0, 1, 1]] * 4
    assert batch.reward.tolist() == [0.25] * 4


def test_what_plug_ins_take_from_slimes_state_is_there(server: EmbeddedServer, folder: Path) -> None:
    own = connected(server, folder, "--rollout-stop", "x", "--rollout-stop-token-ids", "9", "--rollout-temperature", "0.5")
    state = GenerateState(own.args)
    assert state.tokenizer("one?", add_special_tokens=False)["input_ids"] == state.tokenizer.encode("one?")
    assert state.sampling_params == {
        "temperature": 0.5,
        "top_p": 1.0,
        "top_k": -1,
        "max_new_tokens": 8,
        "stop": ["x"],
        "stop_token_ids": [9],
        "skip_special_tokens": False,
        "no_stop_trim": True,
        "spaces_between_special_tokens": False,
    }


def test_a_generate_function_that_returns_no_sample_is_named(server: EmbeddedServer, folder: Path) -> None:
    own = connected(server, folder, "--custom-generate-function-path", f"{PLUGINS}.forgets_to_return")
    line = r"^--custom-generate-.*forgets_to_return must return a Sample or a list of Samples for sample \d, not NoneType"
    with pytest.raises(UserError, match=line):
        own.generate(0)


def test_the_first_error_cancels_the_rest_and_names_function_sample_and_place(server: EmbeddedServer, folder: Path) -> None:
    plugins.cancelled.clear()
    own = connected(server, folder, "--custom-generate-function-path", f"{PLUGINS}.fails_at_three_and_hangs_elsewhere")
    line = (
        r"fails_at_three_and_hangs_elsewhere raised on sample 3: ZeroDivisionError: sample 3 is bad \(plugins.py, line \d+\)$"
    )
    with pytest.raises(UserError, match=line):
        own.generate(0)
    assert sorted(plugins.cancelled) == [0, 1, 2]


def test_a_failing_reward_function_is_named_with_its_sample(server: EmbeddedServer, folder: Path) -> None:
    own = connected(server, folder, "--custom-rm-path", f"{PLUGINS}.failing_reward")
    with pytest.raises(UserError, match=r"failing_reward raised on sample \d .*no such answer"):
        own.generate(0)


def test_what_the_engine_refuses_is_raised_at_once_with_its_reason(server: EmbeddedServer, folder: Path) -> None:
    own = connected(server, folder)
    own.args.rollout_temperature = -1
    with pytest.raises(RuntimeError, match=r"answered 400: .*temperature must be a number, at least 0, got -1"):
        own.generate(0)


def test_no_more_requests_are_in_flight_than_allowed(
    server: EmbeddedServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flying = most = 0

    async def counted(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
        nonlocal flying, most
        flying += 1
        most = max(most, flying)
        await asyncio.sleep(0)
        flying -= 1
        return sample

    monkeypatch.setattr("slime.rollout.generate.generate", counted)
    samples(connected(server, folder, "--rollout-batch-size", "6", "--sglang-server-concurrency", "5"))
    assert most == 5


def evaluated(server: EmbeddedServer, folder: Path, *flags: str) -> tuple[RolloutManager, dict[str, Any]]:
    prompts = write_prompts(folder)
    data = ["--eval-interval", "1", "--eval-prompt-data", "all", str(prompts), "two", f"{prompts}@[:2]"]
    own = connected(server, folder, *data, *flags)
    return own, generate_rollout(own.args, 0, own.data_source, evaluation=True).data  # type: ignore[union-attr]


def test_evaluation_answers_every_prompt_of_every_data_set_in_order(server: EmbeddedServer, folder: Path) -> None:
    own, data = evaluated(server, folder, "--n-samples-per-eval-prompt", "2", "--eval-max-response-len", "3")
    assert [sample.prompt for sample in data["two"]["samples"]] == ["one?", "one?", "two?", "two?"]
    assert len(data["all"]["samples"]) == 12
    assert data["two"]["rewards"] == [sample.response_length for sample in data["two"]["samples"]]
    assert max(sample.response_length for sample in data["all"]["samples"]) == 3
    metrics = own.evaluate(0)
    assert {name.split("/")[1] for name in metrics} == {"all", "two"}
    assert metrics["eval/two/reward"] == metrics["eval/two/response_length"] == np.mean(data["two"]["rewards"])
    assert metrics["eval/all/truncated"] == np.mean(data["all"]["truncated"])


def test_evaluation_at_temperature_zero_is_greedy_and_takes_no_prompt_from_training(
    server: EmbeddedServer, folder: Path
) -> None:
    own, data = evaluated(server, folder, "--eval-temperature", "0", "--n-samples-per-eval-prompt", "2")
    first, second, *_ = data["all"]["samples"]
    assert first.tokens == second.tokens
    assert own.data_source is not None
    assert own.data_source.sample_index == 0
    _, sampled = evaluated(server, folder, "--n-samples-per-eval-prompt", "2")
    assert sampled["all"]["samples"][0].tokens != sampled["all"]["samples"][1].tokens


def test_evaluation_has_sampling_flags_of_its_own(server: EmbeddedServer, folder: Path) -> None:
    _, data = evaluated(server, folder, "--eval-top-k", "1", "--n-samples-per-eval-prompt", "2")
    first, second, *_ = data["all"]["samples"]
    assert first.tokens == second.tokens
    _, data = evaluated(server, folder, "--eval-top-p", "0.000001", "--n-samples-per-eval-prompt", "2")
    assert data["all"]["samples"][0].tokens == first.tokens
    _, data = evaluated(server, folder, "--eval-min-new-tokens", "8")
    assert {sample.response_length for sample in data["all"]["samples"]} == {8}


def test_prompt_and_response_keep_to_the_context_that_is_asked_for(server: EmbeddedServer, folder: Path) -> None:
    flags = ["--rollout-max-context-len", "7", "--eval-max-context-len", "9", "--eval-min-new-tokens", "1"]
    own, data = evaluated(server, folder, *flags)
    assert max(len(sample.tokens) for sample in samples(own)) == 7
    assert max(len(sample.tokens) for sample in data["all"]["samples"]) == 9
    (folder / "long.jsonl").write_text('{"question": "1234567", "answer": ""}\n')
    with pytest.raises(UserError, match="the prompt has 7 tokens, 6 are allowed"):
        manager(folder / "model", folder / "long.jsonl", *flags)
    with pytest.raises(UserError, match="--rollout-max-context-len 500 is more than the model's context"):
        connected(server, folder, "--rollout-max-context-len", "500")


def test_special_tokens_stand_in_the_response_unless_they_are_skipped(server: EmbeddedServer, folder: Path) -> None:
    stop = ["--rollout-stop-token-ids", "4", "--rollout-max-response-len", "100", "--rollout-batch-size", "6"]
    for skip, shown in (([], True), (["--rollout-skip-special-tokens"], False)):
        done = [sample for sample in samples(connected(server, folder, *stop, *skip)) if sample.tokens[-1] == 4]
        assert done
        assert all(sample.response.endswith("<|end|>") is shown for sample in done)

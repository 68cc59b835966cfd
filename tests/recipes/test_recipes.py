"""Every recipe can be run as it stands."""

import asyncio
from pathlib import Path

import pytest
import yaml

from recipes.quickstart.prepare import SIZES, draw_rows
from recipes.quickstart.reward import reward
from recipes.quickstart.tokenizer import PHRASES, build_tokenizer
from slime.arguments.parse import parse_arguments
from slime.utils.types import Sample
from tests.tiny import save_tiny_model

RECIPES = Path("recipes")


@pytest.mark.parametrize("file", sorted(RECIPES.glob("*/*.yaml")), ids=str)
def test_every_recipe_parses_and_its_flags_agree(file: Path, tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model")
    words = ["--config", str(file), "--hf-checkpoint", str(model), "--prompt-data", "prompts.jsonl"]
    if "eval_interval" in yaml.safe_load(file.read_text()):
        words += ["--eval-prompt-data", "heldout", "heldout.jsonl"]
    config = parse_arguments(words)
    if file.parent.name != "critic_k_ablation" and config.ppo.uses_critic:
        assert config.ppo.critic_update_steps == 2


def test_sao_for_a_real_model_and_for_a_small_one_differ_in_sizes_rates_and_data_alone() -> None:
    real, small = (yaml.safe_load((RECIPES / "sao" / f"{name}.yaml").read_text()) for name in ("qwen3_8b", "small"))
    same = [
        "critic_update_steps",
        "critic_lambd",
        "lambd_alpha",
        "gamma",
        "num_critic_only_steps",
        "dis_eps_low",
        "dis_eps_high",
    ]
    same += ["n_samples_per_prompt", "use_rollout_logprobs", "critic_freeze_params_name_list", "value_clip", "advantage_values"]
    assert {name: real[name] for name in same} == {name: small[name] for name in same}
    assert [each["critic_lr"] / each["lr"] for each in (real, small)] == pytest.approx([5, 5])


def test_the_quickstart_draws_each_prompt_once_and_the_same_for_one_seed() -> None:
    rows = draw_rows(sum(SIZES.values()), seed=1)
    assert len({row["prompt"] for row in rows}) == sum(SIZES.values())
    assert rows[:20] == draw_rows(20, seed=1)
    assert rows[:20] != draw_rows(20, seed=2)
    assert all(row["prompt"].startswith(PHRASES) for row in rows)
    assert all(row["prompt"].removeprefix(PHRASES[0])[::-1] == row["answer"] for row in rows)


def test_the_quickstarts_tokenizer_gives_a_token_a_character_and_one_for_the_phrase() -> None:
    tokenizer = build_tokenizer()
    ids = tokenizer.encode(PHRASES[0] + "sun<|end|>", add_special_tokens=False)
    assert len(ids) == 5
    assert ids[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(ids) == PHRASES[0] + "sun<|end|>"
    assert tokenizer.decode(ids, skip_special_tokens=True) == PHRASES[0] + "sun"


def test_the_quickstarts_reward_is_the_tasks_own_verifier() -> None:
    def score(response: str) -> float:
        return asyncio.run(reward(None, Sample(label="nus", response=response, metadata={"task": "spell_backward"})))

    assert score("nus") == 1.0
    assert 0 < score("nux") < 1
    assert score("") == 0.0

"""Sample."""

from types import SimpleNamespace

import pytest

from slime.utils.types import Sample, Status


def test_a_fresh_sample_is_pending_and_shares_nothing_with_another() -> None:
    first, second = Sample(), Sample()
    assert first.status == Sample.Status.PENDING == Status.PENDING
    first.tokens.append(1)
    first.metadata["a"] = 1
    first.weight_versions.append("1")
    assert second == Sample()


def test_the_reward_to_train_on_is_the_number_or_the_named_entry() -> None:
    assert Sample(reward=0.5).get_reward_value(SimpleNamespace(reward_key=None)) == 0.5
    sample = Sample(reward={"acc": 1.0, "format": 0.0})
    assert sample.get_reward_value(SimpleNamespace(reward_key="format")) == 0.0
    with pytest.raises(KeyError):
        sample.get_reward_value(SimpleNamespace(reward_key="length"))

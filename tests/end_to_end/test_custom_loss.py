"""A run whose actor has a loss of its own."""

from pathlib import Path

import pytest

from tests.end_to_end.runs import make_inputs, metrics_of, ppo_flags, repeatable, run
from tests.slime.backends.fsdp_utils import losses


def test_ppo_written_as_a_function_is_a_run_as_with_the_built_in(tmp_path: Path) -> None:
    inputs = make_inputs(tmp_path)
    own = ["--loss-type", "custom_loss", "--custom-loss-function-path", f"{losses.__name__}.ppo"]
    for name, flags in (("built_in", []), ("own", own)):
        assert run(ppo_flags(inputs, tmp_path / name, *flags)) == 0
    built_in, custom = (repeatable(metrics_of(tmp_path / name)) for name in ("built_in", "own"))
    for row, same in zip(built_in, custom, strict=True):
        assert same["train/custom_loss/pg_loss"] == pytest.approx(row["train/pg_loss"], abs=1e-5)
        for name in ("rollout/reward", "train/loss", "train/grad_norm", "train/critic-pass_2/value_loss"):
            assert same[name] == pytest.approx(row[name], rel=1e-3, abs=1e-5)

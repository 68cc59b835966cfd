"""A whole run under Ray, with several processes for every role."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from tests.end_to_end.runs import make_inputs, metrics_of, ppo_flags, run

SIZES = ["--actor-num-gpus-per-node", "2", "--critic-num-gpus-per-node", "2", "--rollout-num-gpus", "2"]


@pytest.mark.slow
def test_two_ranks_a_role_and_two_engines_train_as_one_process_does(tmp_path: Path) -> None:
    inputs = make_inputs(tmp_path)
    for name, flags in (("local", []), ("ray", ["--launcher", "ray", *SIZES])):
        assert run(ppo_flags(inputs, tmp_path / name, "--adam-eps", "1e-3", *flags)) == 0
    local, spread = metrics_of(tmp_path / "local"), metrics_of(tmp_path / "ray")
    for one, other in zip(local, spread, strict=True):
        assert one["rollout/reward"] == other["rollout/reward"]
        assert np.isclose(one["train/critic-pass_2/value_loss"], other["train/critic-pass_2/value_loss"], rtol=1e-4)
    for role in ("actor", "critic"):
        files = [tmp_path / name / "checkpoints" / "latest" / role / "model.safetensors" for name in ("local", "ray")]
        want, got = (load_file(file) for file in files)
        assert want.keys() == got.keys()
        for name, tensor in want.items():
            np.testing.assert_allclose(got[name], tensor, atol=1e-5, err_msg=name)

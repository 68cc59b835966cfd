"""FLOPs of a forward against a count by hand."""

from pathlib import Path

import numpy as np
import pytest
from torch.distributed.device_mesh import DeviceMesh

from fsdp_backend.batch.cost import SampleCost
from fsdp_backend.config import RoleConfig
from fsdp_backend.model.cost import sample_cost
from fsdp_backend.model.loading import load_policy, load_value
from tests.tiny import VOCABULARY, save_tiny_model
from tests.worlds import run_world


def costs(mesh: DeviceMesh, folder: str) -> tuple[SampleCost, SampleCost]:
    role = RoleConfig(hf_checkpoint=folder)
    return sample_cost(load_policy(folder, role, mesh)), sample_cost(load_value(folder, role, mesh))


# q 32x32, k and v 32x16, o 32x32; three matrices of 32x64 in a dense block. With experts: a router of 4, and 2 of 4 visited,
# each of three matrices 32x16.
ATTENTION = 32 * 32 + 2 * 32 * 16 + 32 * 32
BLOCKS = {"qwen3": ATTENTION + 3 * 32 * 64, "qwen3_moe": ATTENTION + 32 * 4 + 2 * 3 * 32 * 16}


@pytest.mark.parametrize("architecture", BLOCKS)
def test_two_for_each_weight_a_token_meets_two_for_each_pair_and_unit_and_the_head_at_response_tokens(
    architecture: str, tmp_path: Path
) -> None:
    save_tiny_model(tmp_path, architecture)
    for policy, value in run_world(2, costs, str(tmp_path)):
        # Of length² pairs half are looked at, for 4 FLOPs a unit of the 4 heads of 8, in two layers.
        assert policy == SampleCost(2 * 2 * BLOCKS[architecture], 2 * 4 * 32 / 2, 2 * 32 * VOCABULARY)
        assert value == SampleCost(2 * 2 * BLOCKS[architecture], 2 * 4 * 32 / 2, 2 * 32)
    two = policy.forward(np.array([10]), np.array([3]))
    assert two.tolist() == [policy.per_token * 10 + policy.per_token_pair * 100 + policy.per_response_token * 3]

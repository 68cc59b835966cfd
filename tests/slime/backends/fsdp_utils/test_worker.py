"""A rank's verbs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.distributed.device_mesh import DeviceMesh

from fsdp_backend.config import PPOConfig, RoleConfig, TrainConfig
from fsdp_backend.distributed.world import Rendezvous
from slime.backends.fsdp_utils.worker import RoleName, TrainWorker
from tests.tiny import random_batch, save_tiny_model
from tests.worlds import run_world


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("policy"))


def woken_by(mesh: DeviceMesh, role: RoleName, folder: str) -> dict[str, bool]:
    """Whether each verb finds the role asleep, and leaves it awake."""
    settings = RoleConfig(hf_checkpoint=folder)
    config = TrainConfig(settings, settings, PPOConfig(use_kl_loss=True, kl_loss_coef=0.1), num_rollout=1)
    worker = TrainWorker(role, config, Rendezvous(mesh.get_rank(), mesh.size()))
    batch = random_batch(4)
    column = np.zeros(int(batch.response_offsets[-1]), dtype=np.float32)
    full = batch.with_columns(values=column, returns=column, advantages=column, ref_log_probs=column)
    verbs: dict[str, Callable[[], Any]] = {
        "predict": lambda: worker.log_probs(batch) if role == "actor" else worker.values(batch),
        "update": lambda: worker.update(full, 0),
        "export": lambda: worker.export(Path(folder) / f"out-{role}"),
    }
    woken = {}
    for name, verb in verbs.items():
        worker.sleep()
        asleep = worker.role.learner.asleep
        verb()
        woken[name] = asleep and not worker.role.learner.asleep
    return woken


@pytest.mark.parametrize("role", ["actor", "critic"])
def test_every_verb_wakes_a_role_that_sleeps(role: RoleName, checkpoint: Path) -> None:
    for woken in run_world(2, woken_by, role, str(checkpoint)):
        assert woken == {"predict": True, "update": True, "export": True}

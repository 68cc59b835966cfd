"""A rank's verbs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.distributed.device_mesh import DeviceMesh

from fsdp_backend.batch.columns import RolloutBatch
from fsdp_backend.distributed.world import Rendezvous
from slime.backends.fsdp_utils.worker import RoleName, Trained, TrainWorker
from tests.slime.backends.fsdp_utils import corrections
from tests.slime.rollout.runs import config
from tests.tiny import random_batch, save_tiny_model
from tests.worlds import run_world

COLUMNS = ("values", "returns", "advantages", "ref_log_probs", "rollout_log_probs")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("policy"))


def worker_of(mesh: DeviceMesh, role: RoleName, folder: str, *flags: str) -> TrainWorker:
    return TrainWorker(role, config(Path(folder), "prompts.jsonl", *flags), Rendezvous(mesh.get_rank(), mesh.size()))


def full_batch(samples: int) -> RolloutBatch:
    batch = random_batch(samples)
    return batch.with_columns(**{name: np.zeros(len(batch.loss_mask), dtype=np.float32) for name in COLUMNS})


def woken_by(mesh: DeviceMesh, role: RoleName, folder: str) -> dict[str, bool]:
    """Whether each verb finds the role asleep, and leaves it awake."""
    worker, batch = worker_of(mesh, role, folder, "--use-kl-loss", "--kl-loss-coef", "0.1"), full_batch(4)
    verbs: dict[str, Callable[[], Any]] = {
        "predict": lambda: worker.log_probs(batch, 0) if role == "actor" else worker.values(batch),
        "update": lambda: worker.update(batch, 0),
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


def trained_with_own_correction(mesh: DeviceMesh, folder: str) -> Trained:
    """Of one sample: all ranks but one have nothing to do."""
    flags = ["--use-tis", "--custom-tis-function-path", f"{corrections.__name__}.vanilla"]
    return worker_of(mesh, "actor", folder, *flags).update(full_batch(1), 0)


def test_the_actor_corrects_by_the_function_of_the_flag_and_its_metrics_are_named(checkpoint: Path) -> None:
    first, second = run_world(2, trained_with_own_correction, str(checkpoint))
    assert first.metrics == second.metrics
    assert all(name.startswith("train/") for name in first.metrics)
    assert first.metrics["train/custom_tis/tis_abs"] > 0
    assert 0 < first.started <= first.ended

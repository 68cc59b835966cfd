"""A role's training state: written, read, and gone on from."""

import json
import resource
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from fsdp_backend import device
from fsdp_backend.config import PPOConfig, RoleConfig, TrainConfig
from fsdp_backend.model.policy import PolicyModel
from fsdp_backend.model.value import ValueModel
from fsdp_backend.session import Session
from fsdp_backend.state import checkpoint
from fsdp_backend.state.checkpoint import SUMMARY, export_checkpoint, is_whole, load_checkpoint, save_checkpoint, start_saving
from fsdp_backend.state.hf_export import export_hf
from fsdp_backend.state.weight_stream import full_weights
from fsdp_backend.training.actor import Actor
from fsdp_backend.training.critic import Critic
from tests.tiny import random_batch, save_tiny_model
from tests.worlds import run_world

ROLLOUTS = 4


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    folder = save_tiny_model(tmp_path_factory.mktemp("policy"))
    role = RoleConfig(
        hf_checkpoint=str(folder), lr=1e-3, lr_decay_style="linear", global_batch_size=4, adam_eps=1e-3, weight_decay=0.1
    )
    return TrainConfig(role, role, PPOConfig(critic_update_steps=2), num_rollout=ROLLOUTS)


def trained(
    mesh: DeviceMesh, config: TrainConfig, first: int, last: int, load: Path | None, save: Path | None
) -> dict[str, Any]:
    """Rollouts [first, last), from a checkpoint and to one; what a run leaves in memory and in metrics."""
    session = Session(config, mesh)
    assert session.critic is not None
    roles: dict[str, Actor | Critic] = {"actor": session.actor, "critic": session.critic}
    torch.manual_seed(first)
    if load is not None:
        for name, role in roles.items():
            role.learner.set_progress(load_checkpoint(load / name, role.model, role.learner.optimizer, mesh))
    metrics = [session.iterate(random_batch(8, rollout_id), rollout_id) for rollout_id in range(first, last)]
    if save is not None:
        for name, role in roles.items():
            save_checkpoint(save / name, role.model, role.learner.optimizer, mesh, role.learner.progress(), source(config))
    weights = {name: {n: t.clone() for n, t in full_weights(role.model)} for name, role in roles.items()}
    return {"metrics": metrics, "weights": weights, "random": torch.get_rng_state()}


def source(config: TrainConfig) -> Path:
    return Path(config.actor.hf_checkpoint)


@pytest.fixture(scope="module")
def uninterrupted(settings: TrainConfig) -> dict[str, Any]:
    return run_world(2, trained, settings, 0, ROLLOUTS, None, None)[0]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def half(settings: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both roles after two rollouts, saved on two ranks."""
    folder = tmp_path_factory.mktemp("half")
    run_world(2, trained, settings, 0, 2, None, folder)
    return folder


def differences(one: dict[str, dict[str, Tensor]], other: dict[str, dict[str, Tensor]]) -> float:
    assert {role: names.keys() for role, names in one.items()} == {role: names.keys() for role, names in other.items()}
    return max(float((one[role][n] - t).norm() / t.norm()) for role in one for n, t in other[role].items())


def test_what_goes_on_from_a_checkpoint_equals_what_was_never_interrupted_bit_for_bit(
    settings: TrainConfig, half: Path, uninterrupted: dict[str, Any]
) -> None:
    for resumed in run_world(2, trained, settings, 2, ROLLOUTS, half, None):
        assert differences(resumed["weights"], uninterrupted["weights"]) == 0
        assert resumed["metrics"] == uninterrupted["metrics"][2:]


@pytest.mark.parametrize("world", [1, 3])
def test_on_another_number_of_ranks_it_goes_on_the_same(
    settings: TrainConfig, half: Path, uninterrupted: dict[str, Any], world: int
) -> None:
    for resumed in run_world(world, trained, settings, 2, ROLLOUTS, half, None):
        assert differences(resumed["weights"], uninterrupted["weights"]) < 1e-6


def test_sharded_in_copies_it_is_saved_once_and_loads_without(
    settings: TrainConfig, tmp_path: Path, uninterrupted: dict[str, Any]
) -> None:
    copies = replace(settings.actor, dp_replicate_size=2)
    run_world(2, trained, replace(settings, actor=copies, critic=copies), 0, 2, None, tmp_path)
    (resumed,) = run_world(1, trained, settings, 2, ROLLOUTS, tmp_path, None)
    assert differences(resumed["weights"], uninterrupted["weights"]) < 1e-6


def saved_beside_training(mesh: DeviceMesh, config: TrainConfig, folder: Path) -> None:
    """Two rollouts, a save in the background, and a third that changes everything before a byte of it is written."""
    session, thread, group = Session(config, mesh), ThreadPoolExecutor(1), device.host_group()
    assert session.critic is not None
    for rollout_id in range(2):
        session.iterate(random_batch(8, rollout_id), rollout_id)
    go = threading.Event()
    thread.submit(go.wait)
    roles: dict[str, Actor | Critic] = {"actor": session.actor, "critic": session.critic}
    saves = [
        start_saving(
            folder / name,
            role.model,
            role.learner.optimizer,
            mesh,
            role.learner.progress(),
            source(config),
            thread,
            group,
        )
        for name, role in roles.items()
    ]
    session.iterate(random_batch(8, 2), 2)
    assert not any(is_whole(folder / name) for name in roles)
    go.set()
    for save in saves:
        save.result()
    assert all(is_whole(folder / name) for name in roles)


def test_saved_beside_training_it_holds_what_was_when_the_save_began(
    settings: TrainConfig, tmp_path: Path, uninterrupted: dict[str, Any]
) -> None:
    run_world(2, saved_beside_training, settings, tmp_path)
    for resumed in run_world(2, trained, settings, 2, ROLLOUTS, tmp_path, None):
        assert differences(resumed["weights"], uninterrupted["weights"]) == 0
        assert resumed["metrics"] == uninterrupted["metrics"][2:]


def without_optimizer(mesh: DeviceMesh, config: TrainConfig, folder: Path) -> tuple[str, float, float]:
    """What loading it with an optimizer says; and, loaded without, the moments' size before and after a rollout."""
    actor = Session(config, mesh).actor
    save_checkpoint(folder, actor.model, None, mesh, {"rollouts_trained": 3}, source(config))
    with pytest.raises(ValueError, match="without optimizer state") as refused:
        load_checkpoint(folder, actor.model, actor.learner.optimizer, mesh)
    assert load_checkpoint(folder, actor.model, None, mesh) == {"rollouts_trained": 3}
    size = sum(file.stat().st_size for file in (folder / "shards").iterdir())
    weights = sum(parameter.numel() * 4 for parameter in actor.model.hf.parameters())
    return str(refused.value), size, weights


def test_without_optimizer_state_it_is_a_third_and_says_what_goes_on_from_it(settings: TrainConfig, tmp_path: Path) -> None:
    for message, size, weights in run_world(2, without_optimizer, settings, tmp_path / "actor"):
        assert message.endswith("was saved without optimizer state: only no_load_optim goes on from it")
        assert weights < size < 1.2 * weights


def test_a_checkpoint_with_optimizer_state_loads_without(settings: TrainConfig, half: Path) -> None:
    run_world(1, loaded_without_moments, settings, half / "actor")


def loaded_without_moments(mesh: DeviceMesh, config: TrainConfig, folder: Path) -> None:
    learner = Session(config, mesh).actor.learner
    assert load_checkpoint(folder, learner.model, None, mesh)["rollouts_trained"] == 2
    assert all(float(state["exp_avg"].abs().sum()) == 0 for state in learner.optimizer.state.values())


def on_a_full_disk(mesh: DeviceMesh, config: TrainConfig, folder: Path) -> str:
    """No file may grow beyond 20 kB: the shards do not fit."""
    session = Session(config, mesh)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(OSError, match="can't be written") as refused:
            save_checkpoint(folder, session.actor.model, session.actor.learner.optimizer, mesh, {}, source(config))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    return str(refused.value)


def test_a_full_disk_is_one_line_on_every_rank_and_leaves_no_summary(settings: TrainConfig, tmp_path: Path) -> None:
    for message in run_world(2, on_a_full_disk, settings, tmp_path / "actor"):
        assert "File too large" in message
        assert "\n" not in message
    assert not is_whole(tmp_path / "actor")


def generators(mesh: DeviceMesh, config: TrainConfig, folder: Path) -> tuple[Tensor, Tensor]:
    """Random numbers that follow a save, and those that follow its load."""
    session = Session(config, mesh)
    torch.manual_seed(mesh.get_rank())
    torch.rand(3)
    save_checkpoint(folder, session.actor.model, session.actor.learner.optimizer, mesh, {}, source(config))
    following = torch.rand(5)
    torch.manual_seed(99)
    load_checkpoint(folder, session.actor.model, session.actor.learner.optimizer, mesh)
    return following, torch.rand(5)


def test_every_rank_goes_on_with_its_own_random_numbers(settings: TrainConfig, tmp_path: Path) -> None:
    (first, again), (second, and_again) = run_world(2, generators, settings, tmp_path / "actor")
    assert torch.equal(first, again)
    assert torch.equal(second, and_again)
    assert not torch.equal(first, second)


def test_nothing_in_it_is_pickled(half: Path) -> None:
    files = sorted(file for file in half.rglob("*") if file.is_file())
    assert {file.suffix for file in files} == {".safetensors", ".json"}
    assert all(b"GLOBAL" not in file.read_bytes() and b"\x80\x04\x95" not in file.read_bytes()[:16] for file in files)


@pytest.mark.parametrize("bytes_per_file", [2**32, 4000])
def test_exported_offline_it_is_what_the_trainer_would_have_exported(
    settings: TrainConfig, tmp_path: Path, bytes_per_file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_world(2, saved_and_exported, settings, tmp_path)
    monkeypatch.setattr(checkpoint, "BYTES_PER_FILE", bytes_per_file)
    for role in ("actor", "critic"):
        export_checkpoint(tmp_path / "state" / role, tmp_path / "offline" / role)
        offline, online = (
            {file.name: file.read_bytes() for file in (tmp_path / name / role).iterdir()} for name in ("offline", "online")
        )
        assert offline == online


def saved_and_exported(mesh: DeviceMesh, config: TrainConfig, folder: Path) -> None:
    session = Session(config, mesh)
    assert session.critic is not None
    session.iterate(random_batch(8), 0)
    for name, role in (("actor", session.actor), ("critic", session.critic)):
        model: PolicyModel | ValueModel = role.model
        save_checkpoint(folder / "state" / name, model, role.learner.optimizer, mesh, {}, source(config))
        export_hf(model, folder / "online" / name, source(config))


def test_a_torn_checkpoint_is_not_exported(settings: TrainConfig, half: Path, tmp_path: Path) -> None:
    shutil.copytree(half / "actor", tmp_path / "actor")
    _torn_shard(tmp_path / "actor")
    with pytest.raises(ValueError, match="can't be read"):
        export_checkpoint(tmp_path / "actor", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def refusal(mesh: DeviceMesh, config: TrainConfig, folder: Path) -> str:
    session = Session(config, mesh)
    try:
        load_checkpoint(folder, session.actor.model, session.actor.learner.optimizer, mesh)
    except ValueError as error:
        return str(error)
    return ""


def _without_summary(folder: Path) -> None:
    (folder / SUMMARY).unlink()


def _torn_summary(folder: Path) -> None:
    (folder / SUMMARY).write_text((folder / SUMMARY).read_text()[:50])


def _torn_shard(folder: Path) -> None:
    shard = sorted((folder / "shards").iterdir())[1]
    shard.write_bytes(shard.read_bytes()[:-100])


def _lost_shard(folder: Path) -> None:
    sorted((folder / "shards").iterdir())[1].unlink()


def _another_shape(folder: Path) -> None:
    summary = json.loads((folder / SUMMARY).read_text())
    summary["tensors"]["model.model.norm.weight"] = [[64], "float32"]
    (folder / SUMMARY).write_text(json.dumps(summary))


def _another_dtype(folder: Path) -> None:
    summary = json.loads((folder / SUMMARY).read_text())
    summary["tensors"]["model.model.norm.weight"] = [[32], "bfloat16"]
    (folder / SUMMARY).write_text(json.dumps(summary))


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "no summary": (_without_summary, "has no role.json"),
    "torn summary": (_torn_summary, "role.json can't be read"),
    "torn shard": (_torn_shard, "can't be read"),
    "lost shard": (_lost_shard, "can't be read"),
    "another model": (
        _another_shape,
        "is of another model: model.model.norm.weight is [[64], 'float32'], not [[32], 'float32']",
    ),
    "another dtype": (_another_dtype, "model.model.norm.weight is [[32], 'bfloat16'], not [[32], 'float32']"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_torn_or_of_another_model_is_refused_on_every_rank(
    case: str, settings: TrainConfig, half: Path, tmp_path: Path
) -> None:
    break_it, message = BROKEN[case]
    shutil.copytree(half / "actor", tmp_path / "actor")
    break_it(tmp_path / "actor")
    for refused in run_world(2, refusal, settings, tmp_path / "actor"):
        assert message in refused
        assert "\n" not in refused


def test_another_optimizer_is_refused(settings: TrainConfig, half: Path) -> None:
    other = replace(settings, actor=replace(settings.actor, optimizer="torch.optim.SGD"))
    assert "is of optimizer AdamW, not SGD" in run_world(1, refusal, other, half / "actor")[0]


def unwritable(mesh: DeviceMesh, config: TrainConfig, folder: Path) -> str:
    session = Session(config, mesh)
    with pytest.raises(OSError, match="can't be written") as refused:
        save_checkpoint(folder, session.actor.model, session.actor.learner.optimizer, mesh, {}, source(config))
    return str(refused.value)


def test_a_checkpoint_is_never_written_over_another_nor_where_there_can_be_none(
    settings: TrainConfig, half: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    before = (half / "actor" / SUMMARY).read_text()
    for folder, why in ((half / "actor", "FileExistsError"), (tmp_path / "file" / "actor", "NotADirectoryError")):
        assert all(why in message for message in run_world(2, unwritable, settings, folder))
    assert (half / "actor" / SUMMARY).read_text() == before

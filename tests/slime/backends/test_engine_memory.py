"""Which part of an engine is where."""

from pathlib import Path

import pytest

from slime.arguments.errors import UserError
from slime.backends.engine_memory import REST, WEIGHTS, EngineMemory
from tests.slime.backends.fake_engines import FakeCluster, open_engines
from tests.slime.rollout.runs import config
from tests.tiny import save_tiny_model

RELEASE, RESUME = "/release_memory_occupation", "/resume_memory_occupation"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path / "model")


def memory(model: Path, cluster: FakeCluster) -> EngineMemory:
    return EngineMemory(cluster, config(model, "p.jsonl", "--rollout-engine", "sglang", "--offload-rollout"))


def test_all_parts_leave_and_each_comes_back_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsdp_backend.device.accelerator_count", lambda: 1)
    with open_engines({}) as engines:
        parts = memory(model, FakeCluster(engines))
        parts.resume(*WEIGHTS)
        parts.release()
        parts.release()
        parts.resume(*WEIGHTS)
        parts.resume(*WEIGHTS, *REST)
        assert engines[0].asked == [
            (RELEASE, {"tags": ["cuda_graph", "kv_cache", "weights"]}),
            (RESUME, {"tags": ["weights"]}),
            (RESUME, {"tags": ["cuda_graph", "kv_cache"]}),
        ]


def test_an_engine_that_can_not_is_named(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsdp_backend.device.accelerator_count", lambda: 1)
    with open_engines({RELEASE: (400, {"message": "memory saver is off"})}) as engines:
        parts = memory(model, FakeCluster(engines))
        with pytest.raises(UserError, match=f"--offload-rollout: the rollout engine {engines[0].url} answered 400: memory"):
            parts.release()


def test_where_there_is_no_gpu_nothing_moves(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsdp_backend.device.accelerator_count", lambda: 0)
    with open_engines({}) as engines:
        parts = memory(model, FakeCluster(engines))
        parts.release()
        parts.resume(*WEIGHTS, *REST)
        assert engines[0].asked == []

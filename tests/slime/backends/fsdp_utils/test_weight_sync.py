"""Numbered versions, on engines without weights."""

from pathlib import Path
from typing import Any

import pytest

from slime.arguments.errors import UserError
from slime.backends.fsdp_utils.weight_sync import WeightSync
from tests.slime.backends.fake_engines import FakeCluster, open_engines
from tests.slime.rollout.runs import config
from tests.tiny import save_tiny_model

REFUSED = (400, {"message": "it does not fit"})


class FakeActor:
    """Writes empty folders, and fails to send to the engines it is told to, so many times."""

    def __init__(self, engines: FakeCluster, failing: dict[str, int] | None = None) -> None:
        self.engines, self.failing, self.sent = engines, failing or {}, list[tuple[int, list[str]]]()

    def export(self, folder: Path) -> None:
        folder.mkdir(parents=True)

    def send_weights(self, urls: list[str], version: int) -> dict[str, str]:
        self.sent.append((version, urls))
        failed = {url: "no room" for url in urls if self.failing.get(url, 0) > 0}
        for url in failed:
            self.failing[url] -= 1
        for engine in self.engines.engines:
            if engine.url in urls and engine.url not in failed:
                engine.version = str(version)
        return failed


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("sync") / "model")


def sync(model: Path, folder: Path, actor: Any, engines: FakeCluster, transport: str) -> WeightSync:
    flags = ["--rollout-engine", "sglang", "--update-weight-transport", transport]
    return WeightSync(actor, engines, config(model, "p.jsonl", *flags), folder / "transfer")


def test_by_disk_the_newest_version_stays_and_older_ones_go(model: Path, tmp_path: Path) -> None:
    with open_engines({}, {}) as engines:
        cluster = FakeCluster(engines)
        weights = sync(model, tmp_path, FakeActor(cluster), cluster, "disk")
        assert weights.newest() == str(model)
        for version in (1, 2):
            weights.update()
            assert [engine.version for engine in engines] == [str(version)] * 2
            assert [folder.name for folder in (tmp_path / "transfer").iterdir()] == [f"version_{version}"]
        weights.close()
        assert not (tmp_path / "transfer").exists()


def test_through_memory_nothing_is_written(model: Path, tmp_path: Path) -> None:
    with open_engines({}, {}) as engines:
        cluster = FakeCluster(engines)
        weights = sync(model, tmp_path, FakeActor(cluster), cluster, "tensor")
        weights.update()
        assert [engine.version for engine in engines] == ["1", "1"]
        assert not (tmp_path / "transfer").exists()


def test_an_engine_that_died_comes_back_from_a_folder_with_the_new_version_and_is_sent_nothing(
    model: Path, tmp_path: Path
) -> None:
    with open_engines({}, {}) as engines:
        cluster = FakeCluster(engines)
        actor = FakeActor(cluster, {engines[0].url: 1})
        weights = sync(model, tmp_path, actor, cluster, "nccl")
        cluster.dead = [0]
        weights.update()
        assert cluster.replaced == [(str(tmp_path / "transfer" / "version_1"), 1)]
        assert len(actor.sent) == 1
        weights.update()
        assert not (tmp_path / "transfer" / "version_1").exists()


def test_one_that_failed_but_lives_is_sent_them_again(model: Path, tmp_path: Path) -> None:
    with open_engines({}, {}) as engines:
        cluster = FakeCluster(engines)
        actor = FakeActor(cluster, {engines[1].url: 1})
        sync(model, tmp_path, actor, cluster, "nccl").update()
        assert actor.sent == [(1, [e.url for e in engines]), (1, [engines[1].url])]
        assert [engine.version for engine in engines] == ["1", "1"]


def test_one_that_fails_again_is_named(model: Path, tmp_path: Path) -> None:
    with open_engines({}, {"/update_weights_from_disk": REFUSED}) as engines:
        cluster = FakeCluster(engines)
        weights = sync(model, tmp_path, FakeActor(cluster), cluster, "disk")
        with pytest.raises(UserError, match=f"version 1 did not reach the rollout engine {engines[1].url}: answered 400: it d"):
            weights.update()


def test_one_that_says_another_version_in_the_end_is_named(model: Path, tmp_path: Path) -> None:
    with open_engines({}, {"/model_info": (200, {"weight_version": "5"})}) as engines:
        cluster = FakeCluster(engines)
        weights = sync(model, tmp_path, FakeActor(cluster), cluster, "tensor")
        with pytest.raises(UserError, match=f"the rollout engine {engines[1].url} has weight version 5, not 1 as it was sent"):
            weights.update()


def test_what_a_checkpoint_goes_on_with_has_its_number(model: Path, tmp_path: Path) -> None:
    with open_engines({}) as engines:
        cluster = FakeCluster(engines)
        weights = sync(model, tmp_path, FakeActor(cluster), cluster, "tensor")
        weights.resume(4)
        assert (weights.version, engines[0].version) == (4, "4")
        assert weights.newest().endswith("version_4")

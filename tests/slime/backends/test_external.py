"""Engines that run already."""

from pathlib import Path

import pytest

from slime.arguments.errors import ProcessDied, UserError
from slime.backends.external import ExternalEngines
from slime.utils.http_utils import post
from tests.slime.backends.embedded.engines import run
from tests.slime.backends.fake_engines import FakeEngine, open_engines
from tests.slime.rollout.runs import config
from tests.tiny import save_tiny_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path / "model")


def external(model: Path, engines: list[FakeEngine]) -> ExternalEngines:
    addresses = [engine.url.removeprefix("http://") for engine in engines]
    flags = ["--rollout-engine", "sglang", "--rollout-external-engine-addrs", *addresses]
    return ExternalEngines(config(model, "p.jsonl", *flags))


def test_requests_reach_them_in_turn_and_they_outlive_the_run(model: Path) -> None:
    with open_engines({}, {}) as engines:
        engines[1].version = "left by another run"
        used = external(model, engines)
        assert engines[1].asked[-1] == ("/update_weights_from_disk", {"model_path": str(model), "weight_version": "0"})
        host, port = used.address
        for _ in range(4):
            run(post(f"http://{host}:{port}/generate", {}))
        assert [engine.paths().count("/generate") for engine in engines] == [2, 2]
        assert used.replace_dead(lambda: "folder", 1) == []
        used.close()
        assert run(post(f"{engines[0].url}/generate", {}))["success"]


def test_one_that_is_not_there_or_not_ready_is_named_at_the_start(model: Path) -> None:
    with open_engines({}, {"/health_generate": (503, "warming up")}) as engines:
        with pytest.raises(UserError, match=f"addrs {engines[1].url[7:]} answered 503: warming up"):
            external(model, engines)
        engines[0].close()
        with pytest.raises(UserError, match=f"addrs {engines[0].url[7:]} can't be reached"):
            external(model, engines[:1])


def test_one_that_does_not_find_the_checkpoint_is_named(model: Path) -> None:
    with open_engines({"/update_weights_from_disk": (400, {"message": "no such folder"})}) as engines:  # noqa: SIM117
        with pytest.raises(UserError, match=f"does not take the weights of --hf-checkpoint {model}: it answered 400: no such"):
            external(model, engines)


def test_one_that_dies_ends_the_run(model: Path) -> None:
    with open_engines({}) as engines:
        used = external(model, engines)
        engines[0].close()
        with pytest.raises(ProcessDied, match="can't be reached"):
            used.replace_dead(lambda: "folder", 1, patience=1.0)
        used.close()

"""Which processes a run needs."""

from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slime.backends.cluster import Cluster, world_sizes
from tests.slime.rollout.runs import config
from tests.tiny import save_tiny_model

ALL = {"actor", "critic", "rollout"}
REPLAY = "--load-debug-rollout-data {rollout_id}.pt"
CASES = [
    ("--debug-rollout-only", {"rollout"}),
    ("--debug-rollout-only --kl-coef 0.1", {"rollout"}),
    ("", ALL),
    ("--loss-type sft_loss", {"actor"}),
    ("--advantage-estimator grpo", {"actor", "rollout"}),
    (REPLAY, {"actor", "critic"}),
    (f"--advantage-estimator grpo {REPLAY}", {"actor"}),
    # A run of two rollouts.
    ("--num-critic-only-steps 1", ALL),
    ("--num-critic-only-steps 2", {"critic", "rollout"}),
    ("--num-critic-only-steps 2 --use-kl-loss --kl-loss-coef 0.1", {"critic", "rollout"}),
    ("--num-critic-only-steps 2 --kl-coef 0.1", ALL),
    (f"--num-critic-only-steps 2 {REPLAY}", {"critic"}),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("cluster") / "model")


def sizes(model: Path, flags: str, gpus: int = 0) -> dict[str, int]:
    return world_sizes(config(model, "prompts.jsonl", *flags.split()), gpus)


@pytest.mark.parametrize(("flags", "needed"), CASES)
def test_a_role_that_nothing_asks_for_has_no_processes(model: Path, flags: str, needed: set[str]) -> None:
    cluster = "--actor-num-gpus-per-node 2 --critic-num-gpus-per-node 3 --rollout-num-gpus 4"
    of_ray = {role: size if role in needed else 0 for role, size in {"actor": 2, "critic": 3, "rollout": 4}.items()}
    assert sizes(model, f"{cluster} {flags}") == of_ray
    assert sizes(model, f"{cluster} {flags} --launcher local") == {role: int(role in needed) for role in ALL}


def test_a_role_has_slimes_eight_ranks_on_gpus_and_one_on_a_cpu_and_the_critic_as_many_as_the_actor(model: Path) -> None:
    assert sizes(model, "") == {"actor": 1, "critic": 1, "rollout": 1}
    assert sizes(model, "", gpus=2) == {"actor": 8, "critic": 8, "rollout": 1}
    assert sizes(model, "--actor-num-gpus-per-node 2", gpus=8) == {"actor": 2, "critic": 2, "rollout": 1}


@pytest.mark.parametrize(
    ("actor", "critic", "engines", "line"),
    [
        (2, 3, 1, "actor 2 ranks, critic 3 ranks, rollout 1 engines"),
        (2, None, 0, "actor 2 ranks"),
        (None, 3, 2, "critic 3 ranks, rollout 2 engines"),
    ],
)
def test_the_description_names_the_roles_there_are(actor: int | None, critic: int | None, engines: int, line: str) -> None:
    def group(size: int | None) -> Any:
        return None if size is None else SimpleNamespace(size=size)

    rollout: Any = SimpleNamespace(urls=["http://engine"] * engines) if engines else None
    assert Cluster(group(actor), group(critic), ExitStack(), rollout).describe() == line

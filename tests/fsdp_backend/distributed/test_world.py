"""Where processes meet."""

import pytest

from fsdp_backend.distributed.world import Rendezvous, join

VARIABLES = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "host", "MASTER_PORT": "29500"}


@pytest.mark.parametrize("agent", ["True", None])
def test_torchruns_environment_says_where(agent: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    if agent is not None:
        monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", agent)
    assert Rendezvous.from_torchrun() == Rendezvous(3, 4, 1, "host", 29500, hosted=agent is not None)


def test_a_process_that_torchrun_did_not_start_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_PORT")
    with pytest.raises(ValueError, match="MASTER_PORT not set: start this with torchrun"):
        Rendezvous.from_torchrun()


def test_several_ranks_without_an_address_are_refused() -> None:
    with pytest.raises(ValueError, match="2 ranks need an address"):
        join(Rendezvous(0, 2))

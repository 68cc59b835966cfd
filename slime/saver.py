"""Training state of the whole run, saved as units: begun after a rollout, committed once every role has written its part."""

from collections.abc import Mapping

from fsdp_backend.state.checkpoint import HF, is_whole
from slime.arguments.run_config import RunConfig
from slime.backends.cluster import Cluster
from slime.backends.fsdp_utils.group import Pending
from slime.backends.fsdp_utils.weight_sync import WeightSync
from slime.checkpoint import DriverState, Unit, begin, commit
from slime.generation import Generation
from slime.model_card import write_card


class Saver:
    """One unit is in work at a time."""

    def __init__(self, config: RunConfig, generation: Generation, cluster: Cluster, weights: WeightSync) -> None:
        self.config, self.generation, self.cluster, self.weights = config, generation, cluster, weights
        self._metrics: Mapping[str, float] = {}
        self._in_work: tuple[Unit, list[Pending[None]]] | None = None

    def resume(self, unit: Unit) -> int:
        """Put a unit's state into every part; returns the rollout to go on with."""
        for role, group in self.cluster.roles().items():
            group.load(unit.of_role(role), unit.state.rollout_id)
        self.generation.load_state_dict(unit.state.data)
        self.weights.resume(unit.state.weight_version)
        return unit.state.rollouts_done

    def begin(self, rollout_id: int, metrics: Mapping[str, float]) -> None:
        """Let every role write, behind what it has still to do for this rollout, whose metrics go on the model cards. The unit
        before is committed first."""
        self.commit()
        self._metrics = metrics
        roles = self.cluster.roles()
        state = DriverState(rollout_id, self.weights.version, {role: role for role in roles}, self.generation.state_dict())
        unit = begin(self.config.run, state)
        self._in_work = unit, [group.start_save(unit.of_role(role), rollout_id) for role, group in roles.items()]

    def commit_if_whole(self) -> None:
        """Make the unit in work count, if there is one and all of it is written. Waits for nothing."""
        if self._in_work is None:
            return
        unit, _ = self._in_work
        if all(is_whole(unit.of_role(role)) for role in unit.state.roles):
            self._in_work = None
            for role in unit.state.roles:
                write_card(unit.of_role(role) / HF, role, self.config, unit.state.rollouts_done, self._metrics)
            commit(unit, self.config.run.keep_last)

    def commit(self) -> None:
        """Make the unit in work count, if there is one, and wait until all of it is written. The metrics of its rollout must
        be on disk by then: they are the part of a run that its unit does not hold."""
        if self._in_work is not None:
            for pending in self._in_work[1]:
                pending.result()
            for group in self.cluster.roles().values():
                group.finish_save()
            self.commit_if_whole()

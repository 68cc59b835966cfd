"""Joins Ray or starts it, decides which process goes where, and starts the roles and engines."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from fsdp_backend import device
from slime.arguments.errors import UserError
from slime.arguments.run_config import RunConfig
from slime.backends.cluster import Cluster, world_sizes
from slime.backends.external import ExternalEngines
from slime.ray.engines import RayEngines
from slime.ray.ranks import RayGroup
from slime.ray.watch import Watch


def launch(config: RunConfig, logs: Path) -> Cluster:
    """Bring up actor, critic and engines side by side. If one of them fails, all that was started is ended again.
    `logs`: folder for what engines print.

    The Ray that RAY_ADDRESS names, as it does in a `ray job`, or that `ray start` left running on this machine is joined; where
    there is none, one is started for this run and ends with it.
    """
    with ExitStack() as resources:
        ray.init(include_dashboard=False, logging_level="error")
        resources.callback(ray.shutdown)
        sizes = world_sizes(config, device.accelerator_count())
        places = _places(config, sizes)
        watch, roles = Watch(), {}
        for role in ("actor", "critic"):
            if sizes[role]:
                roles[role] = RayGroup(role, config, places[role], watch)
                resources.callback(roles[role].close)
        engines: RayEngines | ExternalEngines | None = None
        if sizes["rollout"]:
            engines = RayEngines(config, places["rollout"], watch, logs)
            resources.callback(engines.close)
        elif config.generates_responses:
            engines = ExternalEngines(config)
            resources.callback(engines.close)
        for group in roles.values():
            group.wait_until_built()
        if isinstance(engines, RayEngines):
            engines.open()
        return Cluster(roles.get("actor"), roles.get("critic"), resources.pop_all(), engines, watch.check)


def _places(config: RunConfig, sizes: dict[str, int]) -> dict[str, list[dict[str, Any]]]:
    """Ray options for every process. On a CPU Ray need not count anything. GPUs are one bundle each, those of an engine one
    together."""
    available = int(ray.cluster_resources().get("GPU", 0))
    if not available:
        return {role: [{"num_cpus": 0}] * size for role, size in sizes.items()}
    widths = {role: [config.engine_gpus if role == "rollout" else 1] * size for role, size in sizes.items()}
    apart = [width for role in sizes for width in widths[role]]
    bundles = [1] * max(sizes.values()) if config.cluster.colocate else apart
    if sum(bundles) > available:
        wanted = ", ".join(f"{role} {sum(widths[role])}" for role in sizes)
        raise UserError(f"{sum(bundles)} GPUs are needed ({wanted}), Ray has {available}: ask for fewer, or add --colocate")
    group = placement_group([{"GPU": width, "CPU": 1} for width in bundles])
    ray.get(group.ready())
    share = 1 / sum(size > 0 for size in sizes.values()) if config.cluster.colocate else 1.0
    places: dict[str, list[dict[str, Any]]] = {}
    first = 0
    for role in sizes:
        places[role] = [on_bundle(group, first + i, share * width) for i, width in enumerate(widths[role])]
        first += 0 if config.cluster.colocate else len(widths[role])
    return places


def on_bundle(group: PlacementGroup, bundle: int, num_gpus: float) -> dict[str, Any]:
    """Ray options that put an actor on one bundle of a placement group."""
    strategy = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=bundle)
    return {"num_cpus": 0, "num_gpus": num_gpus, "scheduling_strategy": strategy}

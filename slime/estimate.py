"""slime estimate: the memory of a run, printed before anything is started."""

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from fsdp_backend import device
from fsdp_backend.batch.columns import RolloutBatch
from fsdp_backend.config import RoleConfig
from fsdp_backend.estimate import PHASES, RoleMemory, estimate
from slime.arguments.errors import UserError
from slime.arguments.run_config import RunConfig
from slime.backends.cluster import world_sizes
from slime.rollout.manager import RolloutManager

_PARTS = {
    "weights": "weights",
    "optimizer": "optimizer state",
    "reference": "reference model",
    "gradients": "gradients",
    "activations": "activations of a micro-batch",
    "head": "log-prob head",
}
_PHASES = {
    "rest": "between uses",
    "forward": "forward (values, log-probs)",
    "update": "update",
    "weight sync": "weight sync, export",
}


@dataclass(frozen=True)
class RoleEstimate:
    """One role: its settings, its number of ranks, and what each of them needs."""

    name: str
    role: RoleConfig
    ranks: int
    memory: RoleMemory


def print_estimate(config: RunConfig) -> None:
    """Print bytes per rank by part and phase, whether they fit here, and which flags to change if not.

    Raises UserError for flags it makes no sense with, ValueError for checkpoints that would not load.
    """
    if not config.ppo.generates:
        raise UserError("slime estimate is for --loss-type policy_loss: supervised answers have lengths of their own")
    if config.ppo.loss_type == "custom_loss":
        raise UserError("slime estimate can't count what a loss of --custom-loss-function-path keeps alive")
    roles = estimates(config)
    console = Console()
    console.print(_table(roles))
    console.print(_verdict(config, roles), highlight=False)


def estimates(config: RunConfig) -> list[RoleEstimate]:
    """The roles that the run has, on rollouts of the longest prompt in the data and the longest response allowed."""
    prompt, response = RolloutManager(config).longest_prompt(), config.rollout.rollout_max_response_len
    n = config.rollout.rollout_batch_size * config.rollout.n_samples_per_prompt
    batch = RolloutBatch.from_samples([[0] * (prompt + response)] * n, [response] * n, [[1] * response] * n, [0.0] * n)
    sizes = world_sizes(config, device.accelerator_count())
    reference = (config.ppo.ref_load or config.actor.hf_checkpoint) if config.ppo.uses_reference else None
    roles = {"actor": (config.actor, reference), "critic": (config.critic, None)}
    return [
        RoleEstimate(name, role, sizes[name], estimate(name, role, sizes[name], batch, frozen))  # type: ignore[arg-type]
        for name, (role, frozen) in roles.items()
        if sizes[name]
    ]


def _table(roles: list[RoleEstimate]) -> Table:
    table = Table(title="Memory of a rank")
    table.add_column("")
    for each in roles:
        table.add_column(f"{each.name}, {each.ranks} rank{'s' if each.ranks > 1 else ''}", justify="right")
    for part, label in _PARTS.items():
        table.add_row(label, *[_size(getattr(each.memory, part)) for each in roles])
    table.add_section()
    for phase in PHASES:
        table.add_row(f"most alive: {_PHASES[phase]}", *[_size(each.memory.peak[phase]) for each in roles])
    return table


def _verdict(config: RunConfig, roles: list[RoleEstimate]) -> str:
    """One line whether it fits, and one with a remedy for each role where it does not."""
    available = device.total_memory()
    if device.accelerator_count() == 0:
        needed = {"all ranks together, in host memory,": sum(each.ranks * each.memory.most for each in roles)}
    elif config.cluster.colocate:
        needed = {"actor and critic on one GPU": sum(each.memory.most for each in roles)}
    else:
        needed = {each.name: each.memory.most for each in roles}
    lines = []
    for who, size in needed.items():
        fits = size <= available
        verb = "need" if " " in who else "needs"
        lines.append(f"{who} {verb} {_size(size)} of {_size(available)}: {'fits' if fits else 'does not fit'}")
        lines += [] if fits else [f"  {each.name}: {remedy(each)}" for each in roles if " " in who or each.name == who]
    lines.append("Not counted: rollout engines, what allocators waste, and about 1 GiB of libraries for each process.")
    return "\n".join(lines)


def remedy(each: RoleEstimate) -> str:
    """The flag that lowers the largest part of a role."""
    memory, role, prefix = each.memory, each.role, "" if each.name == "actor" else "critic-"
    largest = max(_PARTS, key=lambda part: getattr(memory, part))
    if largest == "activations":
        if not role.gradient_checkpointing:
            return f"most are activations: --{prefix}gradient-checkpointing keeps few of them"
        if role.use_dynamic_batch_size:
            return f"most are activations: lower --{prefix}max-tokens-per-gpu (now {role.max_tokens_per_gpu})"
        return f"most are activations: lower --{prefix}micro-batch-size (now {role.micro_batch_size})"
    if largest == "gradients" and memory.gradients > memory.weights:
        return f"most are gradients: --no-{prefix}fsdp-defer-grad-reduce keeps only shards of them"
    if largest == "head":
        return "most is the log-prob head's working memory, which depends on no flag: give the role more ranks"
    offload = "" if role.fsdp_cpu_offload else f", or --{prefix}fsdp-cpu-offload"
    return f"most is {_PARTS[largest]}: more ranks (--{prefix or 'actor-'}num-gpus-per-node){offload}"


def _size(size: int) -> str:
    return f"{size / 2**30:,.2f} GiB" if size >= 2**30 / 10 else f"{size / 2**20:,.1f} MiB"

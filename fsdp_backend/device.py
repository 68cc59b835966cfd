"""The only file that names a device or a collective backend. A machine without an accelerator takes the same path on its
CPU."""

import os

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy


def current() -> torch.device:
    """The device that this process trains on."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return torch.device("cpu")
    return torch.device(accelerator.type, torch.accelerator.current_device_index())


def select(local_rank: int) -> None:
    """Make accelerator `local_rank` modulo their number the current one; nothing to choose on a CPU."""
    if torch.accelerator.is_available():
        torch.accelerator.set_device_index(local_rank % torch.accelerator.device_count())


def host() -> torch.device:
    """Where tensors wait that have left the accelerator."""
    return torch.device("cpu")


def collective_backend() -> str:
    """gloo for tensors in host memory, and what PyTorch names for the accelerator (nccl for CUDA)."""
    kinds = sorted({"cpu", current().type})
    return ",".join(f"{kind}:{dist.get_default_backend_for_device(kind)}" for kind in kinds)


def device_backend() -> str:
    """The collective backend of the current device alone."""
    name: str = dist.get_default_backend_for_device(current())
    return name


def host_group() -> dist.ProcessGroup:
    """A new group of all ranks, for tensors and objects in host memory. Collective."""
    group: dist.ProcessGroup = dist.new_group(backend=dist.get_default_backend_for_device(host()))
    return group


def offload_policy(wanted: bool) -> OffloadPolicy:
    """FSDP's policy for parameters that live in host memory; without an accelerator they do anyway."""
    return CPUOffloadPolicy() if wanted and torch.accelerator.is_available() else OffloadPolicy()


def parameter_home(offloaded: bool) -> torch.device:
    """Where a rank keeps its shards between uses."""
    return host() if offloaded else current()


def has_varlen_attention(query: Tensor) -> bool:
    """Whether torch's varlen kernel takes tensors like this one."""
    return query.is_cuda and query.dtype in (torch.bfloat16, torch.float16)


def has_fused_optimizers() -> bool:
    """Whether torch's fused optimizers run here."""
    return current().type in ("cpu", "cuda", "xpu", "mps")


def accelerator_count() -> int:
    """Accelerators of this machine; 0 where training runs on the CPU."""
    return torch.accelerator.device_count() if torch.accelerator.is_available() else 0


def share_cpu(processes: int) -> None:
    """Give this process its share of the cores it may run on, where `processes` of them compute at once on the CPU."""
    if not torch.accelerator.is_available():
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        torch.set_num_threads(max(1, cores // processes))


def total_memory() -> int:
    """Bytes of the current accelerator, or of the host where there is none."""
    if torch.accelerator.is_available():
        return int(torch.accelerator.get_memory_info()[1])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def release_memory() -> None:
    """Hand unused memory of this process back to the accelerator."""
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()


def random_state() -> dict[str, Tensor]:
    """The state of torch's random generators of this process."""
    state = {"cpu": torch.get_rng_state()}
    if torch.accelerator.is_available():
        state["accelerator"] = torch.get_device_module(current()).get_rng_state()
    return state


def set_random_state(state: dict[str, Tensor]) -> None:
    """Let the generators go on from such a state; one saved with an accelerator goes on without, and the other way round."""
    torch.set_rng_state(state["cpu"])
    if torch.accelerator.is_available() and "accelerator" in state:
        torch.get_device_module(current()).set_rng_state(state["accelerator"])

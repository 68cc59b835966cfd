"""The only file that names a device or a collective backend. A machine without an accelerator takes the same path on its
CPU."""

import os

import torch
import torch.distributed as dist


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


def collective_backend() -> str:
    """gloo on a CPU, nccl on CUDA, and what PyTorch names for other accelerators."""
    return str(dist.get_default_backend_for_device(current().type))


def accelerator_count() -> int:
    """Accelerators of this machine; 0 where training runs on the CPU."""
    return torch.accelerator.device_count() if torch.accelerator.is_available() else 0


def share_cpu(processes: int) -> None:
    """Give this process its share of the machine's cores, where `processes` of them compute at once on the CPU."""
    if not torch.accelerator.is_available():
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // processes))

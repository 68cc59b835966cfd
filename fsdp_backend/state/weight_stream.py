"""The full weights of a sharded model, one tensor at a time."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from fsdp_backend.model.conversion import as_saved, is_converted
from fsdp_backend.model.loading import saved_tensors
from fsdp_backend.model.policy import PolicyModel
from fsdp_backend.model.sharding import reshard
from fsdp_backend.model.value import ValueModel


def full_weights(model: PolicyModel | ValueModel) -> Iterator[tuple[str, Tensor]]:
    """Yield (name in the checkpoint, full float32 tensor on the CPU) of every parameter, tied ones once, and persistent buffer.

    Collective: every rank must run through all of it. No more than one full tensor is alive at a time.
    """
    # A forward may have left gathered parameters, which would hide the float32 masters.
    reshard(model)
    converted = is_converted(model.hf)
    for name, tensor in saved_tensors(model.hf).items():
        with torch.no_grad():
            full = (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().cpu()
            yield from as_saved(model.hf, name, full) if converted else ((name, full),)

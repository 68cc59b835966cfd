"""The full weights of a sharded model, one tensor at a time."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def full_weights(hf: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield (Hugging Face name, full float32 tensor on the CPU) of every parameter, tied ones once, and persistent buffer.

    Collective: every rank must run through all of it. No more than one full tensor is alive at a time.
    """
    parameters = dict(hf.named_parameters())
    saved = hf.state_dict(keep_vars=True)
    buffers = {name: buffer for name, buffer in hf.named_buffers() if name in saved}
    for name, tensor in {**parameters, **buffers}.items():
        with torch.no_grad():
            full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            yield name, full.detach().cpu()

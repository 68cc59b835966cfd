"""Checkpoints whose tensors transformers renames or fuses on load, such as the experts of a mixture, saved one by one."""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, revert_weight_conversion


def is_converted(hf: Any) -> bool:
    """Whether transformers saves this architecture under other names than its modules have.

    Raises ValueError where that can't be undone one tensor at a time, as export must.
    """
    conversions = get_model_conversion_mapping(hf, add_legacy=False)
    if any(isinstance(c, WeightConverter) and len(c.target_patterns) > 1 for c in conversions):
        raise ValueError(f"model type {hf.config.model_type!r} splits its saved tensors on load: not supported")
    return bool(conversions)


def load_converted(hf: Any, parameters: dict[str, Tensor], folder: str, mesh: DeviceMesh) -> tuple[set[str], set[str]]:
    """Fill the sharded `parameters` (by name in `hf`) from a checkpoint that rank 0 loads whole and hands out tensor by tensor.

    Returns: the names that the checkpoint lacks, and those that `hf` has no place for. Raises ValueError, on every rank, if
    transformers can't load it.
    """
    outcome: list[Any] = [None]
    full: dict[str, Tensor] = {}
    if mesh.get_rank() == 0:
        try:
            # The weights that are absent would be drawn at random.
            with torch.random.fork_rng(devices=[]):
                loaded, info = type(hf).from_pretrained(folder, config=hf.config, dtype=torch.float32, output_loading_info=True)
            full = loaded.state_dict()
            outcome = [(set(info["missing_keys"]), set(info["unexpected_keys"]))]
        except (OSError, RuntimeError, ValueError) as error:
            outcome = [f"{folder} can't be loaded: {error}"]
    dist.broadcast_object_list(outcome, src=0, group=mesh.get_group())
    if isinstance(outcome[0], str):
        raise ValueError(outcome[0])
    with torch.no_grad():
        for name, tensor in parameters.items():
            _hand_out(full.get(name), tensor)
    return outcome[0]  # type: ignore[no-any-return]


def _hand_out(full: Tensor | None, tensor: Tensor) -> None:
    """Copy rank 0's whole tensor into what each rank holds of it."""
    whole = torch.empty(tensor.shape, device=tensor.device) if full is None else full.to(tensor.device)
    if isinstance(tensor, DTensor):
        tensor.copy_(distribute_tensor(whole, tensor.device_mesh, tensor.placements))
    else:
        dist.broadcast(whole, src=0)
        tensor.copy_(whole)


def as_saved(hf: Any, name: str, tensor: Tensor) -> Iterable[tuple[str, Tensor]]:
    """The names and tensors under which transformers saves a whole tensor of a converted architecture."""
    return revert_weight_conversion(hf, {name: tensor}).items()  # type: ignore[no-any-return]

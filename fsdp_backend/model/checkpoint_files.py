"""Reading parameters, or slices of them, from a Hugging Face folder of safetensors."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


class CheckpointFiles:
    """The tensors of a checkpoint folder by name, read on demand. Raises ValueError if the folder holds no safetensors."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if (folder / INDEX).is_file():
            weight_map = json.loads((folder / INDEX).read_text())["weight_map"]
            self._file_of = {name: folder / file for name, file in weight_map.items()}
        elif (folder / SINGLE).is_file():
            with safe_open(folder / SINGLE, framework="pt") as file:
                self._file_of = dict.fromkeys(file.keys(), folder / SINGLE)
        else:
            raise ValueError(f"{folder} holds neither {SINGLE} nor {INDEX}: only safetensors checkpoints are read")
        self._open: dict[Path, Any] = {}

    @property
    def names(self) -> set[str]:
        """All tensor names."""
        return set(self._file_of)

    def read(self, name: str, shape: torch.Size, start: int = 0, stop: int | None = None) -> Tensor:
        """Rows [start, stop) of a tensor, as float32. Raises ValueError unless the whole tensor has this shape."""
        file = self._file_of[name]
        if file not in self._open:
            self._open[file] = safe_open(file, framework="pt")
        piece = self._open[file].get_slice(name)
        if tuple(piece.get_shape()) != tuple(shape):
            raise ValueError(f"{file}: {name} has shape {tuple(piece.get_shape())}, the model wants {tuple(shape)}")
        rows = piece[start:stop] if shape else piece[...]
        return rows.to(torch.float32)  # type: ignore[no-any-return]

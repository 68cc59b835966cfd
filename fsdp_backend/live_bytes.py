"""The bytes in tensors that are alive, counted operation by operation; on fake tensors those that would be."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all storages that operations have made and that are still alive."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._bytes: dict[int, int] = {}
        self._total = self._peak = 0

    def __enter__(self) -> "LiveBytes":
        # FSDP frees and refills gathered parameters by resizing their storage.
        self._resize = torch.UntypedStorage.resize_
        watch = self

        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            result = watch._resize(storage, size)
            watch._note(storage)
            return result

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign, assignment]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented  # it comes again as operations on what this rank holds
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and not tensor.is_meta:
                self._note(tensor.untyped_storage())
        return made

    def now(self) -> int:
        """Bytes alive at this moment."""
        gc.collect()
        return self._total

    def peak_of(self, work: Callable[[], None]) -> int:
        """The most that was alive at once while `work` ran."""
        self._peak = self.now()
        work()
        return self._peak

    def _note(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._bytes:
            self._bytes[key] = 0
            weakref.finalize(storage, self._gone, key)
        self._total += storage.nbytes() - self._bytes[key]
        self._bytes[key] = storage.nbytes()
        self._peak = max(self._peak, self._total)

    def _gone(self, key: int) -> None:
        self._total -= self._bytes.pop(key)

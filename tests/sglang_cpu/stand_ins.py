"""Lets SGLang start on a machine without a GPU, for the tests. Imported by every Python of .venv-sglang as it starts.

SGLang on a CPU imports two compiled packages of which it then uses nothing: sgl_kernel, whose every name is made up here and
raises when called, and torchvision, whose operators must have been declared for it to be imported. Kernels are thus not under
test.
"""

import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

VERSION = "0.4.10"
"""The sgl_kernel that SGLang 0.5.23 asks for."""
OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
"""Of torchvision: those it describes without looking whether they are there."""


class Name:
    """Something that a kernel package would hold."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __getattr__(self, name: str) -> "Name":
        if name.startswith("__"):
            raise AttributeError(name)
        return Name(f"{self.path}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{self.path} needs a GPU: sgl_kernel is a stand-in here")


class KernelPackage(ModuleType):
    """sgl_kernel, or a module in it."""

    def __getattr__(self, name: str) -> Name:
        if name.startswith("__"):
            raise AttributeError(name)
        return Name(f"{self.__name__}.{name}")


class Finder:
    """Makes the kernel package up, and declares torchvision's operators the first time that it is looked for."""

    def __init__(self) -> None:
        self.library: Any = None

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        """As importlib asks."""
        if name == "torchvision" and self.library is None:
            import torch

            self.library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
            for schema in OPERATORS:
                self.library.define(schema)
        if name.partition(".")[0] == "sgl_kernel":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: Any) -> ModuleType:
        """An empty one."""
        module = KernelPackage(spec.name)
        module.__dict__["__version__"] = VERSION
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


sys.meta_path.insert(0, Finder())

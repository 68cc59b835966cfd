"""Which device and which collective backend is used is decided in one file."""

import ast

from tests.architecture.source import parsed, source_files

THE_FILE = "fsdp_backend/device.py"
FLAGS = "slime/arguments"
"""slime's word for weights that are broadcast is nccl, whatever carries them."""
NAMES = {"cpu", "cuda", "mps", "xpu", "npu", "hpu", "gloo", "nccl", "hccl", "xccl", "mpi"}


def names_a_device(text: str) -> bool:
    """ "cuda", "cuda:0" and "cpu:gloo,cuda:nccl" alike."""
    return any(part.split(":")[0] in NAMES for part in text.split(",")) and " " not in text


def test_no_other_file_names_a_device_or_a_collective_backend() -> None:
    found = [
        f"{file}:{node.lineno} {node.value!r}"
        for file in source_files()
        if str(file) != THE_FILE and file.parent.as_posix() != FLAGS
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and names_a_device(node.value)
    ]
    assert found == []


def test_no_file_reaches_for_the_modules_of_one_kind_of_device() -> None:
    found = [
        f"{file}:{node.lineno} torch.{node.attr}"
        for file in source_files()
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.Attribute) and node.attr in NAMES and ast.unparse(node.value) == "torch"
    ]
    assert found == []


def test_no_tensor_is_sent_to_one_kind_of_device() -> None:
    # .cpu() is not one: every device has a host.
    found = [
        f"{file}:{node.lineno} .{node.func.attr}()"
        for file in source_files()
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in NAMES - {"cpu"}
    ]
    assert found == []

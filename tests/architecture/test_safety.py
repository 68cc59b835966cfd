"""No code is run that came with a checkpoint."""

import ast

from tests.architecture.source import calls, source_files


def test_no_code_of_a_checkpoint_is_trusted() -> None:
    trusting = [
        f"{file}:{call.lineno} {name}"
        for file in source_files()
        for name, call in calls(file)
        for keyword in call.keywords
        if keyword.arg == "trust_remote_code" and ast.unparse(keyword.value) != "False"
    ]
    assert trusting == []


def test_torch_loads_tensors_and_nothing_that_runs() -> None:
    careless = [
        f"{file}:{call.lineno}"
        for file in source_files()
        for name, call in calls(file)
        if name == "torch.load" and not any(k.arg == "weights_only" and ast.unparse(k.value) == "True" for k in call.keywords)
    ]
    assert careless == []


def test_nothing_is_unpickled_or_evaluated() -> None:
    unsafe = {"eval", "exec", "pickle.load", "pickle.loads", "cloudpickle.load", "cloudpickle.loads"}
    assert [f"{file}:{call.lineno} {name}" for file in source_files() for name, call in calls(file) if name in unsafe] == []

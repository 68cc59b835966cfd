"""`--sglang-x VALUE`: flags that are SGLang's own, handed to its servers as `--x VALUE`. What they mean SGLang knows; which
of them exist is asked of the installed one before it starts (backends/sglang_utils/installed.py)."""

from collections.abc import Collection, Sequence

from slime.arguments.errors import UserError

PREFIX = "sglang_"
_BY_FLAG = {
    "model_path": "--hf-checkpoint",
    "model": "--hf-checkpoint",
    "tensor_parallel_size": "--rollout-num-gpus-per-engine",
    "tp_size": "--rollout-num-gpus-per-engine",
    "tp": "--rollout-num-gpus-per-engine",
    "random_seed": "--rollout-seed",
    "enable_memory_saver": "--offload-rollout",
    "enable_weights_cpu_backup": "--offload-rollout",
}
_OWN = ("host", "port", "weight_version", "nnodes", "node_rank", "dist_init_addr", "base_gpu_id")


def split_sglang_flags(tokens: Sequence[str], own: Collection[str]) -> tuple[list[str], dict[str, tuple[str, ...]]]:
    """Take SGLang's flags, with the words that follow each, out of a command line; those in `own` are this project's. The last
    of several wins, and `--no-sglang-x` takes it back. Raises UserError for what the run decides itself."""
    rest: list[str] = []
    found: dict[str, tuple[str, ...]] = {}
    taking: str | None = None
    for token in tokens:
        if token.startswith("--"):
            name, equals, value = token[2:].partition("=")
            name = name.replace("-", "_")
            taking = None
            if is_sglang_flag(name.removeprefix("no_"), own):
                _refuse_what_the_run_decides(token, name.removeprefix("no_"))
                found.pop(name.removeprefix("no_"), None)
                if name.startswith(PREFIX):
                    found[name] = (value,) if equals else ()
                    taking = None if equals else name
                continue
        if taking is None:
            rest.append(token)
        else:
            found[taking] = (*found[taking], token)
    return rest, found


def is_sglang_flag(name: str, own: Collection[str]) -> bool:
    """Whether a field name is for SGLang."""
    return name.startswith(PREFIX) and name not in own


def _refuse_what_the_run_decides(token: str, name: str) -> None:
    bare, flag = name.removeprefix(PREFIX), token.partition("=")[0]
    if bare in _BY_FLAG:
        raise UserError(f"{flag} follows {_BY_FLAG[bare]}: give that")
    if bare in _OWN:
        raise UserError(f"{flag} is set by the run itself: leave it out")

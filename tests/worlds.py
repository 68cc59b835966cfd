"""Real processes with gloo for tests: `run_world(2, function, …)` calls function(mesh, …) on two ranks and returns both
answers."""

import multiprocessing
import pickle
import socket
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

PRELOAD = ["torch", "torch.distributed.fsdp", "fsdp_backend.session", "fsdp_backend.state.hf_export"]
PRELOAD += ["slime.cli", "slime.loop", "slime.local.launch", "tests.end_to_end.runs"]
PRELOAD += [f"transformers.models.{name}.modeling_{name}" for name in ("qwen3", "qwen2", "llama")]
TIMEOUT_SECONDS = 120

# The forkserver imports torch and transformers once; a world then costs a fraction of a second.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(PRELOAD)


def run_world(size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Rank by rank, what `function(mesh, *args)` returned. It must be a module's top-level function.

    Raises AssertionError with the traceback of the first rank that raised, or if a rank does not answer.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pipes = [CONTEXT.Pipe(duplex=False) for _ in range(size)]
    processes = [
        CONTEXT.Process(target=_rank, args=(rank, size, port, pipes[rank][1], function, args), daemon=True)
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    try:
        answers = []
        for rank, (reader, _) in enumerate(pipes):
            assert reader.poll(TIMEOUT_SECONDS), f"rank {rank} of {size} did not answer within {TIMEOUT_SECONDS} s"
            ok, answer = pickle.loads(reader.recv_bytes())
            assert ok, f"rank {rank} of {size}:\n{answer}"
            answers.append(answer)
        return answers
    finally:
        for process in processes:
            process.kill()
            process.join()


def _rank(rank: int, size: int, port: int, answer: Connection, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    import torch

    from fsdp_backend.distributed.world import Rendezvous, join, leave

    torch.set_num_threads(1)
    try:
        mesh = join(Rendezvous(rank, size, rank, "127.0.0.1", port))
        # Plain pickle: multiprocessing would send tensors as handles that die with this process.
        answer.send_bytes(pickle.dumps((True, function(mesh, *args))))
        leave()
    except BaseException:
        answer.send_bytes(pickle.dumps((False, traceback.format_exc())))

"""The command line of an SGLang server, from a run's flags."""

import os
import socket

from fsdp_backend import device
from slime.arguments.run_config import RunConfig
from slime.arguments.sglang_flags import PREFIX
from slime.backends.engines import EngineStart
from slime.backends.sglang_utils.installed import sglang_python


def launch_command(config: RunConfig, start: EngineStart, port: int) -> list[str]:
    """What starts this engine. SGLang's own flags, given as --sglang-x, stand last: of a flag given twice the last counts."""
    words = [sglang_python(config), "-m", "sglang.launch_server", "--model-path", start.folder]
    words += ["--host", start.host, "--port", str(port), "--weight-version", str(start.version)]
    words += ["--tp-size", str(config.engine_gpus), "--random-seed", str(config.data.rollout_seed + start.place)]
    # A checkpoint that the trainer writes holds float32 masters: the type to generate with is the trainer's.
    words += ["--dtype", "bfloat16" if config.actor.bf16 else "float32", "--device", device.current().type]
    if not device.accelerator_count():
        words += ["--sleep-on-idle"]  # else each idle server keeps a core busy
    elif config.engine.offload_rollout:
        words += ["--enable-memory-saver", "--enable-weights-cpu-backup"]
    for name, values in config.sglang.items():
        words += [f"--{name.removeprefix(PREFIX).replace('_', '-')}", *values]
    return words


def environment(engines: int) -> dict[str, str]:
    """What the server's environment has besides this process's own; `engines` share this machine's cores."""
    if device.accelerator_count():
        return {}
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, len(os.sched_getaffinity(0)) // engines))
    return {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": threads}


def free_port(host: str) -> int:
    """A port that nothing listens at now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
    return port

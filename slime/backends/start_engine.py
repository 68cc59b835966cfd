"""Starts a rollout engine of the kind that the flags ask for. Each kind is imported only where it runs."""

from slime.arguments.run_config import RunConfig
from slime.backends.engines import EngineServer, EngineStart


def start_engine(config: RunConfig, start: EngineStart, engines: int) -> EngineServer:
    """Returns once it listens; `engines` of them share this machine. Raises ValueError if it does not start."""
    from fsdp_backend import device

    if config.engine.rollout_engine == "sglang":
        from slime.backends.sglang_utils.command import environment, free_port, launch_command
        from slime.backends.sglang_utils.server import SGLangServer

        port = free_port(start.host)
        url = f"http://{start.host}:{port}"
        return SGLangServer(launch_command(config, start, port), url, start.log, environment(engines))
    from slime.backends.embedded.engine import EmbeddedEngine
    from slime.backends.embedded.server import EmbeddedServer

    device.share_cpu(engines)
    engine = EmbeddedEngine(start.folder, config.data.rollout_seed, config.actor.bf16, start.version)
    return EmbeddedServer(engine, start.host)


def require_engine(config: RunConfig) -> None:
    """Raises UserError if what the engines need is not installed, or is told what it does not know."""
    starts_some = config.generates_responses and config.engine.rollout_external_engine_addrs is None
    if config.engine.rollout_engine == "sglang" and starts_some:
        from slime.backends.sglang_utils.installed import require_sglang

        require_sglang(config)

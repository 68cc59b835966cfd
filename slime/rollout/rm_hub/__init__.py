"""slime's plug-ins import these two from here."""

from slime.rollout.rm_hub.dispatch import async_rm, batched_async_rm

__all__ = ["async_rm", "batched_async_rm"]

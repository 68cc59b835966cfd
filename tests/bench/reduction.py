"""Gradients reduced once an optimizer step, against once a micro-batch, on two ranks."""

from dataclasses import fields, replace

from fsdp_backend.config import RoleConfig
from tests.bench.scaling import RANKS, world_seconds
from tests.bench.setting import Setting
from tests.bench.table import Row, Skipped, fastest, rounds_of
from tests.bench.timing import alternate

FIELD = "fsdp_defer_grad_reduce"


def rows(setting: Setting) -> list[Row]:
    """A whole iteration each, with micro-batches half as large as elsewhere: the more there are, the more is deferred."""
    if FIELD not in {field.name for field in fields(RoleConfig)}:
        raise Skipped(f"deferred gradient reduction: RoleConfig has no {FIELD}")
    small = replace(setting, tokens_per_micro_batch=setting.tokens_per_micro_batch // 2)
    deferred, immediate = alternate(
        setting.rounds,
        lambda: world_seconds(RANKS, small, **{FIELD: True}),
        lambda: world_seconds(RANKS, small, **{FIELD: False}),
    )
    ours, other = fastest(deferred), fastest(immediate)
    return [
        Row("deferred / immediate gradient reduction", ours, other, ours / other, "< 1", rounds=rounds_of(deferred, immediate))
    ]

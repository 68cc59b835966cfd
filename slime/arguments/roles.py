"""One definition of a role's flags, two prefixes: `--lr` is the actor's, `--critic-lr` the critic's, unset means the actor's
value."""

import ast
import dataclasses
import inspect
import re
import textwrap
from typing import Annotated, Any, get_type_hints

import tyro

from fsdp_backend.config import RoleConfig


def field_docstrings(cls: type) -> dict[str, str]:
    """The string under each field of a dataclass."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    docs = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        is_doc = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_doc:
            docs[field.target.id] = " ".join(below.value.value.split())  # type: ignore[attr-defined]
    return docs


def _critic_overrides() -> type:
    """A dataclass with a field `critic_x: T | None = None` for each field `x: T` of RoleConfig."""
    docs, types = field_docstrings(RoleConfig), get_type_hints(RoleConfig)
    fields = []
    for field in dataclasses.fields(RoleConfig):
        help_text = f"The critic's --{field.name.replace('_', '-')}: {docs[field.name]} None: the actor's value."
        kind: Any = Annotated[types[field.name] | None, tyro.conf.arg(help=help_text)]
        fields.append((f"critic_{field.name}", kind, dataclasses.field(default=None)))
    overrides = dataclasses.make_dataclass("CriticOverrides", fields, frozen=True)
    overrides.__doc__ = "The critic's own training settings. Each one that is not set takes the actor's value."
    return overrides


CriticOverrides: Any = _critic_overrides()
CRITIC_SWITCHES = frozenset(f"critic_{name}" for name, kind in get_type_hints(RoleConfig).items() if kind is bool)
"""Flags of the critic that are on or off."""
STEP_SIZE = ("global_batch_size", "num_steps_per_rollout")
"""Two ways to say one thing."""


def critic_role(actor: RoleConfig, overrides: Any, load: str | None) -> RoleConfig:
    """The actor's settings with the critic's own put over them. `load`, where it is given, is the checkpoint.

    Raises ValueError for bad values, and for two checkpoints.
    """
    values = {f.name.removeprefix("critic_"): getattr(overrides, f.name) for f in dataclasses.fields(overrides)}
    own = {name: value for name, value in values.items() if value is not None}
    if load is not None and own.setdefault("hf_checkpoint", load) != load:
        raise ValueError(f"critic_load {load} and critic_hf_checkpoint {own['hf_checkpoint']} contradict each other")
    if own.keys() & set(STEP_SIZE):
        # The critic has said it in one way; what the actor says in the other would contradict it.
        own = dict.fromkeys(STEP_SIZE, None) | own
    try:
        return dataclasses.replace(actor, **own)
    except ValueError as error:
        names = "|".join(f.name for f in dataclasses.fields(RoleConfig))
        raise ValueError(re.sub(rf"\b(?:{names})\b", r"critic_\g<0>", str(error))) from error

"""Which parameters of a role are trained."""

import re

from torch import nn

from fsdp_backend.config import RoleConfig


def freeze(hf: nn.Module, role: RoleConfig) -> None:
    """Take `requires_grad` from the parameters that the role's name lists leave out; names are Hugging Face's.

    An expression is searched anywhere in the name. Raises ValueError if one finds nothing or nothing is left to train.
    """
    names = [name for name, _ in hf.named_parameters()]
    for flag in ("freeze_params_name_list", "only_train_params_name_list"):
        for expression in getattr(role, flag) or ():
            if not any(re.search(expression, name) for name in names):
                raise ValueError(f"{flag}: {expression!r} is found in no parameter name of {role.hf_checkpoint}")
    for name, parameter in hf.named_parameters():
        chosen = role.only_train_params_name_list is None or _found(name, role.only_train_params_name_list)
        parameter.requires_grad_(chosen and not _found(name, role.freeze_params_name_list or ()))
    if not any(parameter.requires_grad for parameter in hf.parameters()):
        raise ValueError(
            f"freeze_params_name_list and only_train_params_name_list leave nothing of {role.hf_checkpoint} to train"
        )


def _found(name: str, expressions: tuple[str, ...]) -> bool:
    return any(re.search(expression, name) for expression in expressions)

"""Settings of one evaluation data set, resolved. The names are slime's."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any


@dataclass
class EvalDatasetConfig:
    """A data set of --eval-config or --eval-prompt-data."""

    name: str
    path: str
    rm_type: str | None = None
    """In place of --rm-type."""
    custom_rm_path: str | None = None
    """In place of --custom-rm-path."""
    custom_generate_function_path: str | None = None
    """In place of --custom-generate-function-path."""
    metadata_overrides: dict[str, Any] = field(default_factory=dict)
    """Added to the metadata of every row."""
    input_key: str | None = None
    label_key: str | None = None
    metadata_key: str | None = None
    apply_chat_template: bool | None = None
    n_samples_per_eval_prompt: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_response_len: int | None = None
    min_new_tokens: int | None = None
    stop: list[str] | None = None
    stop_token_ids: list[int] | None = None
    skip_special_tokens: bool | None = None
    no_stop_trim: bool = True
    repetition_penalty: float | None = None

    def inject_metadata(self, metadata: Any) -> dict[str, Any]:
        """A row's metadata with the data set's reward type and overrides."""
        row = dict(metadata) if isinstance(metadata, Mapping) else {}
        return row | ({} if self.rm_type is None else {"rm_type": self.rm_type}) | self.metadata_overrides

    def sampling_params(self) -> dict[str, Any]:
        """What a request to the engine asks for."""
        params = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "max_new_tokens": self.max_response_len,
            "stop": list(self.stop or ()),
            "stop_token_ids": list(self.stop_token_ids or ()),
            "skip_special_tokens": self.skip_special_tokens,
            "no_stop_trim": self.no_stop_trim,
            "spaces_between_special_tokens": False,
        }
        rare = {"min_new_tokens": self.min_new_tokens, "repetition_penalty": self.repetition_penalty}
        return params | {name: value for name, value in rare.items() if value is not None}


_FLAGS: dict[str, tuple[str, ...]] = {
    "input_key": ("eval_input_key", "input_key"),
    "label_key": ("eval_label_key", "label_key"),
    "metadata_key": ("metadata_key",),
    "apply_chat_template": ("apply_chat_template",),
    "n_samples_per_eval_prompt": ("n_samples_per_eval_prompt",),
    "temperature": ("eval_temperature", "rollout_temperature"),
    "top_p": ("eval_top_p", "rollout_top_p"),
    "top_k": ("eval_top_k", "rollout_top_k"),
    "max_response_len": ("eval_max_response_len", "rollout_max_response_len"),
    "min_new_tokens": ("eval_min_new_tokens",),
    "stop": ("rollout_stop",),
    "stop_token_ids": ("rollout_stop_token_ids",),
    "skip_special_tokens": ("rollout_skip_special_tokens",),
}
"""Where a setting comes from that neither the data set nor the defaults give: the first of these flags that is set."""


def _is_count(least: int) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= least


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_VALUES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "n_samples_per_eval_prompt": (_is_count(1), "an integer of at least 1"),
    "max_response_len": (_is_count(1), "an integer of at least 1"),
    "min_new_tokens": (lambda v: v is None or _is_count(0)(v), "an integer of at least 0"),
    "temperature": (lambda v: _is_number(v) and v >= 0, "a number of at least 0"),
    "top_p": (lambda v: _is_number(v) and 0 < v <= 1, "a number in (0, 1]"),
    "top_k": (lambda v: v == -1 or _is_count(1)(v), "-1 (all), or an integer of at least 1"),
    "repetition_penalty": (lambda v: v is None or _is_number(v), "a number"),
    "metadata_overrides": (lambda v: isinstance(v, dict), "a mapping"),
}


def ensure_dataset_list(config: Any) -> list[dict[str, Any]]:
    """The data sets of a configuration, which may be a list, or a mapping by name. Raises ValueError for anything else."""
    entries = [{"name": name, **(each or {})} for name, each in config.items()] if isinstance(config, Mapping) else config
    if not isinstance(entries, list) or not all(isinstance(each, Mapping) for each in entries):
        raise ValueError(f"datasets must be a list of mappings, or a mapping by name, not {str(config)[:80]!r}")
    return [dict(each) for each in entries]


def build_eval_dataset_configs(
    args: Any, raw_config: Iterable[Mapping[str, Any]], defaults: Mapping[str, Any]
) -> list[EvalDatasetConfig]:
    """Resolve every setting: the data set's own, else of `defaults`, else of the --eval-… flag, else of the --rollout-… flag.

    Raises ValueError for a key that is no setting, a name or path that is missing or twice there, and a value out of range.
    """
    known = {each.name for each in fields(EvalDatasetConfig)}
    if unknown := set(defaults) - (known - {"name", "path"}):
        raise ValueError(f"defaults has unknown keys: {', '.join(sorted(unknown))}")
    configs: list[EvalDatasetConfig] = []
    for entry in raw_config:
        if missing := [key for key in ("name", "path") if not isinstance(entry.get(key), str)]:
            raise ValueError(f"data set {entry.get('name', len(configs))} has no {missing[0]}")
        if unknown := set(entry) - known:
            raise ValueError(f"data set {entry['name']} has unknown keys: {', '.join(sorted(unknown))}")
        configs.append(EvalDatasetConfig(**{each: _pick(args, each, entry, defaults) for each in known}))
        for name, (is_valid, wanted) in _VALUES.items():
            if not is_valid(value := getattr(configs[-1], name)):
                raise ValueError(f"data set {entry['name']}: {name} must be {wanted}, got {value!r}")
    names = [config.name for config in configs]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"the name {twice.pop()} is given twice")
    return configs


def _pick(args: Any, name: str, entry: Mapping[str, Any], defaults: Mapping[str, Any]) -> Any:
    given = [source[name] for source in (entry, defaults) if source.get(name) is not None]
    given += [value for flag in _FLAGS.get(name, ()) if (value := getattr(args, flag)) is not None]
    return given[0] if given else _DEFAULTS[name]


_DEFAULTS = {
    each.name: each.default_factory() if each.default_factory is not MISSING else each.default
    for each in fields(EvalDatasetConfig)
}

"""Sample: one prompt and its response, on its way from data to training. The name, fields and methods are slime's."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any


class Status(Enum):
    """How a sample's generation stands."""

    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass
class SpecInfo:
    """Counts of speculative decoding, over all requests of a sample."""

    spec_accept_token_num: int = 0
    spec_draft_token_num: int = 0
    spec_verify_ct: int = 0
    completion_token_num: int = 0

    def add(self, meta_info: dict[str, Any]) -> None:
        """Add those of one answer; an engine that does not speculate gives none."""
        self.spec_accept_token_num += meta_info.get("spec_accept_token_num", 0)
        self.spec_draft_token_num += meta_info.get("spec_draft_token_num", 0)
        self.spec_verify_ct += meta_info.get("spec_verify_ct", 0)
        self.completion_token_num += meta_info.get("completion_tokens", 0)


@dataclass
class PrefixCacheInfo:
    """How much of the prompts the engine had cached, over all requests of a sample."""

    cached_tokens: int = 0
    total_prompt_tokens: int = 0

    def add(self, meta_info: dict[str, Any]) -> None:
        """Add the counts of one answer."""
        self.cached_tokens += meta_info.get("cached_tokens", 0)
        self.total_prompt_tokens += meta_info.get("prompt_tokens", 0)


_FINISHED = {"stop": Status.COMPLETED, "length": Status.TRUNCATED, "abort": Status.ABORTED}


@dataclass
class Sample:
    """Fields are filled in as the sample goes: data source, generate function, reward function."""

    group_index: int | None = None
    """Which prompt group of the run it belongs to."""
    index: int | None = None
    """Its number within the run."""
    rollout_id: int | None = None
    """Samples with the same id share a rollout's weight in the loss. None: the sample is a rollout of its own."""
    prompt: str | list[dict[str, Any]] = ""
    """Text, or chat messages."""
    tokens: list[int] = field(default_factory=list)
    """Prompt tokens, and after generation the response's too."""
    multimodal_inputs: dict[str, Any] | None = None
    """Images and the like; training refuses a sample that has any."""
    multimodal_train_inputs: dict[str, Any] | None = None
    """The same, processed."""
    multimodal_train_input_id: str | None = None
    """The same, by name."""
    apply_chat_template_kwargs: dict[str, Any] | None = None
    """A plug-in's own settings of the chat template."""
    response: str = ""
    """The response as text."""
    response_length: int = 0
    """How many of `tokens`, from the end, are the response."""
    label: Any = None
    """The data's answer, for the reward function."""
    reward: float | dict[str, Any] | None = None
    """A number, or a dict from which --reward-key picks."""
    loss_mask: list[int] | None = None
    """One entry a response token, 1 = trainable, 0 = observation. None: all of them are trainable."""
    weight_versions: list[str] = field(default_factory=list)
    """Weight versions that generated it, one a request."""
    rollout_log_probs: list[float] | None = None
    """One entry a response token, as the engine saw them; 0 for observations."""
    rollout_top_p_token_ids: Any = None
    """Flat: the token ids that each response token was sampled from, where sampling was cut."""
    rollout_top_p_token_offsets: Any = None
    """Where each response token's ids begin in the former, and at last its length."""
    rollout_routed_experts: Any = None
    """Experts that the engine chose; training refuses a sample that has them."""
    remove_sample: bool = False
    """Keep the sample in the batch but train on none of its tokens."""
    teacher_log_probs: list[float] | None = None
    """Of a teacher to distil from; training refuses a sample that has them."""
    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    """The data's --metadata-key column; plug-ins may add to it."""
    generate_function_path: str | None = None
    """In place of --custom-generate-function-path, for this sample."""
    custom_rm_path: str | None = None
    """In place of --custom-rm-path, for this sample."""
    train_metadata: dict[str, Any] | None = None
    """A plug-in's own, carried along."""
    session_id: str | None = None
    """Names a conversation to a router that keeps conversations on one engine."""
    non_generation_time: float = 0.0
    """Seconds spent on other things than generating, such as tools."""
    spec_info: SpecInfo = field(default_factory=SpecInfo)
    prefix_cache_info: PrefixCacheInfo = field(default_factory=PrefixCacheInfo)

    Status = Status
    SpecInfo = SpecInfo
    PrefixCacheInfo = PrefixCacheInfo

    def to_dict(self) -> dict[str, Any]:
        """Its fields as plain values."""
        plain = {"status": self.status.value, "spec_info": asdict(self.spec_info)}
        return {**self.__dict__, **plain, "prefix_cache_info": asdict(self.prefix_cache_info)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Sample":
        """What to_dict gave. Values that are no fields become attributes, as in slime."""
        known = {name: value for name, value in values.items() if name in cls.__dataclass_fields__}
        known["status"] = Status(values["status"])
        for name, kind in (("spec_info", SpecInfo), ("prefix_cache_info", PrefixCacheInfo)):
            known[name] = kind(**values.get(name, {}))
        sample = cls(**known)
        for name in values.keys() - known.keys():
            setattr(sample, name, values[name])
        return sample

    def get_reward_value(self, args: Any) -> float:
        """The number to train on: `reward`, or its entry --reward-key."""
        if args.reward_key is None:
            return self.reward  # type: ignore[return-value]
        return self.reward[args.reward_key]  # type: ignore[index, no-any-return]

    @property
    def effective_response_length(self) -> int:
        """Trainable tokens of the response."""
        return self.response_length if self.loss_mask is None else sum(self.loss_mask)

    def append_response_tokens(
        self,
        args: Any = None,
        *,
        tokens: Sequence[int] = (),
        log_probs: Sequence[float] | None = None,
        trainable: bool = True,
        meta_info: dict[str, Any] | None = None,
        text: str | None = None,
        update_terminal_info: bool = True,
    ) -> None:
        """Lengthen the response, and with it loss mask and log-probs.

        What the model generated is trainable and comes with its log-probs; an observation (a tool's output) is not, and gets
        mask 0 and log-prob 0. `meta_info` is the engine's: status, weight version and counts are taken from it, unless
        `update_terminal_info` is off. Raises ValueError where tokens and log-probs do not belong together.
        """
        new, earlier = [int(token) for token in tokens], self.response_length
        known = self._log_probs_of(new, log_probs, trainable)
        if known is not None:
            if self.rollout_log_probs is None and trainable and earlier:
                raise ValueError(f"the response has {earlier} tokens without rollout_log_probs: log-probs can't be appended")
            self.rollout_log_probs = ([0.0] * earlier if self.rollout_log_probs is None else self.rollout_log_probs) + known
        if new:
            self.tokens = self.tokens + new
            self.response_length += len(new)
            self.loss_mask = ([1] * earlier if self.loss_mask is None else self.loss_mask) + [int(trainable)] * len(new)
        self.response += text or ""
        for name in ("loss_mask", "rollout_log_probs"):
            column = getattr(self, name)
            if column is not None and len(column) != self.response_length:
                raise ValueError(f"{name} has {len(column)} entries for a response of {self.response_length} tokens")
        if meta_info is not None and update_terminal_info and "finish_reason" in meta_info:
            self._take_terminal_info(meta_info, bool(new))

    @staticmethod
    def _log_probs_of(tokens: list[int], log_probs: Sequence[float] | None, trainable: bool) -> list[float] | None:
        if not trainable:
            if tokens and log_probs is not None:
                raise ValueError("observation tokens (trainable=False) have no log_probs")
            return [0.0] * len(tokens)
        if log_probs is None:
            if tokens:
                raise ValueError("trainable tokens need their log_probs")
            return None
        if len(log_probs) != len(tokens):
            raise ValueError(f"{len(log_probs)} log_probs for {len(tokens)} tokens")
        return [float(each) for each in log_probs]

    def _take_terminal_info(self, meta_info: dict[str, Any], has_tokens: bool) -> None:
        self.status = _FINISHED[meta_info["finish_reason"]["type"]]
        if has_tokens and "weight_version" in meta_info:
            self.weight_versions = [*self.weight_versions, str(meta_info["weight_version"])]
        self.spec_info.add(meta_info)
        self.prefix_cache_info.add(meta_info)

"""The critic's model: the backbone of a causal language model and a value head."""

from typing import Any

from torch import Tensor, nn
from transformers import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING, AutoModelForTokenClassification

from fsdp_backend.batch.packing import Pack
from fsdp_backend.model.attention import PACKED


class ValueModel(nn.Module):
    """A Hugging Face `…ForTokenClassification` with one label, without its dropout.

    The head is part of the module before it is sharded, computes in float32, and starts at zero: the first values are all 0.
    """

    def __init__(self, hf: Any) -> None:
        super().__init__()
        self.hf = hf
        self.head_name = next(name for name, child in hf.named_children() if isinstance(child, nn.Linear))

    @classmethod
    def from_config(cls, config: Any) -> "ValueModel":
        """Build the model; raises ValueError for an architecture without a token-classification class."""
        if type(config) not in MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING:
            raise ValueError(
                f"model type {config.model_type!r} has no token-classification class in transformers to make a critic of"
            )
        config.num_labels = 1
        # Heads disagree on the name of their dropout, and it is active in training unless it is 0.
        for name in ("classifier_dropout", "hidden_dropout"):
            setattr(config, name, 0.0)
        return cls(AutoModelForTokenClassification.from_config(config, attn_implementation=PACKED))

    @property
    def head(self) -> nn.Linear:
        """Hidden state to value, Linear(H, 1)."""
        head: nn.Linear = getattr(self.hf, self.head_name)
        return head

    def forward(self, pack: Pack) -> Tensor:
        """Returns: V(s_t) of the pack's response tokens, [R] float32, each from the hidden state before its token."""
        hidden = self.hf.base_model(
            input_ids=pack.input_ids, position_ids=pack.position_ids, use_cache=False, sample_lengths=pack.sample_lengths
        ).last_hidden_state[0]
        if not len(pack.targets):
            # An empty micro-batch still takes part in every collective, and in backward with a gradient of zero.
            return self.head(hidden[:1].float())[:0, 0].clone()  # type: ignore[no-any-return]
        # A copy: FSDP warns of a view, whose backward hook an in-place operation would drop.
        return self.head(hidden[pack.predict_positions].float())[:, 0].clone()  # type: ignore[no-any-return]

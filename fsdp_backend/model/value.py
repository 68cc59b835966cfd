"""The critic's model: the backbone of a causal language model and a value head."""

from typing import Any

from torch import Tensor, nn

from fsdp_backend.batch.packing import Pack
from fsdp_backend.model.architecture import attention_for, packs_samples, token_classifier_class
from fsdp_backend.model.attention import hidden_states


class ValueModel(nn.Module):
    """A Hugging Face `…ForTokenClassification` with one label, without its dropout.

    The head is part of the module before it is sharded, computes in float32, and starts at zero: the first values are all 0.
    """

    def __init__(self, hf: Any) -> None:
        super().__init__()
        self.packs_samples = packs_samples(type(hf), hf.config)
        self.hf = hf
        self.head_name = next(name for name, child in hf.named_children() if isinstance(child, nn.Linear))

    @classmethod
    def from_config(cls, config: Any) -> "ValueModel":
        """Build the model with values of one label."""
        config.num_labels = 1
        # Heads disagree on the name of their dropout, and it is active in training unless it is 0.
        for name in ("classifier_dropout", "hidden_dropout"):
            setattr(config, name, 0.0)
        model_class = token_classifier_class(config)
        return cls(model_class._from_config(config, attn_implementation=attention_for(model_class, config)))

    @property
    def head(self) -> nn.Linear:
        """Hidden state to value, Linear(H, 1)."""
        head: nn.Linear = getattr(self.hf, self.head_name)
        return head

    def forward(self, pack: Pack) -> Tensor:
        """Returns: V(s_t) of the pack's response tokens, [R] float32, each from the hidden state before its token."""
        hidden = hidden_states(self.hf, pack)
        if not len(pack.targets):
            # An empty micro-batch still takes part in every collective, and in backward with a gradient of zero.
            return self.head(hidden[:1].float())[:0, 0].clone()  # type: ignore[no-any-return]
        # A copy: FSDP warns of a view, whose backward hook an in-place operation would drop.
        return self.head(hidden[pack.predict_positions].float())[:, 0].clone()  # type: ignore[no-any-return]

"""The policy: a Hugging Face causal language model that yields log-probs of its response tokens."""

from typing import Any

from torch import Tensor, nn

from fsdp_backend.batch.packing import Pack
from fsdp_backend.model.architecture import packs_samples
from fsdp_backend.model.attention import hidden_states
from fsdp_backend.model.logprob_head import KeptTokens, LogProbHead

# Scalings between the last hidden state and the logits that LogProbHead does not know.
_UNKNOWN_LOGIT_SCALES = ("final_logit_softcapping", "logits_scaling", "logit_scale")


class PolicyModel(nn.Module):
    """A `…ForCausalLM` whose head is a LogProbHead; otherwise with the same modules, parameter names and tied weights."""

    def __init__(self, hf: Any) -> None:
        super().__init__()
        self.packs_samples = packs_samples(type(hf), hf.config)
        for name in _UNKNOWN_LOGIT_SCALES:
            if getattr(hf.config, name, None) not in (None, 1.0):
                raise ValueError(f"model type {hf.config.model_type!r} scales its logits by {name}: not supported")
        hf.set_output_embeddings(LogProbHead.of(hf.get_output_embeddings()))
        self.hf = hf

    @property
    def head(self) -> LogProbHead:
        """Hidden state to log-probs."""
        head: LogProbHead = self.hf.get_output_embeddings()
        return head

    @property
    def tied(self) -> bool:
        """Whether the head's weight is the embedding's."""
        return self.head.weight is self.hf.get_input_embeddings().weight

    def forward(
        self, pack: Pack, temperature: float, entropy_grad: bool = False, logits: bool = False
    ) -> tuple[Tensor, Tensor] | Tensor:
        """Returns: log-probs and entropies of the pack's response tokens, both [R] float32; or, with `logits`, these of all the
        pack's tokens, [T, vocabulary] float32 and not tempered."""
        hidden = hidden_states(self.hf, pack)
        if logits:
            return self.head.logits(hidden)
        if not len(pack.targets):
            # An empty micro-batch still takes part in every collective, and in backward with a gradient of zero.
            nothing = self.head(hidden[:1], pack.input_ids[0, :1], temperature)[0][:0].clone()
            return nothing, nothing
        kept = None
        if pack.top_p_token_ids is not None and pack.top_p_offsets is not None:
            kept = KeptTokens(pack.top_p_token_ids, pack.top_p_offsets)
        return self.head(  # type: ignore[no-any-return]
            hidden[pack.predict_positions], pack.targets, temperature, entropy_grad, kept
        )

"""The laptop's rollout engine: a Hugging Face model that generates, and takes new weights from disk."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging as transformers_logging

from fsdp_backend import device
from slime.backends.embedded.decoding import Generation
from slime.backends.embedded.sampling import SamplingParams
from slime.backends.embedded.scheduler import Scheduler


class EmbeddedEngine:
    """Generates for many requests at once; knows when a response ends. HTTP is server.py's."""

    def __init__(self, folder: str, seed: int, bf16: bool, version: int = 0) -> None:
        """`version` is that of the weights in `folder`."""
        transformers_logging.disable_progress_bar()
        dtype = torch.bfloat16 if bf16 else torch.float32
        self.folder = folder
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").to(device.current())
        self.model.eval().requires_grad_(False)
        self.context_length = int(self.model.config.max_position_embeddings)
        self.end_ids = _end_of_sequence_ids(self.model.config, Path(folder), self.tokenizer)
        self.scheduler = Scheduler(self.model, self.is_finished, seed)
        self.scheduler.weight_version = str(version)

    @property
    def weight_version(self) -> str:
        """Version of the weights that generate now."""
        return self.scheduler.weight_version

    def generation(self, request_id: str, prompt: list[int], params: SamplingParams) -> Generation:
        """A request ready to be scheduled. Raises ValueError for a prompt that can't be generated from."""
        self._check(prompt)
        ends = frozenset(params.stop_token_ids or ()) | (frozenset() if params.ignore_eos else self.end_ids)
        return Generation(request_id, prompt, params, ends)

    def _check(self, prompt: list[int]) -> None:
        if not prompt:
            raise ValueError("input_ids is empty")
        if len(prompt) >= self.context_length:
            raise ValueError(f"input_ids has {len(prompt)} tokens, the context is {self.context_length}")
        vocabulary = self.model.get_input_embeddings().weight.shape[0]
        if not 0 <= min(prompt) <= max(prompt) < vocabulary:
            raise ValueError(f"input_ids must lie in [0, {vocabulary})")

    def is_finished(self, generation: Generation) -> bool:
        """Whether the response has ended; sets its finish reason."""
        if generation.finish_reason is None:
            generation.finish_reason = self._end(generation)
        return generation.finish_reason is not None

    def _end(self, generation: Generation) -> dict[str, Any] | None:
        params, tokens = generation.params, generation.tokens
        if tokens and len(tokens) >= params.min_new_tokens:
            if tokens[-1] in generation.end_ids:
                return {"type": "stop", "matched": tokens[-1]}
            matched = self._stop_string(generation)
            if matched is not None:
                return {"type": "stop", "matched": matched}
        room = self.context_length - len(generation.prompt)
        if len(tokens) >= min(params.max_new_tokens, room):
            return {"type": "length", "length": len(tokens)}
        return None

    def _stop_string(self, generation: Generation) -> str | None:
        if not generation.params.stop_strings:
            return None
        # A token is at least one byte, and may be no more than that: counted in characters the window would be too short.
        longest = max(len(stop.encode()) for stop in generation.params.stop_strings)
        tail = self.tokenizer.decode(generation.tokens[-longest - 1 :], skip_special_tokens=False)
        return next((stop for stop in generation.params.stop_strings if stop in tail), None)

    def text(self, generation: Generation) -> str:
        """The response as text, without what ended it unless no_stop_trim is set."""
        assert generation.finish_reason is not None
        params, tokens, matched = generation.params, generation.tokens, generation.finish_reason.get("matched")
        if params.no_stop_trim:
            matched = None
        if isinstance(matched, int):
            tokens = tokens[:-1]
        text: str = self.tokenizer.decode(
            tokens,
            skip_special_tokens=params.skip_special_tokens,
            spaces_between_special_tokens=params.spaces_between_special_tokens,
        )
        return text.partition(matched)[0] if isinstance(matched, str) else text

    def load_weights(self, folder: Path, version: str) -> None:
        """Take the weights of a Hugging Face folder between two tokens. All tensors must be there and fit, else ValueError."""
        try:
            tensors = {name: t for file in sorted(folder.glob("*.safetensors")) for name, t in load_file(file).items()}
        except SafetensorError as error:
            raise ValueError(f"{folder} is not readable: {error}") from error
        # A tied tensor has two names, and a checkpoint may hold it under either or both.
        own = {**dict(self.model.named_parameters(remove_duplicate=False)), **dict(self.model.named_buffers())}
        needed = {name for name, _ in self.model.named_parameters()}
        wrong = [n for n in needed | set(tensors) if n not in tensors or n not in own or tensors[n].shape != own[n].shape]
        if wrong:
            raise ValueError(f"{folder} does not fit the engine's model: {len(wrong)} tensors, first {sorted(wrong)[0]}")

        def copy() -> None:
            with torch.no_grad():
                for name, tensor in tensors.items():
                    own[name].copy_(tensor)
            self.scheduler.weight_version = version

        self.scheduler.between_tokens(copy)


def _end_of_sequence_ids(config: Any, folder: Path, tokenizer: Any) -> frozenset[int]:
    """All ids that the checkpoint declares to end a response."""
    declared = [config.eos_token_id, tokenizer.eos_token_id]
    if (folder / "generation_config.json").is_file():
        declared.append(GenerationConfig.from_pretrained(folder).eos_token_id)
    ids: set[int] = set()
    for entry in declared:
        ids |= {entry} if isinstance(entry, int) else set(entry or ())
    return frozenset(ids)

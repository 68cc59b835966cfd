"""What a rollout reads, checked before any process starts: tokenizers, prompts, and what the context leaves for them."""

from collections.abc import Sequence
from typing import Any

from transformers import AutoConfig, AutoTokenizer

from slime.arguments.errors import UserError
from slime.arguments.run_config import RunConfig
from slime.rollout.data_source import METHODS
from slime.rollout.plug_in import load_plug_in
from slime.rollout.rm_hub.dispatch import require_reward_type
from slime.utils.types import Sample


def require_same_tokenizer(config: RunConfig, tokenizer: Any) -> None:
    """Raises UserError unless the critic reads token ids as the policy does: it sees ids, not text."""
    folder = config.critic.hf_checkpoint
    flag = "--critic-load" if config.run.critic_start else "--critic-hf-checkpoint"
    if folder == config.actor.hf_checkpoint:
        return
    theirs, ours = load_tokenizer(flag, folder).get_vocab(), tokenizer.get_vocab()
    if theirs != ours:
        differing = min(theirs.items() ^ ours.items(), key=lambda item: item[1])[0]
        raise UserError(
            f"{flag} {folder} has another tokenizer than --hf-checkpoint {config.actor.hf_checkpoint} (first difference: token "
            f"{differing!r}): a critic must read the same token ids"
        )


def load_tokenizer(flag: str, folder: str) -> Any:
    """Raises UserError where the folder has none."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        # Where the folder holds no tokenizer, some model types give an empty one without complaint.
        if not tokenizer.encode("a", add_special_tokens=False):
            raise ValueError("it turns text into no tokens")
    except (OSError, ValueError) as error:
        raise UserError(f"{flag} {folder} has no usable tokenizer: {' '.join(str(error).split())[:200]}") from error
    return tokenizer


def require_usable(args: Any, source: str, samples: Sequence[Sample]) -> None:
    """Raises UserError for a row that the default rollout can't generate for or reward.

    The engine takes text; what to do with messages only a chat template or a plug-in knows.
    """
    for number, sample in enumerate(samples):
        where = f"{source}, row {number}"
        if not isinstance(sample.prompt, str):
            raise UserError(f"{where}: the prompt is a list of messages: add --apply-chat-template")
        if args.custom_rm_path is None and sample.custom_rm_path is None:
            require_reward_type(args, sample, where)


def prompt_limit(config: RunConfig, response: int) -> int | None:
    """--rollout-max-prompt-len, or what the context, of the model or of its critic, leaves beside the longest response.

    Raises UserError if it leaves nothing.
    """
    folders = {config.actor.hf_checkpoint}
    if config.ppo.uses_critic:
        folders.add(config.critic.hf_checkpoint)
    contexts = [getattr(AutoConfig.from_pretrained(folder), "max_position_embeddings", None) for folder in folders]
    own = config.rollout.rollout_max_context_len
    if own is not None and any(each is not None and own > each for each in contexts):
        raise UserError(f"--rollout-max-context-len {own} is more than the model's context, or its critic's, has")
    context = min((each for each in contexts if each is not None), default=None)
    given = config.rollout.rollout_max_prompt_len
    if context is None or given is not None:
        return given if context is None else min(given, context - 1)
    if config.ppo.loss_type == "sft_loss":
        return int(context)
    if own is not None:
        # A response gets what the prompt leaves of it.
        return min(own, int(context)) - 1
    if response >= context:
        raise UserError(
            f"a response of {response} tokens (--rollout-max-response-len, --eval-max-response-len) leaves no room in a "
            f"context of {context}"
        )
    return int(context) - response


def build_data_source(args: Any) -> Any:
    """The data source of --data-source-path. Raises UserError if it can't be built or lacks a method."""
    source = load_plug_in("--data-source-path", args.data_source_path)
    if missing := [name for name in METHODS if not callable(getattr(source.function, name, None))]:
        raise UserError(f"{source} has no {', '.join(missing)}: a data source has {', '.join(METHODS)}")
    try:
        return source.function(args)
    except UserError:
        raise
    except ValueError as error:
        if args.prompt_data is None:
            raise UserError(f"{source} raised ValueError: {error}") from error
        raise UserError(f"--prompt-data {error}") from error

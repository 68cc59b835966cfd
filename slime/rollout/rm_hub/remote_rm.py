"""A reward model behind HTTP."""

from typing import Any

from slime.utils.http_utils import post
from slime.utils.types import Sample

_TRIES = 10


async def remote_rm(args: Any, sample: Sample, response: str) -> Any:
    """What the server at --rm-url answers to the sample's prompt, this response and the label: the JSON keys are slime's."""
    payload = {"prompt": sample.prompt, "response": response, "label": sample.label}
    return await post(args.rm_url, payload, max_retries=_TRIES)

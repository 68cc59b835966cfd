"""Prompts from a file or a data set, as Samples."""

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slime.utils.types import Sample


def read_file(path: str) -> Iterator[dict[str, Any]]:
    """Rows of a .jsonl or .parquet file, or of a named data set's train split; `path@[a:b]` takes a slice.

    Raises ValueError, naming file and line, for what is missing or unreadable.
    """
    path, rows = _split_slice(path)
    suffix = Path(path).suffix
    if suffix in (".jsonl", ".parquet") and not Path(path).is_file():
        raise ValueError(f"{path} does not exist")
    if suffix == ".jsonl":
        table: Any = _read_jsonl(path)
    elif suffix == ".parquet":
        table = _read_parquet(path)
    else:
        table = _read_named(path)
    yield from table[rows]


def _split_slice(path: str) -> tuple[str, slice]:
    match = re.fullmatch(r"(.+)@\[(-?\d*):(-?\d*)\]", path)
    if match is None:
        return path, slice(None)
    start, stop = (int(bound) if bound else None for bound in match.groups()[1:])
    return match[1], slice(start, stop)


def _read_jsonl(path: str) -> list[dict[str, Any]]:
    table = []
    # As bytes, so that a line that is no text is one of the lines that are no JSON.
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: not JSON: {error}") from error
            if not isinstance(row, dict):
                raise ValueError(f"{path}, line {number}: expected an object with named columns")
            table.append(row)
    return table


def _read_parquet(path: str) -> list[dict[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(path).to_pylist()  # type: ignore[no-any-return]
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path}: not a parquet file: {error}") from error


def _read_named(name: str) -> list[dict[str, Any]]:
    import datasets

    try:
        return datasets.load_dataset(name, split="train").to_list()  # type: ignore[no-any-return]
    except Exception as error:  # the library raises a dozen kinds, some of them of several lines
        reason = " ".join(str(error).split())
        raise ValueError(f"{name} is neither a .jsonl nor a .parquet file, and `datasets` can't load it: {reason}") from error


class Dataset:
    """Prompts in memory. `samples` is their current order."""

    def __init__(
        self,
        path: str,
        tokenizer: Any,
        max_length: int | None,
        *,
        prompt_key: str = "input",
        label_key: str | None = None,
        metadata_key: str = "metadata",
        apply_chat_template: bool = False,
        seed: int = 42,
    ) -> None:
        """Raises ValueError for a missing column, an empty data set, and a prompt that is empty or longer than `max_length`
        tokens."""
        self.origin_samples: list[Sample] = []
        self.seed = seed
        for number, row in enumerate(read_file(path)):
            for key in filter(None, (prompt_key, label_key)):
                if key not in row:
                    raise ValueError(f"{path}, row {number}: no column {key!r}; it has {', '.join(map(repr, row))}")
            where = f"{path}, row {number}"
            prompt = row[prompt_key]
            if not isinstance(prompt, str | list):
                raise ValueError(f"{where}: column {prompt_key!r} holds neither text nor messages: {str(prompt)[:80]!r}")
            if apply_chat_template:
                prompt = _as_text(prompt, tokenizer, where)
            if isinstance(prompt, str):
                _require_length(len(tokenizer.encode(prompt, add_special_tokens=False)), max_length, where)
            label = row[label_key] if label_key else None
            self.origin_samples.append(Sample(prompt=prompt, label=label, metadata=row.get(metadata_key) or {}))
        if not self.origin_samples:
            raise ValueError(f"{path} holds no rows")
        self.samples = self.origin_samples

    def shuffle(self, epoch_id: int) -> None:
        """Put the prompts into the order of this epoch, drawn from (seed, epoch)."""
        order = list(range(len(self.origin_samples)))
        random.Random(f"{self.seed}-{epoch_id}").shuffle(order)
        self.samples = [self.origin_samples[i] for i in order]

    def __len__(self) -> int:
        return len(self.samples)


def _as_text(prompt: Any, tokenizer: Any, where: str) -> str:
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)  # type: ignore[no-any-return]
    except Exception as error:  # a template is code of the checkpoint's
        raise ValueError(f"{where}: the chat template can't render it: {' '.join(str(error).split())}") from error


def _require_length(length: int, longest: int | None, where: str) -> None:
    if length == 0:
        raise ValueError(f"{where}: the prompt is empty")
    if longest is not None and length > longest:
        raise ValueError(f"{where}: the prompt has {length} tokens, {longest} are allowed")

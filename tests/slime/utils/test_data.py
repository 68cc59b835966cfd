"""Prompts from files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from recipes.quickstart.tokenizer import build_tokenizer
from slime.utils.data import Dataset, read_file

ROWS = [{"input": f"prompt {i}", "label": i} for i in range(10)]
TOKENIZER = build_tokenizer()


def write_jsonl(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> str:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return str(path)


def dataset(path: str, **settings: Any) -> Dataset:
    return Dataset(path, TOKENIZER, settings.pop("max_length", None), **settings)


@pytest.mark.parametrize(("name", "write"), [("rows.jsonl", write_jsonl), ("rows.parquet", write_parquet)])
def test_rows_come_in_order_and_slices_are_pythons(
    tmp_path: Path, name: str, write: Callable[[Path, list[dict[str, Any]]], str]
) -> None:
    path = write(tmp_path / name, ROWS)
    assert list(read_file(path)) == ROWS
    for text, rows in (("2:5", ROWS[2:5]), (":3", ROWS[:3]), ("7:", ROWS[7:]), ("-2:", ROWS[-2:]), ("8:99", ROWS[8:])):
        assert list(read_file(f"{path}@[{text}]")) == rows


def test_blank_lines_are_skipped_and_characters_of_any_language_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"input": "grün 你"}\n\n  \n{"input": "b"}', encoding="utf-8")
    assert [row["input"] for row in read_file(str(path))] == ["grün 你", "b"]


@pytest.mark.parametrize("broken", [b"{", b"[1]", b"3", b'{"input": "a"} x', b'{"input": "\xff\xfe"}'])
def test_a_broken_line_names_file_and_line(tmp_path: Path, broken: bytes) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"input": "a"}\n\n' + broken + b"\n")
    with pytest.raises(ValueError, match="line 3") as caught:
        list(read_file(str(path)))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["missing.jsonl", "missing.parquet", "missing.jsonl@[1:2]"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name.partition('@')[0]} does not exist"):
        list(read_file(str(tmp_path / name)))


@pytest.mark.parametrize("content", [b"", b"PAR1 is how it begins", b"PAR1" + b"\x00" * 40 + b"\x08\x00\x00\x00PAR1"])
def test_a_broken_parquet_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"rows\.parquet: not a parquet file"):
        list(read_file(str(path)))


def test_what_the_data_set_library_cannot_load_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "no such folder"
    with pytest.raises(ValueError, match=r"is neither a \.jsonl nor a \.parquet file") as caught:
        list(read_file(str(path)))
    assert "\n" not in str(caught.value)


def test_samples_carry_prompt_label_and_metadata(tmp_path: Path) -> None:
    rows = [{"q": "a", "gold": 1, "extra": {"task": "x"}}, {"q": "b", "gold": 2, "extra": None}]
    data = dataset(write_jsonl(tmp_path / "d.jsonl", rows), prompt_key="q", label_key="gold", metadata_key="extra")
    assert [(s.prompt, s.label, s.metadata) for s in data.samples] == [("a", 1, {"task": "x"}), ("b", 2, {})]
    assert len(data) == 2


@pytest.mark.parametrize("keys", [{"prompt_key": "question"}, {"label_key": "answer"}])
def test_a_missing_column_is_named_with_the_columns_there(tmp_path: Path, keys: dict[str, str]) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", ROWS)
    (missing,) = keys.values()
    with pytest.raises(ValueError, match=f"row 0: no column '{missing}'; it has 'input', 'label'"):
        dataset(path, **keys)


def test_a_column_that_only_one_row_lacks_is_named_with_the_row(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", [*ROWS[:3], {"input": "x"}])
    with pytest.raises(ValueError, match="row 3: no column 'label'"):
        dataset(path, label_key="label")


def test_a_data_set_without_rows_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no rows"):
        dataset(write_jsonl(tmp_path / "d.jsonl", []))
    with pytest.raises(ValueError, match=r"\[50:60\] holds no rows"):
        dataset(write_jsonl(tmp_path / "d.jsonl", ROWS) + "@[50:60]")


def test_a_prompt_that_is_too_long_names_its_row(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", [{"input": "abcd"}, {"input": "abcde"}])
    assert len(dataset(path, max_length=5)) == 2
    with pytest.raises(ValueError, match="row 1: the prompt has 5 tokens, 4 are allowed"):
        dataset(path, max_length=4)


def test_the_chat_templates_own_tokens_count_towards_the_length(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", [{"input": "abcd"}])
    assert len(dataset(path, max_length=7, apply_chat_template=True)) == 1
    with pytest.raises(ValueError, match="the prompt has 7 tokens"):
        dataset(path, max_length=6, apply_chat_template=True)


@pytest.mark.parametrize(
    ("value", "reason"), [("", "the prompt is empty"), (5, "neither text nor messages"), (None, "neither")]
)
def test_a_prompt_that_is_none_names_its_row(tmp_path: Path, value: Any, reason: str) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", [{"input": "a"}, {"input": value}])
    with pytest.raises(ValueError, match=f"row 1: .*{reason}"):
        dataset(path)


def test_the_chat_template_takes_text_and_messages_alike(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}]
    chat = [*messages, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "so?"}]
    path = write_jsonl(tmp_path / "d.jsonl", [{"input": "hi"}, {"input": messages}, {"input": chat}])
    assert [sample.prompt for sample in dataset(path, apply_chat_template=True).samples] == [
        "<|user|>hi<|end|><|assistant|>",
        "<|user|>hi<|end|><|assistant|>",
        "<|user|>hi<|end|><|assistant|>yes<|end|><|user|>so?<|end|><|assistant|>",
    ]
    assert dataset(path).samples[1].prompt == messages


def test_a_chat_template_that_fails_names_the_row(tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('no system turn') }}"
    path = write_jsonl(tmp_path / "d.jsonl", ROWS)
    with pytest.raises(ValueError, match=r"row 0: the chat template can't render it: .*no system turn"):
        Dataset(path, tokenizer, None, apply_chat_template=True)
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match="row 0: the chat template can't render it") as caught:
        Dataset(path, tokenizer, None, apply_chat_template=True)
    assert "\n" not in str(caught.value)


def test_an_epochs_order_depends_on_seed_and_epoch_alone(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", ROWS)

    def order(seed: int, *epochs: int) -> list[Any]:
        data = dataset(path, seed=seed)
        for epoch in epochs:
            data.shuffle(epoch)
        return [sample.prompt for sample in data.samples]

    assert order(1, 3) == order(1, 0, 1, 2, 3)
    assert len({tuple(order(seed, epoch)) for seed in (1, 2) for epoch in (0, 1)}) == 4
    assert sorted(order(1, 3)) == order(1)

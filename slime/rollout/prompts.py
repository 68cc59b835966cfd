"""Prompts in the order in which a run takes them: one data set after its order, or several interleaved by weight."""

import random
from collections.abc import Sequence
from typing import Any

from slime.utils.data import Dataset
from slime.utils.types import Sample


class PromptCursor:
    """A data set and the place in it: epoch after epoch, shuffled anew in each if asked for."""

    def __init__(self, dataset: Dataset, shuffle: bool) -> None:
        self.dataset, self.shuffle = dataset, shuffle
        self.epoch_id = self.sample_offset = 0
        self._order()

    def next(self) -> Sample:
        """The next prompt; it is the data set's own, to be copied."""
        if self.sample_offset == len(self.dataset):
            self.epoch_id, self.sample_offset = self.epoch_id + 1, 0
            self._order()
        prompt = self.dataset.samples[self.sample_offset]
        self.sample_offset += 1
        return prompt

    def state_dict(self) -> dict[str, int]:
        """Where it stands."""
        return {"epoch_id": self.epoch_id, "sample_offset": self.sample_offset}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from there. Raises ValueError if the data is shorter than that."""
        if state["sample_offset"] > len(self.dataset):
            raise ValueError(f"has {len(self.dataset)} rows, the checkpoint stands at row {state['sample_offset']}: other data")
        self.epoch_id, self.sample_offset = state["epoch_id"], state["sample_offset"]
        self._order()

    def _order(self) -> None:
        if self.shuffle:
            self.dataset.shuffle(self.epoch_id)


class PromptMixture:
    """Several data sets. Which of them gives the run's prompt number i is drawn from (seed, i) by weight, so the sequence does
    not depend on the size of the rollouts; each keeps its own epochs and order."""

    def __init__(self, datasets: Sequence[Dataset], weights: Sequence[float] | None, shuffle: bool, seed: int) -> None:
        """Without weights, every row of every data set is as likely: the weight is the number of rows."""
        self.cursors = [PromptCursor(dataset, shuffle) for dataset in datasets]
        self.weights = [float(len(dataset)) for dataset in datasets] if weights is None else list(weights)
        self.seed = seed

    @property
    def rows(self) -> list[Sample]:
        """Every prompt of every data set, in file order."""
        return [sample for cursor in self.cursors for sample in cursor.dataset.origin_samples]

    def next(self, number: int) -> Sample:
        """The run's prompt of this number."""
        if len(self.cursors) == 1:
            return self.cursors[0].next()
        (chosen,) = random.Random(f"{self.seed}-mixture-{number}").choices(self.cursors, self.weights)
        return chosen.next()

    def state_dict(self) -> list[dict[str, int]]:
        """Where each data set stands."""
        return [cursor.state_dict() for cursor in self.cursors]

    def load_state_dict(self, state: list[dict[str, int]]) -> None:
        """Go on from there. Raises ValueError for other data."""
        if len(state) != len(self.cursors):
            raise ValueError(f"names {len(self.cursors)} data sets, the checkpoint was written with {len(state)}")
        for cursor, saved in zip(self.cursors, state, strict=True):
            cursor.load_state_dict(saved)


def read_prompts(args: Any) -> PromptMixture:
    """The data sets of --prompt-data. Raises ValueError, naming file and row, for what can't be used."""
    paths = [args.prompt_data] if isinstance(args.prompt_data, str) else list(args.prompt_data)
    datasets = [
        Dataset(
            path,
            args.tokenizer,
            args.rollout_max_prompt_len,
            prompt_key=args.input_key,
            label_key=args.label_key,
            metadata_key=args.metadata_key,
            apply_chat_template=args.apply_chat_template and args.loss_type != "sft_loss",
            seed=args.rollout_seed,
        )
        for path in paths
    ]
    return PromptMixture(datasets, args.prompt_data_weights, args.rollout_shuffle, args.rollout_seed)

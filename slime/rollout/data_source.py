"""Where a rollout's prompts come from."""

import copy
from typing import Any

from slime.utils.data import Dataset
from slime.utils.types import Sample

_CURSOR = ("epoch_id", "sample_offset", "sample_group_index", "sample_index")


class RolloutDataSource:
    """Hands out prompts in groups, epoch after epoch, and numbers every sample of the run."""

    def __init__(self, args: Any) -> None:
        self.args = args
        self.epoch_id = 0
        self.sample_offset = 0
        self.sample_group_index = 0
        self.sample_index = 0
        sft = args.loss_type == "sft_loss"
        self.dataset = Dataset(
            args.prompt_data,
            args.tokenizer,
            args.rollout_max_prompt_len,
            prompt_key=args.input_key,
            label_key=args.label_key,
            metadata_key=args.metadata_key,
            apply_chat_template=args.apply_chat_template and not sft,
            seed=args.rollout_seed,
        )
        if args.rollout_shuffle:
            self.dataset.shuffle(self.epoch_id)

    def state_dict(self) -> dict[str, int]:
        """Where it stands."""
        return {name: getattr(self, name) for name in _CURSOR}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from there. Raises ValueError if the data is shorter than that."""
        if state["sample_offset"] > len(self.dataset):
            raise ValueError(f"has {len(self.dataset)} rows, the checkpoint stands at row {state['sample_offset']}: other data")
        for name in _CURSOR:
            setattr(self, name, state[name])
        if self.args.rollout_shuffle:
            self.dataset.shuffle(self.epoch_id)

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        """The next `num_samples` prompts, each a group of n_samples_per_prompt fresh copies."""
        return [self._group(self._next_prompt()) for _ in range(num_samples)]

    def _next_prompt(self) -> Sample:
        if self.sample_offset == len(self.dataset):
            self.epoch_id += 1
            self.sample_offset = 0
            if self.args.rollout_shuffle:
                self.dataset.shuffle(self.epoch_id)
        prompt = self.dataset.samples[self.sample_offset]
        self.sample_offset += 1
        return prompt

    def _group(self, prompt: Sample) -> list[Sample]:
        group = []
        for _ in range(self.args.n_samples_per_prompt):
            sample = copy.deepcopy(prompt)
            sample.group_index, sample.index = self.sample_group_index, self.sample_index
            self.sample_index += 1
            group.append(sample)
        self.sample_group_index += 1
        return group

    def __len__(self) -> int:
        return len(self.dataset)

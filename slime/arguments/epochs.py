"""How many rollouts --num-epoch makes."""

from slime.arguments.errors import UserError
from slime.arguments.groups import DataArgs
from slime.utils.data import read_file


def rollouts_in_epochs(epochs: int | None, rollout_batch_size: int, data: DataArgs) -> int:
    """Whole rollouts in so many epochs of --prompt-data; of several data sets, of all their rows together.

    Raises UserError if there is no data to count, or less than one rollout.
    """
    if data.prompt_data is None or data.data_source_path != DataArgs.data_source_path:
        raise UserError("--num-epoch counts the rows of --prompt-data; without it, or with --data-source-path: --num-rollout")
    if epochs is None or epochs < 1:
        raise UserError(f"--num-epoch must be at least 1, got {epochs}")
    try:
        rows = sum(1 for path in data.prompt_data for _ in read_file(path))
    except ValueError as error:
        raise UserError(f"--prompt-data {error}") from error
    rollouts = epochs * (rows // max(rollout_batch_size, 1))
    if rollouts < 1:
        raise UserError(f"--num-epoch {epochs}: {rows} rows are less than one rollout of {rollout_batch_size} prompts")
    return rollouts

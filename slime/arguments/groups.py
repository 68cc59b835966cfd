"""slime's flags, a dataclass for each group. The groups of training itself are the engine's own (fsdp_backend/config.py).

A field is a flag (`rollout_batch_size` is `--rollout-batch-size`), its docstring the flag's help, its default the only place
where that default stands. Nothing here imports torch or ray: `--help` answers at once.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro import MISSING

from slime.arguments.reward_types import RewardType


@dataclass(frozen=True)
class RunArgs:
    """The run as a whole: how long, where, and what it leaves behind."""

    num_rollout: int = MISSING
    """Rollouts to train for."""
    num_epoch: int | None = None
    """Epochs of --prompt-data to train for, in place of --num-rollout: each counts as its whole rollouts."""
    train_backend: Literal["fsdp", "megatron"] = "fsdp"
    """Training backend. fsdp: PyTorch FSDP2. megatron: the command line goes as it is to the upstream slime checkout that the
    environment variable SLIME_UPSTREAM names."""
    launcher: Literal["ray", "local"] = "ray"
    """ray starts a process for every rank and engine. local runs everything in this process, one rank a role: for a
    debugger."""
    run_dir: str | None = None
    """Folder for the resolved config, metrics, report and checkpoints; must not hold a run yet. None: runs/<date and time>."""
    save: str | None = None
    """Folder for training state, from which --load goes on exactly: both roles, optimizers, clocks, random generators and the
    place in the data. None: none is saved."""
    critic_save: str | None = None
    """Folder for the critic's half of the training state. None: beside the actor's, in --save."""
    save_interval: int | None = None
    """Save every so many rollouts, and after the last: training state to --save, or without --save both models as Hugging Face
    folders to checkpoints/ of the run; after the last, both. None: only after the last."""
    async_save: bool = False
    """Write training state in the background, from a copy in host memory, while training goes on. It counts as saved once all
    of it is written."""
    no_save_optim: bool = False
    """Leave optimizer state out of --save: a third of the size, but only --no-load-optim goes on from it."""
    save_hf: str | None = None
    """Folder for the actor as a Hugging Face checkpoint at every save; {rollout_id} stands for the rollout's number. None:
    checkpoints/rollout_{rollout_id}/actor of the run."""
    critic_save_hf: str | None = None
    """The same for the critic."""
    keep_last: int | None = None
    """How many checkpoints stay in --save; older ones are deleted. None: all."""
    load: str | None = None
    """Go on from the newest checkpoint in this folder, which a run wrote by --save. If it is also the folder of --save and
    holds none yet, the run starts from the beginning; otherwise that is an error. None: start from the beginning."""
    no_load_optim: bool = False
    """Go on from --load with fresh optimizer state."""
    critic_load: str | None = None
    """Earlier critic to start from: a folder with its value head, as a run leaves in checkpoints/latest/critic. Or, with
    --load, the folder that the critic's half was written to by --critic-save. None: --critic-hf-checkpoint, with a fresh head
    if that has none; and the half where the run that wrote it left it."""
    restarts: int = 0
    """How often the run goes on by itself from its newest checkpoint in --save after one of its processes died."""
    seed: int = 1234
    """Seed of training: the order of critic passes, and torch's generators."""

    @property
    def critic_start(self) -> str | None:
        """The Hugging Face folder that --critic-load names; None where it names none, or where training state is."""
        folder = self.critic_load
        if folder is None or folder == self.critic_save:
            return None
        is_state = any(Path(folder).glob("rollout_*/critic")) and not (Path(folder) / "config.json").exists()
        return None if is_state else folder


@dataclass(frozen=True)
class ClusterArgs:
    """How many processes each role gets. Where there is no GPU, every "GPU" is a process on the CPU."""

    actor_num_nodes: int = 1
    """Nodes for the actor."""
    actor_num_gpus_per_node: int | None = None
    """Ranks of the actor on each node. None: 8 as in slime where there are GPUs, 1 where there are none."""
    critic_num_nodes: int | None = None
    """Nodes for the critic. None: as the actor."""
    critic_num_gpus_per_node: int | None = None
    """Ranks of the critic on each node. None: as the actor."""
    rollout_num_gpus: int | None = None
    """GPUs for rollout engines, of --rollout-num-gpus-per-engine each. None: one engine."""
    colocate: bool = False
    """Let actor, critic and rollout engines share GPUs instead of having their own. On a CPU they always share."""
    offload_train: bool = False
    """Move the trainers' parameters and optimizer state to host memory when a rollout's training is done, and back for the
    next: room for rollout engines on the same GPUs."""
    distributed_timeout_minutes: float = 10.0
    """How long a rank waits for the others before it gives up."""


@dataclass(frozen=True)
class EngineArgs:
    """The rollout engines. `--sglang-x VALUE` goes to every SGLang server as `--x VALUE`, as with slime."""

    rollout_engine: Literal["embedded", "sglang"] = "embedded"
    """What generates. embedded: transformers in a process of the run, for small models and for CPUs. sglang: SGLang servers,
    which the run starts, watches and ends."""
    sglang_python: str | None = None
    """Python that has SGLang, where it has an environment of its own. None: the one that runs slime."""
    rollout_num_gpus_per_engine: int = 1
    """GPUs of one SGLang engine, which it splits the model over (its tensor parallel size)."""
    rollout_external_engine_addrs: tuple[str, ...] | None = None
    """host:port of SGLang servers that run already and see the folder of --hf-checkpoint: none is started, none ended."""
    offload_rollout: bool = False
    """Let SGLang engines leave the GPU while the trainers work, for --colocate."""
    update_weight_transport: Literal["nccl", "tensor", "disk"] | None = None
    """How the actor's weights come to the engines. nccl: broadcast by the actor's first rank, in one process group with the
    engines (over gloo on a CPU). tensor: in the bodies of HTTP requests. disk: as a checkpoint in the run folder. None: disk
    for the embedded engine, which takes no other; for SGLang nccl, or tensor with --colocate, as processes that share a GPU
    can't use nccl."""
    update_weight_buffer_size: int = 512 * 1024**2
    """Bytes of weights sent at once by nccl and tensor; a larger tensor goes alone."""


@dataclass(frozen=True)
class DataArgs:
    """Where prompts come from."""

    prompt_data: tuple[str, ...] | None = None
    """Prompts to train on, needed unless rollouts are read from disk: a .jsonl or .parquet file, or the name of a data set
    for the `datasets` library. `path@[a:b]` takes rows a to b. Several are interleaved, each with epochs of its own."""
    prompt_data_weights: tuple[float, ...] | None = None
    """How often each of several data sets has its turn, in any unit: --prompt-data a b --prompt-data-weights 3 1. None: by
    their number of rows."""
    data_source_path: str = "slime.rollout.data_source.RolloutDataSourceWithBuffer"
    """Class that hands out the prompts, as module.Class: built with (args), it has get_samples(n), add_samples(groups),
    save(rollout_id), load(rollout_id) and a length."""
    input_key: str = "input"
    """Column with the prompt: a string, or a list of {role, content} messages. For sft_loss, messages that end with the
    answer."""
    label_key: str | None = None
    """Column with the right answer, handed to the reward function. None: no label."""
    metadata_key: str = "metadata"
    """Column with a mapping handed to the reward function as sample.metadata, if the data has it."""
    apply_chat_template: bool = False
    """Turn the prompt into text by the tokenizer's chat template; a string becomes one user message."""
    rollout_shuffle: bool = False
    """Shuffle the prompts anew in each epoch."""
    rollout_seed: int = 42
    """Seed of shuffling and of sampling responses."""


@dataclass(frozen=True)
class RolloutArgs:
    """How responses are generated."""

    rollout_batch_size: int = MISSING
    """Prompts in a rollout."""
    n_samples_per_prompt: int = 1
    """Responses to each prompt."""
    rollout_max_response_len: int = 1024
    """Longest response, in tokens; a longer one is cut off and counts as truncated."""
    rollout_max_context_len: int | None = None
    """Longest prompt and response together, in tokens; what goes beyond is cut off. None: the model's context."""
    rollout_max_prompt_len: int | None = None
    """Longest prompt allowed, in tokens; a longer one is an error. None: what fits the model's context beside the response."""
    rollout_temperature: float = 1.0
    """Sampling temperature of training; log-probs are taken at the same temperature."""
    rollout_top_p: float = 1.0
    """Sample among the most probable tokens that together have this probability. Anything but 1 is for --debug-rollout-only and
    for evaluation: the engine's log-probs, and the trainer's, are of the whole distribution, so the ratio of new to old policy
    would be wrong by the probability cut away, with --use-tis or --use-rollout-logprobs too."""
    rollout_top_k: int = -1
    """Sample among so many most probable tokens; -1 is all. The same holds as for --rollout-top-p."""
    rollout_skip_special_tokens: bool = False
    """Leave special tokens, such as the one that ends the response, out of sample.response. The tokens keep them."""
    rollout_stop: tuple[str, ...] | None = None
    """Strings that end a response."""
    rollout_stop_token_ids: tuple[int, ...] | None = None
    """Token ids that end a response, besides the model's own end of sequence."""
    rollout_function_path: str | None = None
    """Function that makes a rollout, as module.function. None: slime.rollout.sglang_rollout.generate_rollout, or
    slime.rollout.sft_rollout.generate_rollout for sft_loss."""
    custom_generate_function_path: str | None = None
    """Function that makes one response: async (args, sample, sampling_params[, evaluation]) -> Sample, or a list of Samples
    that share one rollout_id and with it one share of the loss. None: one request to the engine."""
    rollout_sample_hook_path: tuple[str, ...] | None = None
    """Function that sees each response before its reward: (args, sample, *, rollout_id, evaluation) -> Sample or None. May be
    asynchronous, and given several times."""
    sglang_server_concurrency: int = 512
    """Requests in flight at once, for each engine."""
    over_sampling_batch_size: int | None = None
    """Prompts to begin with at a time: the first --rollout-batch-size groups to finish and pass the filter are kept, the others
    are aborted and their prompts come again. None: --rollout-batch-size."""
    dynamic_sampling_filter_path: str | None = None
    """Function that drops groups: (args, samples) -> DynamicFilterOutput or bool. None: all are kept."""
    partial_rollout: bool = False
    """Keep what an aborted response has, and go on with it in a later rollout. The trainer's log-probs before the update count
    as those of the old policy, unless --use-rollout-logprobs is set."""
    mask_offpolicy_in_partial_rollout: bool = False
    """Do not train on the tokens that a response has from an earlier rollout, all of them where it was finished there."""
    buffer_filter_path: str | None = None
    """Function that takes groups out of the buffer of those put back: (args, rollout_id, buffer, num_samples) -> groups. None:
    the first come first."""
    rollout_sample_filter_path: str | None = None
    """Function that sees the kept groups, (args, groups), and may set remove_sample."""
    rollout_all_samples_process_path: str | None = None
    """Function that sees all finished groups, dropped ones too: (args, groups, data_source)."""
    custom_convert_samples_to_train_data_path: str | None = None
    """Function that makes slime's train-data dict: (args, samples) -> dict."""
    custom_rollout_log_function_path: str | None = None
    """Function that logs a rollout: (rollout_id, args, samples, extra_metrics, seconds) -> bool, true to leave out the
    rollout's usual metrics."""
    max_staleness: int = 0
    """How many weight versions a token may be behind when it is trained on. 0: a rollout is made with the newest weights, then
    trained on. 1: the next rollout is made while one is trained on, as slime's train_async does. More: generation never stops,
    weights change under it, and a rollout is the prompts that finished first; what gets older is dropped and begun anew."""
    save_debug_rollout_data: str | None = None
    """Write the samples of each rollout to this file, in which {rollout_id} stands for its number."""
    load_debug_rollout_data: str | None = None
    """Read the samples of each rollout from this file, as --save-debug-rollout-data wrote it, instead of generating: no engine
    is started."""
    debug_rollout_only: bool = False
    """Generate and reward only: nothing is trained, the engines keep the checkpoint's weights."""
    debug_train_only: bool = False
    """Train only: needs --load-debug-rollout-data, which implies it."""


@dataclass(frozen=True)
class RewardArgs:
    """What a response is worth."""

    rm_type: RewardType | None = None
    """A reward that comes with slime; a row's metadata rm_type overrides it, so that a data set may hold several.
    math: 1 if math-verify finds the response's answer (the last boxed one, if any is) equal to the label, else 0.
    dapo: 1 if what follows "Answer:" at the response's end equals the label, else -1; --reward-key may say score or acc.
    deepscaler: 1 if the last boxed answer after </think> equals the label, else 0.
    f1: F1 of the words of response and label, without case, punctuation and articles.
    gpqa: 1 if the response settles on the right option, else 0. The label is its letter, its number from 0, or its text;
    metadata `choices` are the options' texts, `correct_letter` the right one.
    remote_rm: the number that --rm-url answers.
    random: 0 or 1, for smoke tests.
    ifbench: not available, as its checks need downloads; call yours by --custom-rm-path.
    boxed_ in front: the reward sees only what the last boxed{...} of the response holds (dapo and deepscaler look themselves).
    Mathematics that takes too long to judge counts as wrong. None: every row says rm_type, or --custom-rm-path is given."""
    rm_url: str | None = None
    """Where the reward model of remote_rm listens. It gets {"prompt", "response", "label"} as JSON and answers a number, or a
    dict with --reward-key."""
    custom_rm_path: str | None = None
    """Reward function of your own, as module.function: async (args, sample, **kwargs) -> number, or dict with --reward-key."""
    group_rm: bool = False
    """Give --custom-rm-path all responses to a prompt at once: async (args, samples, **kwargs) -> list, one reward each."""
    reward_key: str | None = None
    """Which entry of a reward dict to train on."""
    custom_reward_post_process_path: str | None = None
    """Function in place of the normalisation below: (args, samples) -> (raw rewards, rewards to train on)."""
    disable_rewards_normalization: bool = False
    """Train on rewards as they are, not on rewards minus the mean of their prompt's responses. It is for the group estimators
    (grpo, gspo, cispo, reinforce_plus_plus_baseline); others never subtract it."""
    disable_grpo_std_normalization: bool = False
    """Do not divide rewards by the standard deviation of their prompt's responses (grpo, gspo, cispo)."""


@dataclass(frozen=True)
class EvalArgs:
    """Evaluation on held-out prompts."""

    eval_interval: int | None = None
    """Evaluate every so many rollouts, and after the last. None: never."""
    eval_prompt_data: tuple[str, ...] | None = None
    """Pairs of a name and a file: --eval-prompt-data gsm8k heldout.jsonl."""
    eval_config: str | None = None
    """YAML file of data sets with settings of their own, in place of --eval-prompt-data:
    `eval: {defaults: {top_p: 0.7}, datasets: [{name: aime, path: aime.jsonl, n_samples_per_eval_prompt: 16}]}`."""
    eval_function_path: str | None = None
    """Function that evaluates, as module.function. None: --rollout-function-path."""
    custom_eval_rollout_log_function_path: str | None = None
    """Function that logs an evaluation: (rollout_id, args, data, extra_metrics) -> bool, true to leave out its usual
    metrics."""
    eval_reward_key: str | None = None
    """Which entry of a reward dict to report. None: --reward-key."""
    eval_input_key: str | None = None
    """Column with the prompt. None: --input-key."""
    eval_label_key: str | None = None
    """Column with the label. None: --label-key."""
    n_samples_per_eval_prompt: int = 1
    """Responses to each evaluation prompt."""
    eval_temperature: float | None = None
    """Sampling temperature; 0 is greedy. None: --rollout-temperature."""
    eval_max_response_len: int | None = None
    """Longest response, in tokens. None: --rollout-max-response-len."""
    eval_top_p: float | None = None
    """As --rollout-top-p, which it falls back to."""
    eval_top_k: int | None = None
    """As --rollout-top-k, which it falls back to."""
    eval_min_new_tokens: int | None = None
    """Shortest response, in tokens. None: any."""
    eval_max_prompt_len: int | None = None
    """Longest prompt, in tokens. None: --rollout-max-prompt-len."""
    eval_max_context_len: int | None = None
    """Longest prompt and response together, in tokens. None: --rollout-max-context-len."""
    skip_eval_before_train: bool = False
    """Leave out the evaluation before the first rollout."""


@dataclass(frozen=True)
class WandbArgs:
    """Weights & Biases."""

    use_wandb: bool = False
    """Send each rollout's metrics to Weights & Biases too. Needs the package wandb. --wandb-key KEY goes into the environment
    variable WANDB_API_KEY and nowhere else; without it, that variable or an earlier `wandb login` is used."""
    wandb_mode: Literal["online", "offline", "disabled"] | None = None
    """online sends, offline writes to disk only, disabled does neither. None: as the environment variable WANDB_MODE says."""
    wandb_dir: str | None = None
    """Folder for what wandb writes. None: the run folder."""
    wandb_host: str | None = None
    """URL of the server. None: wandb's own."""
    wandb_team: str | None = None
    """Entity that the project belongs to. None: the key's default."""
    wandb_project: str | None = None
    """Project of the run."""
    wandb_group: str | None = None
    """Group of the run, and its name."""
    disable_wandb_random_suffix: bool = False
    """Use --wandb-group as it is, without six random characters behind it."""

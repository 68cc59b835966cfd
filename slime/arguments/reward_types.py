"""The rewards that come with slime, by the names of --rm-type and of a sample's metadata rm_type."""

from typing import Literal

RewardType = Literal[
    "math",
    "dapo",
    "deepscaler",
    "f1",
    "gpqa",
    "remote_rm",
    "random",
    "ifbench",
    "boxed_math",
    "boxed_dapo",
    "boxed_deepscaler",
    "boxed_f1",
    "boxed_gpqa",
    "boxed_remote_rm",
    "boxed_random",
    "boxed_ifbench",
]
NEED_LABEL = ("math", "dapo", "deepscaler", "f1")
# May be a dict, from which --reward-key picks.
OF_SEVERAL_ENTRIES = ("dapo", "remote_rm")
IFBENCH_MISSING = (
    "the reward ifbench is not available: IFBench's own checks are needed, and no package has them that works without "
    "downloading NLTK's data; give a function that calls your copy of them as --custom-rm-path"
)

"""What the README tells a newcomer to type exists."""

import re
import shlex
from pathlib import Path

from slime.arguments.parse import known_flags
from slime.arguments.scripts.read import is_known

README = Path("README.md").read_text()


def test_every_make_target_of_the_readme_is_in_the_makefile() -> None:
    targets = set(re.findall(r"(?:^    |`)make ([a-z0-9-]+)", README, re.MULTILINE))
    assert {"quickstart", "test"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", Path("Makefile").read_text(), re.MULTILINE), target


def test_every_flag_of_the_readme_is_known() -> None:
    flags = {word.strip("`.,;:)(") for word in README.split() if word.strip("`(").startswith("--")}
    assert len(flags) > 15
    for flag in flags:
        name = flag[2:].partition("=")[0].replace("-", "_")
        known = {*known_flags(), "config", "help", "megatron_config_path", "wandb_key"}
        assert name in known or name.removeprefix("no_") in known or "…" in name or is_known(flag), flag


def test_every_link_of_the_readme_leads_to_a_file() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert Path(target).exists(), target


def test_the_example_command_is_one_command() -> None:
    (command,) = re.findall(r"    slime train (?:.*\\\n)*.*", README)
    assert shlex.split(command.replace("\\\n", " "))[:2] == ["slime", "train"]

"""The short tables that a run prints of its script flags: which are said otherwise here, and which are set aside and why."""

from collections import defaultdict

from rich import box
from rich.console import Console
from rich.table import Table

from slime.arguments.scripts.read import ScriptFlags


def show(script: ScriptFlags) -> None:
    """Print them; nothing where no script flag was given."""
    console = Console()
    if script.translated:
        table = Table("flag", "here", title="Flags that are said otherwise here", box=box.SIMPLE, title_justify="left")
        for given, here in script.translated:
            table.add_row(given, here)
        console.print(table)
    if script.set_aside:
        by_reason: dict[str, list[str]] = defaultdict(list)
        for given, why in script.set_aside:
            by_reason[why].append(given)
        table = Table("why", "flags", title="Flags set aside", box=box.SIMPLE, title_justify="left")
        for why, flags in by_reason.items():
            table.add_row(why, ", ".join(flags))
        console.print(table)
    if script.checked:
        console.print(f"{len(script.checked)} model-shape flags agree with config.json", highlight=False)

"""`python -m tests.bench`: every benchmark, one table. Wants a quiet machine: about 40 minutes on two cores."""

import argparse
import os
import platform
import tempfile
from dataclasses import asdict, replace
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from fsdp_backend import device
from tests.bench.setting import Setting, quick, save_model
from tests.bench.suite import BENCHMARKS, run
from tests.bench.table import Row, show, write


def main() -> None:
    """Run, print, write."""
    args = _arguments()
    disable_progress_bar()
    set_verbosity_error()
    console = Console(highlight=False, markup=False)
    rows: list[Row] = []
    skipped: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        setting = quick(folder, args.threads) if args.quick else Setting(folder, args.threads)
        setting = replace(setting, rounds=args.rounds or setting.rounds)
        save_model(setting)
        facts = _facts(setting)
        for found in run(args.only or BENCHMARKS, setting):
            if isinstance(found, str):
                console.print(f"skipped: {found}")
                skipped.append(found)
            else:
                console.print(f"{found.name}: {found.ratio:.3f} (target {found.target or 'none'})")
                rows.append(found)
    facts["load average at the end"] = os.getloadavg()
    show(rows, console)
    write(rows, skipped, facts, args.out)
    console.print(f"{args.out}/bench.md and bench.json")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a tiny model, to see that everything runs; its numbers mean nothing"
    )
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="folder for bench.md and bench.json")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="CPU threads of what runs in one process")
    parser.add_argument("--rounds", type=int, help="rounds of every pair; the fastest counts")
    parser.add_argument("--only", nargs="+", choices=list(BENCHMARKS), metavar="NAME", help=", ".join(BENCHMARKS))
    return parser.parse_args()


def _facts(setting: Setting) -> dict[str, Any]:
    """Where and on what the numbers were taken."""
    return {
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": f"{_processor()}, {os.cpu_count()} cores, {device.accelerator_count()} accelerators",
        "versions": {name: _version(name) for name in ("torch", "transformers", "trl")},
        "setting": {name: value for name, value in asdict(setting).items() if name != "checkpoint"},
        "load average at the start": os.getloadavg(),
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()

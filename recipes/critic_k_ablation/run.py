"""Runs the ablation: every arm (K, whose values the advantages are made of, the critic's learning rate) for every seed.

Usage: python -m recipes.critic_k_ablation.run FOLDER [--seeds N] [--jobs N]

Started again on the same folder, it goes on: finished runs are kept, an unfinished one is done anew. At the end, and whenever
it is called with --jobs 0, it draws what there is.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from recipes.critic_k_ablation.results import ARMS, Arm, draw, finished

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Run:
    """One training run of the ablation."""

    arm: Arm
    seed: int

    @property
    def name(self) -> str:
        """Its folder."""
        return f"{self.arm.name}-seed{self.seed}"


def main() -> None:
    """Prepare, run what is missing, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=8, help="seeds of each combination (default 8)")
    parser.add_argument("--jobs", type=int, default=_cores(), help="runs at a time, one core each; 0 only draws")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    if arguments.jobs:
        prepare(folder)
        missing = [run for run in runs(arguments.seeds) if not finished(folder / run.name)]
        run_all(folder, missing, arguments.jobs)
    print(draw(folder))


def runs(seeds: int) -> Iterator[Run]:
    """Seed by seed, so that a run that is stopped early compares as many of each."""
    for seed in range(1, seeds + 1):
        for arm in ARMS:
            yield Run(arm, seed)


def prepare(folder: Path) -> None:
    """Data, and the model that every run starts from."""
    if not (folder / "data" / "model").exists():
        _python(["-m", "recipes.critic_k_ablation.task", str(folder / "data")], folder / "prepare.log")
    if not finished(folder / "sft"):
        shutil.rmtree(folder / "sft", ignore_errors=True)
        words = _train(HERE / "sft.yaml", folder / "data" / "model", folder / "data" / "sft.jsonl", folder / "sft")
        _python(words, folder / "prepare.log")


def run_all(folder: Path, missing: list[Run], jobs: int) -> None:
    """`jobs` at a time; the first that fails ends the others' queue."""
    cores: Queue[int] = Queue()
    for core in range(jobs):
        cores.put(core)
    columns = [*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()]
    with Progress(*columns) as progress, ThreadPoolExecutor(jobs) as pool:
        task = progress.add_task("runs", total=len(missing))

        def one(run: Run) -> None:
            core = cores.get()
            try:
                train(folder, run, core)
            finally:
                cores.put(core)
            progress.advance(task)

        started = [pool.submit(one, run) for run in missing]
        try:
            for each in started:
                each.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def train(folder: Path, run: Run, core: int) -> None:
    """One run, on one core."""
    shutil.rmtree(folder / run.name, ignore_errors=True)
    start = folder / "sft" / "checkpoints" / "latest" / "actor"
    words = _train(HERE / "ppo.yaml", start, folder / "data" / "train.jsonl", folder / run.name)
    words += ["--critic-update-steps", str(run.arm.k), "--advantage-values", run.arm.values]
    words += ["--critic-lr", str(run.arm.critic_lr), "--seed", str(run.seed), "--rollout-seed", str(run.seed)]
    _python(words, folder / f"{run.name}.log", core)


def _train(config: Path, model: Path, data: Path, run_dir: Path) -> list[str]:
    words = ["-m", "slime.cli", "train", "--config", str(config), "--hf-checkpoint", str(model)]
    return [*words, "--prompt-data", str(data), "--run-dir", str(run_dir)]


def _python(words: list[str], log: Path, core: int | None = None) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)

    def pin() -> None:
        if core is not None and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[core]})

    with log.open("w") as out:
        code = subprocess.run([sys.executable, *words], stdout=out, stderr=subprocess.STDOUT, preexec_fn=pin).returncode
    if code:
        raise SystemExit(f"{' '.join(words)} failed, see {log}")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


if __name__ == "__main__":
    main()

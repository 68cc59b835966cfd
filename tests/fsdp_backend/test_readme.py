"""The README's example runs as it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from tests.architecture.source import ROOT
from tests.tiny import save_tiny_model


@pytest.mark.slow
def test_the_example_trains_under_torchrun_and_leaves_both_checkpoints(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "fsdp_backend/README.md").read_text(), flags=re.DOTALL)
    assert code.count("\n") <= 40
    (tmp_path / "train.py").write_text(code)
    save_tiny_model(tmp_path / "model")
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*words, "train.py", "model", "out"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines() if "critic-pass_2/value_loss" in line] == ["0", "1", "2"]
    AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "actor")
    AutoModelForTokenClassification.from_pretrained(tmp_path / "out" / "critic")

"""A launch script written for slime, run as it is on a tiny model."""

import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from safetensors.torch import load_file

from slime.utils.types import Sample
from tests.end_to_end.runs import make_inputs, metrics_of, ppo_flags, run
from tests.stand_ins import install_wandb

ROOT = Path(__file__).parents[2]
MODEL = """--swiglu --num-layers 2 --hidden-size 32 --ffn-hidden-size 64 --num-attention-heads 4 --group-query-attention
    --num-query-groups 2 --kv-channels 8 --qk-layernorm --disable-bias-linear --normalization RMSNorm --norm-epsilon 1e-6
    --rotary-base 10000 --use-rotary-position-embeddings"""
PERFORMANCE = """--tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 1
    --context-parallel-size 1 --expert-model-parallel-size 1 --expert-tensor-parallel-size 1 --recompute-granularity full
    --recompute-method uniform --recompute-num-layers 1 --use-dynamic-batch-size --max-tokens-per-gpu 96 --balance-data"""
OPTIMIZER = "--optimizer adam --lr 1e-3 --lr-decay-style constant --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.98"
MISCELLANEOUS = """--attention-dropout 0.0 --hidden-dropout 0.0 --accumulate-allreduce-grads-in-fp32
    --attention-softmax-in-fp32 --attention-backend flash --ci-test"""
OBJECTIVE = (
    "--use-kl-loss --kl-loss-coef 0.00 --kl-loss-type low_var_kl --entropy-coef 0.00 --eps-clip 0.2 --eps-clip-high 0.28"
)

seen: list[dict[str, Any]] = []


async def keeps_what_it_is_given(args: Any, sample: Sample, **kwargs: Any) -> float:
    """The share of the letter e, keeping `args`."""
    seen.append(vars(args))
    return sample.response.count("e") / max(sample.response_length, 1)


def launch(inputs: Path, *extra: str) -> list[str]:
    """The words after `python3 train.py`."""
    words = f"""--train-backend fsdp --actor-num-nodes 1 --actor-num-gpus-per-node 1 --colocate {MODEL}
        --hf-checkpoint {inputs}/model --ref-load {inputs}/model_torch_dist --prompt-data {inputs}/prompts.jsonl
        --input-key input --label-key label --apply-chat-template --rollout-shuffle --num-rollout 2 --rollout-batch-size 4
        --n-samples-per-prompt 2 --rollout-max-response-len 6 --rollout-temperature 0.8 --global-batch-size 8
        --custom-rm-path {__name__}.keeps_what_it_is_given {OPTIMIZER} {OBJECTIVE} {PERFORMANCE} {MISCELLANEOUS}"""
    return [*words.split(), *extra]


def test_a_grpo_launch_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inputs, run_dir = make_inputs(tmp_path), tmp_path / "run"
    flags = ["--advantage-estimator", "grpo", "--launcher", "local", "--run-dir", str(run_dir)]
    assert run(["train", *launch(inputs, *flags)]) == 0
    rows = metrics_of(run_dir)
    assert [row["rollout"] for row in rows] == [0, 1]
    assert rows[0]["train/kl_loss"] == pytest.approx(0, abs=1e-9)
    assert "11 model-shape flags agree with config.json" in capsys.readouterr().out
    written = yaml.safe_load((run_dir / "config.yaml").read_text())
    assert (written["gradient_checkpointing"], written["ref_load"]) == (True, None)
    assert "tensor_model_parallel_size" not in written


def test_a_launch_without_megatrons_flags_trains_the_same(tmp_path: Path) -> None:
    inputs, weights = make_inputs(tmp_path), []
    full = launch(inputs, "--advantage-estimator", "grpo", "--launcher", "local")
    for name, words in (("script", full), ("plain", without_megatron(full))):
        assert run(["train", *words, "--run-dir", str(tmp_path / name)]) == 0
        weights.append(load_file(tmp_path / name / "checkpoints" / "latest" / "actor" / "model.safetensors"))
    assert len(full) > len(without_megatron(full)) + 40
    assert all((weights[1][name] == tensor).all() for name, tensor in weights[0].items())


def without_megatron(words: list[str]) -> list[str]:
    """The words without what Megatron reads, said as this project says it."""
    for flag in (*MODEL.split("--"), *MISCELLANEOUS.split("--"), *PERFORMANCE.split("--use-dynamic")[0].split("--")):
        for word in [f"--{flag}".split()] if flag.strip() else []:
            at = words.index(word[0])
            words = words[:at] + words[at + len(word) :]
    return [word for word in words if word != "--balance-data"] + ["--gradient-checkpointing"]


def test_wandb_gets_the_run_and_its_key_goes_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wandb, secret, run_dir = install_wandb(monkeypatch), "0123456789abcdef", tmp_path / "run"
    monkeypatch.setenv("WANDB_API_KEY", "")
    flags = f"--use-wandb --wandb-project p --wandb-group g --wandb-key {secret} --wandb-team t --wandb-mode offline"
    path = f"{__name__}.keeps_what_it_is_given"
    assert run(ppo_flags(make_inputs(tmp_path), run_dir, "--custom-rm-path", path, *flags.split())) == 0
    (started,) = wandb.runs
    assert re.fullmatch(r"g_[0-9a-f]{6}", started["group"])
    assert (started["name"], started["project"], started["entity"]) == (started["group"], "p", "t")
    assert (started["mode"], started["dir"], started["settings"]) == ("offline", str(run_dir), None)
    rows = metrics_of(run_dir)
    assert [(step, row["rollout/reward"]) for step, row in wandb.logged] == [(r["rollout"], r["rollout/reward"]) for r in rows]
    assert wandb.finished == 1
    assert os.environ["WANDB_API_KEY"] == secret
    printed = capsys.readouterr()
    assert seen
    assert secret not in repr(seen) + repr(started) + printed.out + printed.err
    for file in run_dir.rglob("*"):
        assert not file.is_file() or secret.encode() not in file.read_bytes(), file


def test_wandb_flags_name_server_folder_and_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = install_wandb(monkeypatch)
    flags = f"--use-wandb --wandb-group g --disable-wandb-random-suffix --wandb-host http://w --wandb-dir {tmp_path}/w/b"
    assert run(ppo_flags(make_inputs(tmp_path), tmp_path / "run", "--num-rollout", "1", *flags.split())) == 0
    (started,) = wandb.runs
    assert (started["group"], started["settings"], started["dir"]) == ("g", {"base_url": "http://w"}, f"{tmp_path}/w/b")
    assert (tmp_path / "w" / "b").is_dir()


def test_what_wandb_refuses_ends_the_run_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install_wandb(monkeypatch)
    flags = "--use-wandb --wandb-group refused --disable-wandb-random-suffix"
    assert run(ppo_flags(make_inputs(tmp_path), tmp_path / "run", *flags.split())) == 2
    assert capsys.readouterr().err == "slime: error: --use-wandb: Weights & Biases: no such entity: nobody\n"


@pytest.mark.parametrize("door", [["-m", "slime.train"], ["train.py"]])
def test_both_doors_answer_without_torch(door: list[str]) -> None:
    code = [sys.executable, "-X", "importtime", *door, "--critic-update-step", "2"]
    ended = subprocess.run(code, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.endswith("unknown flag --critic-update-step; did you mean --critic-update-steps?\n")
    assert "slime.arguments.parse" in ended.stderr
    assert not re.search(r"\| +(torch|ray|transformers)$", ended.stderr, re.MULTILINE)


def wait_for(port: int) -> None:
    """Returns once something listens there."""
    for _ in range(300):
        with socket.socket() as probe:
            if probe.connect_ex((socket.gethostbyname(socket.gethostname()), port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"nothing listens on {port}")


@pytest.mark.slow
def test_a_script_that_starts_ray_itself_trains_in_that_ray(tmp_path: Path) -> None:
    inputs, ray = make_inputs(tmp_path), str(Path(sys.executable).with_name("ray"))
    port = 20000 + os.getpid() % 10000
    # Ray asks drivers for a token where its user has one; this cluster has its own.
    env = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_ADDRESS": f"127.0.0.1:{port}"}
    # Ray's sockets need a short path.
    start = f"start --head --block --port {port} --temp-dir /tmp/ray_of_{os.getpid()} --include-dashboard=false --num-cpus 2"
    command, silent = [ray, *start.split(), "--disable-usage-stats"], subprocess.DEVNULL
    head = subprocess.Popen(command, env=env, stdout=silent, stderr=silent)
    try:
        wait_for(port)
        words = launch(inputs, "--advantage-estimator", "ppo", "--run-dir", str(tmp_path / "run"))
        python = [sys.executable, "train.py", *words]
        ended = subprocess.run(python, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        assert [row["rollout"] for row in metrics_of(tmp_path / "run")] == [0, 1]
        assert list(Path(f"/tmp/ray_of_{os.getpid()}").glob("session_*/logs/python-core-driver-*"))
        # The run has left, its processes are gone, and Ray goes on.
        assert head.poll() is None
        family = psutil.Process(head.pid).children(recursive=True)
        assert not [process for process in family if "RankProcess" in process.name() or "EngineProcess" in process.name()]
    finally:
        family = [*psutil.Process(head.pid).children(recursive=True), psutil.Process(head.pid)]
        for process in family:
            process.terminate()
        _, alive = psutil.wait_procs(family, timeout=10)
        for process in alive:
            process.kill()
        head.wait()
        shutil.rmtree(f"/tmp/ray_of_{os.getpid()}", ignore_errors=True)

#!/usr/bin/env bash
# SGLang for the tests on a CPU, in an environment of its own: it pins a transformers older than the trainer's, and its full
# set of dependencies is for CUDA. Usage: install.sh PYTHON ENVIRONMENT
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=$1 environment=$2
"$python" -m venv "$environment"
pip=("$environment/bin/pip" install --disable-pip-version-check -q)
constraints=$environment/constraints.txt
echo 'torch==2.13.0' > "$constraints"
"${pip[@]}" torch==2.13.0
# Without what they ask for: that is the CUDA part.
"${pip[@]}" --no-deps sglang==0.5.23 compressed-tensors==0.18.0 torchvision==0.28.0
"${pip[@]}" -c "$constraints" transformers==5.19.0 triton==3.8.0 apache-tvm-ffi==0.1.11 xgrammar==0.2.7 openai==2.8.0 \
    sentencepiece==0.2.1 soundfile==0.13.1 'uvicorn>=0.51' aiohttp dill einops fastapi gguf ipython jsonschema loguru msgspec \
    orjson partial_json_parser pillow psutil pybase64 python-multipart pyzmq requests setproctitle starlette uvloop
site=$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
printf '%s\nimport stand_ins\n' "$here" > "$site/sglang_on_a_cpu.pth"
touch "$environment/.installed"

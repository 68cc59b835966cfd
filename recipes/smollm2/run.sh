#!/usr/bin/env bash
# PPO on a real pretrained model. Usage: recipes/smollm2/run.sh [FOLDER [FLAG …]], flags as of `slime train`, over ppo.yaml's.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=${1:-runs/smollm2-$(date +%Y%m%d-%H%M%S)}
python=${PYTHON:-python}

if [ ! -d "$folder/data/model" ]; then
    "$python" -m recipes.smollm2.prepare "$folder/data"
fi
"$python" -m slime.cli train --config recipes/smollm2/ppo.yaml \
    --hf-checkpoint "$folder/data/model" --prompt-data "$folder/data/train.jsonl" \
    --eval-prompt-data heldout "$folder/data/heldout.jsonl" --run-dir "$folder/ppo" "${@:2}"

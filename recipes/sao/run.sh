#!/usr/bin/env bash
# SAO on the quickstart's task and model. Usage: recipes/sao/run.sh [FOLDER [SEED]]
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=${1:-runs/sao-$(date +%Y%m%d-%H%M%S)}
seed=${2:-1}
python=${PYTHON:-python}

"$python" -m recipes.quickstart.prepare "$folder/data" --seed "$seed"
"$python" -m slime.cli train --config recipes/quickstart/sft.yaml --seed "$seed" --rollout-seed "$seed" \
    --hf-checkpoint "$folder/data/model" --prompt-data "$folder/data/sft.jsonl" --run-dir "$folder/sft"
"$python" -m slime.cli train --config recipes/sao/small.yaml --seed "$seed" --rollout-seed "$seed" \
    --hf-checkpoint "$folder/sft/checkpoints/latest/actor" --prompt-data "$folder/data/train.jsonl" \
    --eval-prompt-data heldout "$folder/data/heldout.jsonl" --run-dir "$folder/sao"

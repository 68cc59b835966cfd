#!/usr/bin/env bash
# The whole recipe: data and model, supervised warm-up, PPO. Usage: recipes/tool_use/run.sh [FOLDER [SEED]]
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=${1:-runs/tool_use-$(date +%Y%m%d-%H%M%S)}
seed=${2:-1}
python=${PYTHON:-python}

"$python" -m recipes.tool_use.prepare "$folder/data" --seed "$seed"
"$python" -m slime.cli train --config recipes/tool_use/sft.yaml --seed "$seed" --rollout-seed "$seed" \
    --hf-checkpoint "$folder/data/model" --prompt-data "$folder/data/sft.jsonl" --run-dir "$folder/sft"
"$python" -m slime.cli train --config recipes/tool_use/ppo.yaml --seed "$seed" --rollout-seed "$seed" \
    --hf-checkpoint "$folder/sft/checkpoints/latest/actor" --prompt-data "$folder/data/train.jsonl" \
    --eval-prompt-data heldout "$folder/data/heldout.jsonl" --run-dir "$folder/ppo"

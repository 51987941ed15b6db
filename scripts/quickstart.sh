#!/usr/bin/env bash
# Installs everything, trains the quickstart's policy with SWAP (Ray, vLLM, DeepSpeed) and shows what changed. Needs no GPU.
# Arguments go to openrlhf-swap quickstart:
#   --output outputs/quickstart          folder for tables, pictures and the trained policy
#   --model openrlhf_swap/quickstart/policy     the base policy
#   --steps 24                           training steps of 16 prompts x 8 responses
#   --problems 500                       held-out problems
#   --samples 1                          responses per held-out problem
#   --seed 42                            seed of the training run
#   --recipe own_bill                    a recipe of docs/use/recipes.md in the place of the paper's equations
set -euo pipefail
cd "$(dirname -- "${BASH_SOURCE[0]}")/.."

# shellcheck source=scripts/common.sh
source scripts/common.sh

read_flags "" "$@"
use_cpu_environment
bash scripts/setup.sh
export PATH="$VENV/bin:$PATH" HF_HUB_OFFLINE=1
echo "the environment of this run: source ${VENV#"$PWD"/}/bin/activate"
exec openrlhf-swap quickstart "${FLAGS[@]}"

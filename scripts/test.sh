#!/usr/bin/env bash
# Installs everything, checks style and scripts, and runs the tests. Further arguments go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# shellcheck source=scripts/common.sh
source scripts/common.sh

use_cpu_environment
bash scripts/setup.sh
export PATH="$VENV/bin:$PATH" HF_HUB_OFFLINE=1
ruff check .
ruff format --check .
shellcheck -x scripts/*.sh scripts/*.sbatch examples/*/*.sh .ci/run
exec python -m pytest "$@"

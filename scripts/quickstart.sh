#!/usr/bin/env bash
# Installs everything, trains the embedded policy with SWAP on the real stack and shows what changed.
# Further arguments go to examples/addition/quickstart.py; --help lists them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# shellcheck source=scripts/common.sh
source scripts/common.sh

use_cpu_environment
bash scripts/setup.sh
export PATH="$VENV/bin:$PATH" HF_HUB_OFFLINE=1
exec python examples/addition/quickstart.py "$@"

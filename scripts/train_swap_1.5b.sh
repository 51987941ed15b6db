#!/usr/bin/env bash
# DeepSeek-R1-Distill-Qwen-1.5B on 8 x 80 GB GPUs; see train_swap_r1.sh.
set -euo pipefail
SIZE=1.5B exec bash "$(dirname -- "${BASH_SOURCE[0]}")/train_swap_r1.sh" "$@"

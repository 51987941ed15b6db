#!/usr/bin/env bash
# Creates .venv in the checkout and installs everything into it. Safe to run again: whatever is up to date is left
# alone.
#   VENV=...      put the environment elsewhere
#   PROFILE=cpu   or gpu; by default gpu if there is a CUDA device
#   FLASH_ATTN=1  gpu only: also compiles flash-attn, for hours, with the compiler shipped in the Python packages
set -euo pipefail
cd "$(dirname -- "${BASH_SOURCE[0]}")/.."

# shellcheck source=scripts/common.sh
source scripts/common.sh

read_flags "" "$@"
VENV="${VENV:-$PWD/.venv}"
undash VENV
LOG="$VENV/setup.log"
FLASH_ATTN="${FLASH_ATTN:-0}"
TORCH_CPU_INDEX="https://download.pytorch.org/whl/cpu"
# What the processes of a run import; the first one prepares for the others.
IMPORTED="openrlhf_swap.integration, openrlhf.trainer.ppo_trainer, openrlhf.trainer.ray.ppo_actor, \
vllm.v1.engine.async_llm, vllm.v1.worker.cpu_worker, datasets, math_verify, peft"

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3.11 python3 python; do
        command -v "${candidate:-none}" >/dev/null || continue
        if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
            command -v "$candidate"
            return
        fi
    done
    fail "Python 3.11 was not found; install it, or name it: PYTHON=/path/to/python3.11 bash scripts/setup.sh"
}

require_disk() {
    local needed_gib="$1" free_kib
    free_kib="$(df -Pk "$(dirname -- "$VENV")" | awk 'NR == 2 { print $4 }')"
    if (( free_kib < needed_gib * 1024 * 1024 )); then
        fail "$(dirname -- "$VENV") has $(( free_kib / 1024 / 1024 )) GiB free; the $PROFILE profile needs $needed_gib: free some, or set VENV"
    fi
}

# logged WORD ...: runs an installer, shows what it downloads and builds, keeps the rest in the log, and reports a
# failure in one line.
logged() {
    if "$@" 2>&1 | tee -a "$LOG" | sed -nE 's/^ *((Downloading|Building|Prepared|Installed) .*)/[setup] \1/p'; then
        return 0
    elif grep -q 'No space left on device' "$LOG"; then
        fail "the disk is full; free some space, or set VENV to another disk (details: $LOG)"
    elif grep -qE 'establish a new connection|name resolution|dns error|timed out|error sending request' "$LOG"; then
        fail "the package index cannot be reached; check the network and run this again (details: $LOG)"
    fi
    return 1
}

# install WORD ...: without dependencies, because the lists are complete.
install() {
    logged "$VENV/bin/uv" pip install --python "$VENV/bin/python" --no-deps "${BYTECODE[@]}" "$@"
}

# pip_setting NAME: a setting of where pip looks for packages. uv does not read pip's configuration files.
pip_setting() {
    "$VENV/bin/python" -m pip config get "global.$1" 2>/dev/null || true
}

# The packages spread the compiler over several folders; torch expects a single one.
link_cuda() {
    local parts="$VENV/lib/python3.11/site-packages/nvidia/cu13" library
    mkdir -p "$VENV/cuda/lib64"
    ln -sfn "$parts"/{bin,include,nvvm} "$VENV/cuda/"
    for library in "$parts"/lib/*.so*; do
        ln -sf "$library" "$VENV/cuda/lib64/$(basename "${library%%.so*}").so"
    done
}

[[ "$FLASH_ATTN" =~ ^[01]$ ]] || fail "FLASH_ATTN is $FLASH_ATTN; use 1, or 0 to skip it"
PROFILE="${PROFILE:-$(detect_profile)}"
case "$PROFILE" in
    cpu) PINS=(requirements-cpu.txt) NEEDED_GIB=7 ;;
    gpu) PINS=(constraints-gpu.txt) NEEDED_GIB=15 ;;
    *) fail "PROFILE is $PROFILE; use cpu or gpu" ;;
esac
# Without bytecode the processes of a run compile the same sources at the same time, and on every start if Python may
# not write the results. All packages take a minute: on a CPU where it may, only what a run imports is compiled.
BYTECODE=(--compile-bytecode)
if [[ "$PROFILE" == cpu && -z "${PYTHONDONTWRITEBYTECODE:-}" ]]; then BYTECODE=(); fi
if (( FLASH_ATTN )); then
    [[ "$PROFILE" == gpu ]] || fail "FLASH_ATTN is 1 with PROFILE $PROFILE; flash-attn runs on GPUs only: leave it out"
    PINS+=(requirements-flash-attn.txt) NEEDED_GIB=30
fi

PYTHON_PATH="$(find_python)"
STAMP="$VENV/.installed"
if [[ -f "$STAMP" && "$(cut -d ' ' -f 1 "$STAMP")" != "$PROFILE" ]]; then
    # The versions alone would not tell: both profiles have the same torch version.
    fail "$VENV holds the $(cut -d ' ' -f 1 "$STAMP") profile; for $PROFILE remove it, or set VENV to another place"
fi
WANTED="$PROFILE $(cat "${PINS[@]}" pyproject.toml | sha256sum | cut -d ' ' -f 1)"
if [[ -f "$STAMP" && "$(cat "$STAMP")" == "$WANTED" ]]; then
    printf '[setup] %s is up to date (%s)\n' "$VENV" "$PROFILE"
    exit 0
fi

require_disk "$NEEDED_GIB"
# Triton needs it on GPUs, DeepSpeed on a CPU.
command -v g++ >/dev/null || fail "no C++ compiler (g++) was found, which training needs; install one, such as Debian's package g++"
# Triton compiles a file that includes it at its first kernel, in the first engine of a run; DeepSpeed's op does, too.
INCLUDE="$("$PYTHON_PATH" -c 'import sysconfig; print(sysconfig.get_paths("posix_prefix")["include"])')"
if [[ ! -f "$INCLUDE/Python.h" ]]; then
    fail "$INCLUDE/Python.h was not found, which training needs; install Python's headers (Debian: python3.11-dev)"
fi
if [[ "$PROFILE" == cpu ]] && ! "$PYTHON_PATH" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null; then
    fail "libnuma.so.1 was not found, without which vLLM fails at its first response; install it (Debian: libnuma1)"
fi
"$PYTHON_PATH" -m venv "$VENV" || fail "$PYTHON_PATH cannot make a virtual environment; install its venv package"
: >"$LOG"
printf '[setup] installing the %s profile into %s; takes minutes the first time (log: %s)\n' "$PROFILE" "$VENV" "$LOG"
logged "$VENV/bin/python" -m pip install --no-input "$(grep -ohE '^uv==[^ ]+' "${PINS[@]}")" \
    || fail "the installer uv could not be installed (details: $LOG)"
export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-$(pip_setting index-url)}}"
export UV_INDEX="${UV_INDEX:-${PIP_EXTRA_INDEX_URL:-$(pip_setting extra-index-url)}}"
export UV_FIND_LINKS="${UV_FIND_LINKS:-${PIP_FIND_LINKS:-$(pip_setting find-links)}}"
export UV_INDEX_STRATEGY=unsafe-best-match  # like pip: the pins decide, not the order of the indexes

# Package indexes carry the CUDA build of torch; PyTorch's own index has the CPU build.
install -r "${PINS[0]}" || { [[ "$PROFILE" == cpu ]] && install -r "${PINS[0]}" --index "$TORCH_CPU_INDEX"; } \
    || fail "the packages of ${PINS[0]} could not be installed (details: $LOG)"
install --no-build-isolation -e . || fail "this checkout could not be installed (details: $LOG)"
if (( FLASH_ATTN )); then
    link_cuda
    printf '[setup] compiling flash-attn, which takes hours (see MAX_JOBS and FLASH_ATTN_CUDA_ARCHS)\n'
    CUDA_HOME="$VENV/cuda" PATH="$VENV/bin:$PATH" install --no-build-isolation -r "${PINS[1]}" \
        || fail "flash-attn could not be compiled (details: $LOG); leave out FLASH_ATTN to do without it"
fi
if [[ "$PROFILE" == cpu ]]; then
    printf "[setup] compiling DeepSpeed's communication op, and what a run imports\n"
    "$VENV/bin/python" -c "import $IMPORTED" >>"$LOG" 2>&1 &
    PATH="$VENV/bin:$PATH" "$VENV/bin/python" -c \
        'from openrlhf_swap.integration.startup.communication_op import build_communication_op; build_communication_op()' 2>>"$LOG" \
        || fail "DeepSpeed's communication op could not be compiled (details: $LOG)"
    wait "$!" || fail "the installed packages cannot be imported (details: $LOG)"
else
    # OpenRLHF requires flash-attn; openrlhf_swap/integration/runtime/attention.py stands in for it.
    PROBLEMS="$("$VENV/bin/uv" pip check --python "$VENV/bin/python" 2>&1 | grep '^The package' || true)"
    printf '%s\n' "$PROBLEMS" | sed 's/^./[setup] check: &/' | tee -a "$LOG"
    if grep -v '`flash-attn' <<<"$PROBLEMS" | grep -q .; then fail "the packages are not compatible with each other (details: $LOG)"; fi
fi
printf '%s\n' "$WANTED" >"$STAMP"
printf '[setup] done\n'

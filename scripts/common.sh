# Sourced by the launch scripts, which are run from the checkout.
# shellcheck shell=bash

# Prints an error in one line and ends the script.
fail() {
    printf 'error: %s\n' "$1" >&2
    exit 2
}

# require_count NAME [LEAST]: the variable holds a whole number of at least LEAST (1).
require_count() {
    local least="${2:-1}"
    if [[ ! "${!1}" =~ ^(0|[1-9][0-9]*)$ ]] || (( ${!1} < least )); then
        fail "$1 is ${!1}; use a whole number of at least $least"
    fi
}

# print_help: the comment at the top of the script that was called.
print_help() {
    sed -n '2,/^set /{s/^# \{0,1\}//p}' "scripts/$(basename "$0")"
}

# read_flags "MODE ..." FLAG ...: sets MODE to the mode that a flag names (--dry-run: dry-run), or to run, and FLAGS to
# the flags that are left. --help prints the help and ends the script.
read_flags() {
    local modes=" $1 " flag
    MODE=run
    FLAGS=()
    for flag in "${@:2}"; do
        if [[ "$flag" == -h || "$flag" == --help ]]; then
            print_help
            exit 0
        elif [[ "$flag" == --* && "$modes" == *" ${flag#--} "* ]]; then
            # shellcheck disable=SC2034  # for the script
            MODE="${flag#--}"
        else
            FLAGS+=("$flag")
        fi
    done
}

# count_gpus: GPUs that a process started here would see.
count_gpus() {
    if [[ -n "${CUDA_VISIBLE_DEVICES+set}" ]]; then
        tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -cE '^ *([0-9]|GPU-|MIG-)' || true  # -1 hides them all
    elif command -v nvidia-smi >/dev/null; then
        nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true
    else
        echo 0
    fi
}

# use_cpu_environment: the quickstart and the tests need no GPU. Where there are some, .venv is for training on them,
# and these get an environment beside it.
use_cpu_environment() {
    if [[ -z "${VENV:-}" ]]; then
        if (( $(count_gpus) )); then VENV="$PWD/.venv-cpu"; else VENV="$PWD/.venv"; fi
    fi
    export PROFILE=cpu VENV
}

# show WORD ...: prints a command so that it can be pasted.
show() {
    printf '%q ' "$@"
    printf '\n'
}

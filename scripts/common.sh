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

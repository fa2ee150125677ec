# shellcheck shell=bash
# Output, errors, root and locks for the shell programs of scripts/ and for those that clusterctl
# sends to nodes.

say() { printf '%s\n' "$*"; }

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# Run a long and noisy command. If it fails, print its last lines and exit; DOING is the message.
quietly() {
    local log=$1
    shift
    if ! "$@" >>"$log" 2>&1 </dev/null; then
        tail -n 40 "$log" >&2
        die "${DOING:-this failed: $*} (all of its output: $log)"
    fi
}

# Run a command as root: directly, or through sudo. Fails if neither is possible.
as_root() {
    if [[ $EUID -eq 0 ]]; then
        "$@"
    else
        sudo "$@"
    fi
}

# A sudo that needs a password is of use only if stdin is a terminal.
can_be_root() {
    [[ $EUID -eq 0 ]] || sudo -n true 2>/dev/null || { [[ -t 0 ]] && command -v sudo >/dev/null; }
}

# Hold a lock on a folder until the calling (sub)shell ends.
lock_folder() {
    local fd
    exec {fd}<"$1"
    if ! flock -n "$fd"; then
        say "waiting: another run is working in $1"
        flock "$fd"
    fi
}

# shellcheck shell=bash
# How the shell programs here speak, fail, become root and wait for each other: those of scripts/
# and those that clusterctl sends to nodes.

say() { printf '%s\n' "$*"; }

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# Run a long and noisy command: silent when it works, its last lines when it does not. DOING says
# in words what went wrong then.
quietly() {
    local log=$1
    shift
    if ! "$@" >>"$log" 2>&1 </dev/null; then
        tail -n 40 "$log" >&2
        die "${DOING:-this failed: $*} (all of its output: $log)"
    fi
}

# Run as root: directly, or through sudo. Fails when neither is there.
as_root() {
    if [[ $EUID -eq 0 ]]; then
        "$@"
    else
        sudo "$@"
    fi
}

# sudo that asks for a password helps only where someone can type it.
can_be_root() {
    [[ $EUID -eq 0 ]] || sudo -n true 2>/dev/null || { [[ -t 0 ]] && command -v sudo >/dev/null; }
}

# Hold a lock on a folder for as long as the calling (sub)shell lives.
lock_folder() {
    local fd
    exec {fd}<"$1"
    if ! flock -n "$fd"; then
        say "waiting: another run is working in $1"
        flock "$fd"
    fi
}

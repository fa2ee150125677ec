# shellcheck shell=bash
# training_env default|newest: install TensorFlow, Open MPI and Horovod in one folder that every
# user can read. `clusterctl env install` takes the same steps on nodes. training_meanwhile does it
# in the background.

shell=$CHECKOUT/clusterctl/bootstrap/shell
# shellcheck source=clusterctl/bootstrap/shell/training.sh
. "$shell/training.sh"
# shellcheck source=clusterctl/bootstrap/shell/training_wheels.sh
. "$shell/training_wheels.sh"
# shellcheck source=clusterctl/bootstrap/shell/training_install.sh
. "$shell/training_install.sh"

RANKS_CHECK=$(<"$shell/ranks.py")

# training_place RELEASE: set folder, python, key and wheels, all about that release's environment.
# CLUSTERCTL_TRAINING_ENV may name another folder, and CLUSTERCTL_TRAINING_PYTHON another Python
# interpreter than the system's.
training_place() {
    training_release "$1"
    folder=${CLUSTERCTL_TRAINING_ENV:-$TRAINING_FOLDER}
    python=$(training_python)
    key=$(training_key "$python" cpu)
    wheels=${XDG_CACHE_HOME:-$HOME/.cache}/clusterctl/wheels/$key
}

# Say so and return 0 if the environment of training_place is complete. Otherwise make its folder: if
# it cannot be written, minutes of downloads would be lost.
training_is_ready() {
    if is_ready "$folder" "$(training_stamp "$python" "$key")"; then return; fi
    own_folder "$folder"
    return 1
}

training_env() (
    umask 022
    training_place "$1"
    if training_is_ready; then exit; fi
    training_gather "$python" cpu "$wheels" ""
    training_install "$python" cpu "$wheels" "" "$folder"
)

# The process group that installs in the background; empty if there is none.
INSTALLING=

# training_meanwhile RELEASE FOLDER: as training_env, in the background and at low priority. What it
# says, and its temporary files, are in FOLDER.
training_meanwhile() {
    INSTALLING_LOG=$2/installing
    training_place "$1"
    if training_is_ready; then return; fi
    : >"$INSTALLING_LOG"
    # With job control the background has a process group of its own.
    set -m
    (
        renice -n 10 -p "$BASHPID" >/dev/null || true
        TMPDIR=$(mktemp -d -p "$2")
        export TMPDIR
        training_env "$1"
    ) >"$INSTALLING_LOG" 2>&1 </dev/null &
    INSTALLING=$!
    set +m
    say "meanwhile: TensorFlow and Horovod are installed in $folder"
}

# Show what the installation says until its end.
training_await() {
    tail -n +1 -f --pid="$INSTALLING" "$INSTALLING_LOG"
    wait "$INSTALLING" || die "the training environment could not be installed"
    INSTALLING=
}

# End the installation. The next one goes on from what is there.
training_stop() {
    local _
    # In a trap a bare `return` has the status of what failed before it, and `set -e` would end the
    # trap here.
    if [[ -z $INSTALLING ]]; then return 0; fi
    kill -TERM -- "-$INSTALLING" 2>/dev/null || true
    wait "$INSTALLING" 2>/dev/null || true
    # Its first process has ended; others of its group may need a moment.
    for _ in {1..50}; do
        kill -0 -- "-$INSTALLING" 2>/dev/null || break
        sleep 0.1
    done
    kill -KILL -- "-$INSTALLING" 2>/dev/null || true
    INSTALLING=
}

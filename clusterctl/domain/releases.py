"""The two releases of the training environment, and the GPUs that each is for.

Python 3.8 and the standard library only: this module also runs on the nodes (jobs/train_sh).
"""

# The release of bootstrap/shell/training.sh for each value of `--tensorflow`.
RELEASES = {"2.15": "default", "NEWEST": "newest"}
NAMES = {release: name for name, release in RELEASES.items()}
# The series of TensorFlow of each release.
SERIES = {"default": "2.15", "newest": "2.21"}
# By release, the first compute capability (90 is 9.0) for which TensorFlow's wheels have no kernels
# (`tf.sysconfig.get_build_info()`). The driver compiles them at their first use.
FIRST_WITHOUT_KERNELS = {"default": 90, "newest": 100}
# By release, the first and the last compute capability of the GPUs that its libraries run on. CUDA
# 12.2 and cuDNN 8.9 of `default` are older than 10.0, which begins with CUDA 12.8 and cuDNN 9.7
# (their release notes); cuDNN 8.9 begins with 5.0 (its support matrix). TensorFlow 2.21 was built
# for 6.0 and later (`tf.sysconfig.get_build_info()`).
RUNS_ON = {"default": (50, 99), "newest": (60, 999)}
# From this one on, `newest` is chosen: it is the first that has kernels for it.
NEWEST_FROM = FIRST_WITHOUT_KERNELS["default"]


def dotted(capability: int) -> str:
    """Return a compute capability as NVIDIA writes it: 9.0 for 90."""
    return f"{capability // 10}.{capability % 10}"

"""A Horovod program for nodes of the lab: it sums three tensors per step, and fails on order.

An order is a word. `RANK:WORD` on the command line applies to the fourth step, and
`RANK:early-WORD` before anything is imported. A file /data/order.RANK on the rank's host applies at
once, `WORD@N` at the next step whose number N divides, so that several ranks obey at the same step.
From then on there is a file /data/obeys.RANK. Most words last as long as the order is there.
SIGUSR1 ends what Python waits for, so that the job can go on.
"""

import collections
import contextlib
import functools
import itertools
import math
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path

RANK = int(os.environ["OMPI_COMM_WORLD_RANK"])
ORDER = Path(f"/data/order.{RANK}")
OBEYS = Path(f"/data/obeys.{RANK}")
GIVEN = dict(word.split(":") for word in sys.argv[1:]).get(str(RANK), "")
IS_EARLY = any(":early-" in word for word in sys.argv[1:])
TENSORS = ["grads/conv1", "grads/conv2", "grads/dense"]
# 64 KB: enough to notice a slow link.
VALUES = 16 * 1024


def held():
    return ORDER.exists()


def order(number):
    try:
        word, _, every = ORDER.read_text().strip().partition("@")
    except OSError:
        return ""
    return "" if every and number % int(every) else word


class GivenUp(Exception):
    """The test has seen enough of what the rank waits for."""


def give_up(signum, frame):
    if obeyed:
        raise GivenUp


obeyed = []


def endless_python_loop():
    while held():
        pass


def endless_c_loop():
    # No function of Python's is called, and os.access needs no signal to end the loop.
    collections.deque(iter(functools.partial(os.access, ORDER, os.F_OK), False), maxlen=0)


def read_a_fifo():
    Path("/data/fifo").read_text()


def spawn_in_d_state():
    # The child opens the FIFO before it executes a program. Meanwhile its parent waits in vfork,
    # which only SIGKILL ends: state D, as for a lost mount.
    opens = (os.POSIX_SPAWN_OPEN, 0, "/data/fifo", os.O_RDONLY, 0)
    os.waitpid(os.posix_spawn("/bin/true", ["true"], {}, file_actions=[opens]), 0)


def write_a_checkpoint():
    while held():
        try:
            with Path("/data/model.ckpt-7.data").open("wb") as file:
                file.write(bytes(1 << 20))
                os.fsync(file.fileno())
        except OSError as error:
            if not said:
                said.append(error)
                print(f"rank {RANK}: cannot save the checkpoint, trying again: {error}", flush=True)
            time.sleep(0.1)


said = []


def nap():
    while held():
        time.sleep(30)


def validate():
    total = 0
    while held():
        for number in range(1000):
            total += number
        math.sqrt(total)


def wait_for_a_lock():
    import fcntl

    with Path("/data/lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def wait_for_an_answer():
    """Read from a server that never accepts the connection."""
    import socket

    server = socket.create_server(("127.0.0.1", 9999))
    with server, socket.create_connection(server.getsockname()) as connection:
        connection.recv(1)


def write_to_a_slow_reader():
    with Path("/data/fifo").open("wb", 0) as file:
        while held():
            file.write(bytes(1 << 16))


def wait_for_a_child():
    import subprocess

    subprocess.run([sys.executable, "-c", "import time; time.sleep(3600)"], check=True)


def deadlock():
    """Wait for a lock that another thread holds, which waits for what only this one would set."""
    lock, held_now, done = threading.Lock(), threading.Event(), threading.Event()

    def keep_the_lock():
        with lock:
            held_now.set()
            done.wait()

    threading.Thread(target=keep_the_lock, daemon=True, name="keeper").start()
    held_now.wait()
    try:
        with lock:
            pass
    finally:
        done.set()


def fail_beside_a_thread():
    # Python waits for this thread before it exits, so mpirun sees a running rank.
    threading.Thread(target=time.sleep, args=(3600,), name="loader").start()
    raise RuntimeError("loss is NaN at step 7")


def keep_opening_files():
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    [Path("/dev/null").open() for _ in range(100)]  # noqa: SIM115


def fill_shared_memory():
    with Path("/dev/shm/loader").open("wb") as file:
        while True:
            file.write(bytes(1 << 20))


def read_a_torn_record():
    import tensorflow as tf

    for _ in tf.data.TFRecordDataset("/data/train-00017-of-01024"):
        pass


def load_an_operation():
    import ctypes

    ctypes.CDLL("/data/horovod/tensorflow/mpi_lib.so")


SPOILED = {
    "loop": endless_python_loop,
    "c-loop": endless_c_loop,
    "fifo": read_a_fifo,
    "spawn": spawn_in_d_state,
    "checkpoint": write_a_checkpoint,
    "raise": fail_beside_a_thread,
    "files": keep_opening_files,
    "shm": fill_shared_memory,
    "record": read_a_torn_record,
    "symbol": load_an_operation,
    "nap": nap,
    "validate": validate,
    "lock": wait_for_a_lock,
    "answer": wait_for_an_answer,
    "slow-reader": write_to_a_slow_reader,
    "child": wait_for_a_child,
    "deadlock": deadlock,
}


def obey(word):
    OBEYS.touch()
    if word not in SPOILED:
        return
    with contextlib.suppress(GivenUp):
        obeyed.append(word)
        SPOILED[word]()
    obeyed.clear()


def main():
    signal.signal(signal.SIGUSR1, give_up)
    Path(f"/data/pid.{RANK}").write_text(str(os.getpid()))
    if GIVEN == "leave":
        # mpirun sees no error, and the other ranks wait for this one forever.
        os._exit(0)
    if IS_EARLY:
        # The other ranks wait as in hvd.init, without the seconds that it takes to get there.
        SPOILED[GIVEN[len("early-") :]]() if GIVEN else time.sleep(3600)
        return
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()

    def step_of(names):
        def step(value):
            for name in names:
                value = hvd.allreduce(value, name=name, op=hvd.Average)
            return value

        return tf.function(step)

    steps = {
        "": step_of(TENSORS),
        "skip": step_of([TENSORS[0], TENSORS[2]]),
        "gather": tf.function(lambda value: hvd.allgather(value, name="gathered")[:VALUES]),
        "swap": step_of([TENSORS[1], TENSORS[0], TENSORS[2]]),
    }
    value = tf.zeros([VALUES])
    for number in itertools.count():
        word = GIVEN if number == 3 and GIVEN else order(number)
        if word:
            obey(word)
        if word == "slow":
            # Keep busy, like a host that reads its data many times slower.
            until = time.monotonic() + 1.2
            while time.monotonic() < until:
                pass
        value = steps[word if word in steps else ""](value)
        if RANK == 0:
            print(f"step {number} loss {float(value[0]):.1f}", flush=True)
        time.sleep(0.1)


if __name__ == "__main__":
    main()

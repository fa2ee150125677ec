"""The job of `scripts/bench faults`: `faults_job.py horovod|torch|c`. It sums an array per step.

A file /data/order.RANK on a rank's host orders a fault, by its name. SIGUSR1 ends most of them.
"""

import asyncio
import atexit
import contextlib
import ctypes
import fcntl
import itertools
import multiprocessing
import os
import pty
import re
import resource
import select
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

RANK = int(os.environ.get("RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
ORDER = Path(f"/data/order.{RANK}")
QUIET = "quiet" in sys.argv
VALUES = 64 * 1024


class WithdrawnError(Exception):
    """The order was withdrawn."""


def withdraw(*_: object) -> None:
    raise WithdrawnError


def ordered():
    try:
        return ORDER.read_text().strip()
    except OSError:
        return ""


def retry(function, *errors, each_s=0.1):
    while ordered():
        try:
            function()
        except errors:
            time.sleep(each_s)


def pool():
    one = ThreadPoolExecutor(1)
    one.submit(lambda: one.submit(int).result()).result()


def fork_with_lock():
    lock, held = threading.Lock(), threading.Event()

    def keep():
        with lock:
            held.set()
            time.sleep(3600)

    threading.Thread(target=keep, daemon=True).start()
    held.wait()
    child = os.fork()
    if not child:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        lock.acquire()
    os.waitpid(child, 0)


def two_locks():
    first, second = threading.Lock(), threading.Lock()

    def other():
        with second:
            time.sleep(0.3)
            first.acquire()

    with first:
        threading.Thread(target=other, daemon=True, name="other").start()
        time.sleep(0.2)
        second.acquire()


def kept_lock():
    lock, held = threading.Lock(), threading.Event()

    def keeper():
        with lock:
            held.set()
            time.sleep(3600)

    threading.Thread(target=keeper, daemon=True, name="keeper").start()
    held.wait()
    lock.acquire()


def ignore_signals():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while ordered():
        signal.pause()


def no_descriptors():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (8, before[1]))
    try:
        while True:
            with contextlib.suppress(OSError), Path("/data/next").open():
                break
            time.sleep(0.1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def no_threads():
    before = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, before[1]))
    try:
        retry(threading.Thread(target=time.sleep, args=(1,)).start, RuntimeError)
    finally:
        resource.setrlimit(resource.RLIMIT_NPROC, before)


def no_memory():
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, before[1]))
    try:
        retry(lambda: bytearray(4 << 30), MemoryError)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def write_fifo():
    Path("/data/fifo").write_text("x")


def own_pipe():
    os.write(os.pipe()[1], bytes(1 << 20))


def child_stopped():
    child = subprocess.Popen(["sleep", "3600"])
    child.send_signal(signal.SIGSTOP)
    child.wait()


def database_locked():
    sqlite3.connect("/data/cache.db", timeout=3600).execute("begin exclusive")


def backtrack():
    re.match(r"(a+)+$", "a" * 60 + "b")


def remote_debugger():
    socket.create_server(("127.0.0.1", 0)).accept()


def no_name_server():
    asks = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    asks.connect(("10.255.255.1", 53))
    asks.send(b"?")
    asks.recv(512)


def connect_nowhere():
    socket.create_connection((Path("/data/nowhere").read_text().strip(), 9999), timeout=None)


def wait_for_file():
    while not Path("/data/never").exists():
        time.sleep(0.5)


def fill(path):
    def more():
        with Path(path).open("ab") as file:
            file.write(bytes(1 << 20))

    retry(more, OSError)


def full_shm():
    fill("/dev/shm/part")


def full_scratch():
    fill("/data/scratch/part")


def flood():
    while ordered():
        print(f"rank {RANK}: debug " + "x" * 400)


def hold_gil():
    ctypes.PyDLL(None).sleep(3600)


def event_loop():
    async def never():
        await asyncio.Event().wait()

    asyncio.run(never())


def full_queue():
    queue = multiprocessing.Queue(1)
    queue.put(1)
    queue.put(2)


def leave():
    os._exit(0)


def fetch_again():
    retry(lambda: urllib.request.urlopen("http://127.0.0.1:1/x"), OSError, each_s=1)


def no_ports():
    def again():
        with socket.socket() as one:
            one.connect((Path("/data/nowhere").read_text().strip(), 22))

    while ordered():
        with contextlib.suppress(OSError):
            again()
        time.sleep(0.2)


def sleep_long():
    time.sleep(3600)


def slow():
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        pass


def validate():
    until = time.monotonic() + 25
    while time.monotonic() < until and ordered():
        sum(range(10000))
        sorted(range(1000))


def save_checkpoint():
    until = time.monotonic() + 25
    with Path("/data/model.ckpt").open("wb") as file:
        while time.monotonic() < until and ordered():
            file.write(bytes(1 << 16))
            file.flush()
            time.sleep(0.01)
    Path("/data/model.ckpt").unlink()


def close_output():
    os.close(1)
    os.open("/dev/null", os.O_WRONLY)


def terminal():
    os.read(pty.openpty()[1], 1)


def file_lock():
    with Path("/data/job.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def in_handler():
    signal.signal(signal.SIGALRM, lambda *_: time.sleep(3600))
    os.kill(os.getpid(), signal.SIGALRM)


def child_reads():
    subprocess.run(["sh", "-c", "read x"], stdin=os.pipe()[0], check=False)


def child_writes():
    subprocess.Popen(["head", "-c", "1000000", "/dev/zero"], stdout=subprocess.PIPE).wait()


def barrier():
    threading.Barrier(2).wait()


def select_nothing():
    select.select([os.pipe()[0]], [], [])


def semaphore():
    multiprocessing.Semaphore(0).acquire()


def busy_thread():
    def spins():
        while ordered():
            sum(range(10000))

    one = threading.Thread(target=spins, daemon=True)
    one.start()
    one.join()


def mute_server():
    with socket.create_server(("127.0.0.1", 0)) as server:
        urllib.request.urlopen(f"http://127.0.0.1:{server.getsockname()[1]}/x")


def process_pool():
    ProcessPoolExecutor(1).submit(time.sleep, 3600).result()


def exit_kept():
    threading.Thread(target=time.sleep, args=(600,)).start()
    sys.exit(0)


def new_group():
    import torch.distributed as dist

    dist.new_group([0, 1])


def generator():
    import tensorflow as tf

    def rows():
        time.sleep(3600)
        yield 1

    next(iter(tf.data.Dataset.from_generator(rows, output_types=tf.int32)))


def fails():
    raise ValueError("bad row 7")


def worker_killed():
    with multiprocessing.Pool(1) as one:
        task = one.apply_async(time.sleep, (3600,))
        time.sleep(0.3)
        os.kill(one._pool[0].pid, signal.SIGKILL)
        task.get()


def late_import():
    Path("/data/late").mkdir(exist_ok=True)
    Path("/data/late/late_module.py").write_text("import time\ntime.sleep(3600)\n")
    sys.path.insert(0, "/data/late")
    import late_module  # noqa: F401


def read_only():
    fill("/data/scratch/part")


def drip():
    """Read an answer that comes by one byte a second, and never ends."""

    def serve(server):
        one, _ = server.accept()
        with contextlib.suppress(OSError):
            one.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 9999\r\n\r\n")
            while True:
                one.sendall(b"x")
                time.sleep(1)

    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, args=(server,), daemon=True).start()
    urllib.request.urlopen(f"http://127.0.0.1:{server.getsockname()[1]}/x").read()


def quiet_exit():
    os._exit(3)


def held_semaphore():
    """Wait for a lock that a process has taken which has been killed since."""
    lock = multiprocessing.Lock()
    child = multiprocessing.Process(target=lambda: (lock.acquire(), time.sleep(3600)))
    child.start()
    time.sleep(0.3)
    child.kill()
    child.join()
    lock.acquire()


def handler_lock():
    lock = threading.Lock()
    signal.signal(signal.SIGALRM, lambda *_: lock.acquire())
    with lock:
        signal.raise_signal(signal.SIGALRM)


def full_log_pipe():
    """Write to the pipe of a program for the log, which is stopped."""
    sink = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    sink.send_signal(signal.SIGSTOP)
    try:
        while True:
            sink.stdin.write(b"x" * 4096)
    finally:
        sink.kill()


def file_limit():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))

    def more():
        with Path("/data/checkpoint").open("wb") as file:
            file.write(bytes(2 << 20))

    try:
        retry(more, OSError)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def loader():
    import torch

    class Stuck(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            time.sleep(3600)

    next(iter(torch.utils.data.DataLoader(Stuck(), num_workers=1)))


def at_exit():
    """End for want of data, with a function at the exit that waits for a server."""
    atexit.register(mute_server)
    sys.exit(0)


def connect_v6():
    socket.create_connection(("2001:db8::9", 443), timeout=None)


def timer_storm():
    """Handle a timer's signals, each of which takes longer than the time to the next."""
    signal.signal(signal.SIGALRM, lambda *_: sum(range(200_000)))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        while ordered():
            pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def save_and_wait():
    """Save a checkpoint, by a function that waits for all ranks, in one rank."""
    import torch.distributed as dist

    Path("/data/model.ckpt").write_bytes(bytes(1 << 16))
    dist.barrier()


FAULTS = {
    name: one for name, one in globals().items() if callable(one) and not isinstance(one, type)
}


def of_horovod():
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    array = tf.zeros([VALUES])
    add = tf.function(lambda value: hvd.allreduce(value, name="grads", op=hvd.Sum))
    gather = tf.function(lambda value: hvd.allgather(value, name="rows"))
    return lambda other: gather(array) if other else add(array)


def of_torch():
    import torch
    import torch.distributed as dist

    if "world" in sys.argv and RANK == 1:
        os.environ["WORLD_SIZE"] = "4"
    dist.init_process_group("gloo")
    array = torch.zeros(VALUES)
    return lambda other: dist.broadcast(array, 0) if other else dist.all_reduce(array)


def main():
    if sys.argv[1] == "c":
        program = str(Path("~/faults_c").expanduser())
        os.execv(program, [program, *sys.argv[2:]])
    if "wrapped" in sys.argv:
        rest = [word for word in sys.argv if word != "wrapped"]
        sys.exit(subprocess.run([sys.executable, *rest], check=False).returncode)
    Path(f"/data/pid.{RANK}").write_text(str(os.getpid()))
    if "in_thread" in sys.argv:
        one = threading.Thread(target=train, name="trainer")
        one.start()
        one.join()
    else:
        signal.signal(signal.SIGUSR1, withdraw)
        train()


def train():
    step = {"horovod": of_horovod, "torch": of_torch}[sys.argv[1]]()
    last, word = 0.0, ""
    for number in itertools.count():
        # Ranks with an order each follow it in the same step.
        word = ordered() if number % 100 == 0 or word == "slow" else ""
        with contextlib.suppress(WithdrawnError):
            if word in FAULTS:
                FAULTS[word]()
        step(word == "other_call")
        if RANK == 0 and not QUIET and time.monotonic() > last + 0.2:
            last = time.monotonic()
            print(f"step {number} loss 0.5", flush=True)
        time.sleep(0.02)


if __name__ == "__main__":
    main()

"""A wrong clock on one host of the lab.

A namespace has no clock of its own, so programs that are started there get another time from the
C library.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(id, at);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += (SECONDS);
    return failed;
}
int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *to) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (to) *to = now.tv_sec;
    return now.tv_sec;
}
"""


@contextlib.contextmanager
def skewed(pair: Any, node: int, seconds: int) -> Iterator[None]:
    """Set a node's clock ahead for the duration of the block."""
    library = "/usr/lib/skew.so"
    build = f"cc -shared -fPIC -DSECONDS={seconds} -x c - -o /tmp/skew.so -ldl"
    install = f"sudo cp /tmp/skew.so {library} && echo {library} | sudo tee /etc/ld.so.preload"
    pair.on(node, f"{build} && {install}", SOURCE.encode())
    try:
        yield
    finally:
        pair.on(node, "sudo rm -f /etc/ld.so.preload")

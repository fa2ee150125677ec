"""How mpirun reports that it has lost a node."""

# What mpirun prints when it has lost a node's daemon: the node went down, or the daemon was killed.
# Open MPI 5 then exits with status 0 (PRRTE 3.0, errmgr_dvm.c, proc_errors), or with 255 if it
# notices the end of ssh first. The pattern works in `grep -E` and in Python.
LOST_DAEMON = "lost communication with a remote daemon|A daemon failed to report back"
# What Open MPI 4 prints when its ssh to a node has ended, also long after the start. It then exits
# with the status of ssh, or the number of the signal that ended it: 255 or 9 if the node was lost,
# but one of these if the daemon could not be run there.
LOST_SSH = "unable to reliably start one or more daemons"
CANNOT_RUN = (1, 126, 127)

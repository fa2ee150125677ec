/* The job of `scripts/bench faults` in C: as faults_job.py, with the faults that C can have. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <mqueue.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char path[64], word[64], block[1 << 20];
static sigjmp_buf back;
static volatile int may_jump;
static struct rlimit before;
static pthread_mutex_t first = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t second = PTHREAD_MUTEX_INITIALIZER;

static void withdraw(int number) {
    if (may_jump) siglongjmp(back, number);
}

static int ordered(void) {
    FILE *file = fopen(path, "r");
    word[0] = 0;
    if (file) {
        if (fscanf(file, "%63s", word) != 1) word[0] = 0;
        fclose(file);
    }
    return word[0] != 0;
}

static int is(const char *name) { return !strcmp(word, name); }

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

static void *other(void *both) {
    pthread_mutex_lock(&second);
    usleep(300000);
    if (both) pthread_mutex_lock(&first);
    sleep(3600);
    return NULL;
}

static void locks(int both) {
    pthread_t thread;
    pthread_mutex_lock(&first);
    pthread_create(&thread, NULL, other, both ? &second : NULL);
    usleep(200000);
    pthread_mutex_lock(&second);
}

static void fill(const char *name) {
    while (ordered()) {
        int file = open(name, O_WRONLY | O_CREAT | O_APPEND, 0600);
        if (write(file, block, sizeof block) < 0) usleep(100000);
        close(file);
    }
}

static void connect_to(int port, int again) {
    char text[64] = "";
    FILE *file = fopen("/data/nowhere", "r");
    if (fscanf(file, "%63s", text) != 1) exit(3);
    fclose(file);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, text, &to.sin_addr);
    do {
        int one = socket(AF_INET, SOCK_STREAM, 0);
        connect(one, (struct sockaddr *)&to, sizeof to);
        close(one);
        if (again) usleep(200000);
    } while (again && ordered());
}

static void in_handler(int number) { sleep(3600 + number); }

static void more_faults(void) {
    int ends[2];
    char one;
    pthread_t thread;
    pthread_barrier_t two;
    sem_t none;
    fd_set set;
    if (is("file_lock")) flock(open("/data/job.lock", O_WRONLY | O_CREAT, 0666), LOCK_EX);
    if (is("in_handler")) {
        signal(SIGALRM, in_handler);
        raise(SIGALRM);
    }
    if (is("child_reads")) (void)!system("read x <>/data/fifo");
    if (is("barrier") && !pthread_barrier_init(&two, NULL, 2)) pthread_barrier_wait(&two);
    if (is("semaphore") && !sem_init(&none, 0, 0)) sem_wait(&none);
    if (is("select_nothing") && !pipe(ends)) {
        FD_ZERO(&set);
        FD_SET(ends[0], &set);
        select(ends[0] + 1, &set, NULL, NULL, NULL);
    }
    if (is("join_thread") && !pthread_create(&thread, NULL, other, NULL)) pthread_join(thread, NULL);
    if (is("socket_pair") && !socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) (void)!read(ends[0], &one, 1);
    if (is("no_message")) MPI_Recv(&one, 1, MPI_CHAR, 0, 77, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (is("finalize")) MPI_Finalize();
    if (is("fails")) *(volatile int *)8 = 1;
}

/* Kinds of waiting that are no file, no lock of threads and no connection. */
static void other_waits(void) {
    int ends[2], one, child;
    char text[4096];
    sigset_t set;
    siginfo_t ended;
    struct sembuf take = {0, -1, 0};
    struct itimerspec late = {.it_value = {3600, 0}};
    struct mmsghdr several[1] = {{{0}}};
    struct sockaddr_in any = {.sin_family = AF_INET};
    if (is("semaphore_set")) semop(semget(IPC_PRIVATE, 1, 0600), &take, 1);
    if (is("message_queue")) msgrcv(msgget(IPC_PRIVATE, 0600), text, 8, 0, 0);
    if (is("posix_queue")) {
        mq_unlink("/faults");
        mq_receive(mq_open("/faults", O_RDONLY | O_CREAT, 0600, NULL), block, sizeof block, NULL);
    }
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    if (is("wait_signal") && !sigprocmask(SIG_BLOCK, &set, NULL)) sigwait(&set, &one);
    if (is("wait_id")) {
        child = fork();
        if (!child) for (;;) pause();
        waitid(P_PID, child, &ended, WEXITED);
    }
    if (is("watch_folder")) {
        one = inotify_init();
        inotify_add_watch(one, "/data/quiet", IN_CREATE);
        (void)!read(one, text, sizeof text);
    }
    if (is("timer")) {
        one = timerfd_create(CLOCK_MONOTONIC, 0);
        timerfd_settime(one, 0, &late, NULL);
        (void)!read(one, text, 8);
    }
    if (is("event_counter")) (void)!read(eventfd(0, 0), text, 8);
    if (is("splice_pipe") && !pipe(ends)) splice(ends[0], NULL, open("/dev/null", O_WRONLY), NULL, 9, 0);
    if (is("datagrams")) {
        one = socket(AF_INET, SOCK_DGRAM, 0);
        bind(one, (struct sockaddr *)&any, sizeof any);
        recvmmsg(one, several, 1, 0, NULL);
    }
}

/* Limits, a lock of a dead process, and a mistake in a message. */
static void newer_faults(void) {
    int one, child;
    float few[2], many[9] = {0};
    struct rlimit limit = {1, 2};
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    if (is("cpu_limit") && !setrlimit(RLIMIT_CPU, &limit)) for (volatile int n = 0;; n = 1) continue;
    if (is("shared_mutex")) {
        pthread_mutexattr_t shared;
        pthread_mutex_t *lock = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        pthread_mutexattr_init(&shared);
        pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
        pthread_mutex_init(lock, &shared);
        child = fork();
        if (!child) {
            pthread_mutex_lock(lock);
            _exit(0);
        }
        waitpid(child, NULL, 0);
        pthread_mutex_lock(lock);
    }
    if (is("truncate")) {
        MPI_Request sent;
        MPI_Isend(many, 9, MPI_FLOAT, 1, 78, MPI_COMM_WORLD, &sent);
        MPI_Recv(few, 2, MPI_FLOAT, 1, 78, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    if (is("unix_backlog")) {
        strcpy(at.sun_path, "/data/backlog");
        unlink(at.sun_path);
        one = socket(AF_UNIX, SOCK_STREAM, 0);
        if (bind(one, (struct sockaddr *)&at, sizeof at) || listen(one, 0)) exit(3);
        for (int n = 0; n < 9; n++) connect(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&at, sizeof at);
    }
}

static void fault(void) {
    int ends[2], child;
    struct rlimit few;
    if (is("two_locks")) locks(1);
    if (is("kept_lock")) locks(0);
    if (is("sleep_long")) sleep(3600);
    if (is("ignore_signals")) while (ordered()) pause();
    if (is("write_fifo")) (void)!open("/data/fifo", O_WRONLY);
    if (is("own_pipe") && !pipe(ends)) (void)!write(ends[1], block, sizeof block);
    if (is("wait_for_file")) while (access("/data/never", F_OK)) usleep(500000);
    if (is("full_shm")) fill("/dev/shm/part");
    if (is("full_scratch")) fill("/data/scratch/part");
    if (is("connect_nowhere")) connect_to(9999, 0);
    if (is("no_ports")) connect_to(22, 1);
    if (is("leave")) _exit(0);
    if (is("flood")) while (ordered()) printf("debug %400d\n", 1);
    if (is("no_descriptors")) {
        few = before;
        few.rlim_cur = 8;
        setrlimit(RLIMIT_NOFILE, &few);
        while (open("/data/next", O_RDONLY) < 0) usleep(100000);
    }
    if (is("child_stopped")) {
        child = fork();
        if (!child) for (;;) pause();
        kill(child, SIGSTOP);
        waitpid(child, NULL, 0);
    }
    if (is("remote_debugger") || is("no_name_server")) {
        int one = socket(AF_INET, is("remote_debugger") ? SOCK_STREAM : SOCK_DGRAM, 0);
        struct sockaddr_in any = {.sin_family = AF_INET};
        bind(one, (struct sockaddr *)&any, sizeof any);
        if (is("remote_debugger") && !listen(one, 1)) accept(one, NULL, NULL);
        else (void)!recv(one, block, 512, 0);
    }
    if (is("open_together")) {
        MPI_File file;
        MPI_File_open(MPI_COMM_WORLD, "/data/shared", MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &file);
    }
    more_faults();
    other_waits();
    newer_faults();
    if (is("spin")) for (volatile int n = 0;; n = 1) continue;
    if (is("slow")) for (double until = now() + 1; now() < until;) continue;
}

int main(int count, char **words) {
    int rank, size, quiet = count > 1 && !strcmp(words[1], "quiet");
    static float values[64 * 1024], sums[64 * 1024];
    double last = 0;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    snprintf(path, sizeof path, "/data/pid.%d", rank);
    FILE *file = fopen(path, "w");
    fprintf(file, "%d", getpid());
    fclose(file);
    snprintf(path, sizeof path, "/data/order.%d", rank);
    struct sigaction caught = {.sa_handler = withdraw, .sa_flags = SA_NODEFER};
    sigaction(SIGUSR1, &caught, NULL);
    getrlimit(RLIMIT_NOFILE, &before);
    for (long step = 0;; step++) {
        /* Ranks with an order each follow it in the same step. */
        if (step % 100 == 0 || is("slow") ? !ordered() : 1) word[0] = 0;
        if (word[0] && !sigsetjmp(back, 1)) {
            may_jump = 1;
            fault();
        }
        may_jump = 0;
        setrlimit(RLIMIT_NOFILE, &before);
        if (is("other_call")) MPI_Gather(values, 9, MPI_FLOAT, sums, 9, MPI_FLOAT, 1, MPI_COMM_WORLD);
        else MPI_Allreduce(values, sums, 64 * 1024, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        MPI_Sendrecv(values, 9, MPI_FLOAT, (rank + 1) % size, 0, sums, 9, MPI_FLOAT,
                     (rank + size - 1) % size, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank == 0 && !quiet && now() > last + 0.2) {
            last = now();
            printf("step %ld loss 0.5\n", step);
            fflush(stdout);
        }
        usleep(20000);
    }
}

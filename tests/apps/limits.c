/* Memory: what a library that keeps connections in memory takes may not be what a program that locks itself into memory, or has little, must pay for. */
#include "pair.h"
#include <poll.h>
#include <sys/mman.h>

enum { MB = 1 << 20 };

/* A figure of /proc/self/status, in KB. */
static long status_of(const char *name) {
    char line[256];
    long value = -1;
    FILE *status = fopen("/proc/self/status", "r");
    CHECK(status);
    while (fgets(line, sizeof line, status))
        if (!strncmp(line, name, strlen(name)) && line[strlen(name)] == ':') value = atol(line + strlen(name) + 1);
    fclose(status);
    CHECK(value >= 0);
    return value;
}

static void another_connection(void) {
    int more = dial();
    warm_client(more);
    close(more);
}

static void two(int listener) {
    int fd = answer(listener), more;
    warm_server(fd);
    more = answer(listener);
    warm_server(more);
    puppet(fd);
    close(more);
}

/* What is locked is the program: before a connection is made, */
static void locked_before(int unused) {
    (void)unused;
    CHECK(mlockall(MCL_CURRENT | MCL_FUTURE) == 0);
    int fd = dial();
    warm_client(fd);
    echo_rounds(fd, 100, 1000);
    CHECK(status_of("VmRSS") < 50 * 1024);
    CHECK(status_of("VmLck") < 50 * 1024);
    leave(fd);
}

/* afterwards, */
static void locked_after(int fd) {
    CHECK(mlockall(MCL_CURRENT) == 0);
    CHECK(status_of("VmRSS") < 50 * 1024);
    CHECK(status_of("VmLck") < 50 * 1024);
    CHECK(status_of("VmLck") > 500);
    echo_rounds(fd, 100, 1000);
    char *own = malloc(20 * MB);
    memset(own, 1, 20 * MB);
    CHECK(status_of("VmLck") < 50 * 1024);
    CHECK(munlockall() == 0);
    EQUAL(status_of("VmLck"), 0);
    leave(fd);
}

/* and what is mapped later is. */
static void locked_later(int fd) {
    CHECK(mlockall(MCL_CURRENT | MCL_FUTURE) == 0);
    long before = status_of("VmLck");
    char *own = mmap(NULL, 20 * MB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(own != MAP_FAILED);
    CHECK(status_of("VmLck") >= before + 20 * 1024);
    CHECK(status_of("VmRSS") > 20 * 1024);
    CHECK(status_of("VmLck") < 60 * 1024);
    echo_rounds(fd, 100, 1000);
    leave(fd);
}

/* Wrong flags are the kernel's to refuse. */
static void wrong_locks(int fd) {
    ERRNO(mlockall(0), EINVAL);
    ERRNO(mlockall(64), EINVAL);
    ERRNO(mlockall(MCL_ONFAULT), EINVAL);
    leave(fd);
}

static void allocate(size_t bytes) {
    char *own = malloc(bytes);
    CHECK(own);
    memset(own, 1, bytes);
    free(own);
}

static void limit(int what, size_t bytes) {
    struct rlimit old;
    CHECK(getrlimit(what, &old) == 0);
    old.rlim_cur = bytes;
    CHECK(setrlimit(what, &old) == 0);
}

/* A limit on data, set before there is a connection: most of it is the program's. */
static void little_data(int unused) {
    (void)unused;
    limit(RLIMIT_DATA, 64 * MB);
    int fd = dial();
    warm_client(fd);
    echo_rounds(fd, 100, 1000);
    allocate(40 * MB);
    leave(fd);
}

/* A limit on addresses, set when there is one. */
static void little_space_later(int fd) {
    limit(RLIMIT_AS, 512 * MB);
    allocate(200 * MB);
    echo_rounds(fd, 100, 1000);
    leave(fd);
}

/* Connections that have carried much, and are idle, keep little of it, and nothing once both ends have slept for a while. */
enum { MANY = 60 };

/* Both ends at once, on all of them: a poll() of none that has moved is the kernel's, which gives nothing back. */
static void sleep_on(const int *fds) {
    struct pollfd waits[MANY];
    for (int i = 0; i < MANY; i++) waits[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
    meet();
    EQUAL(poll(waits, MANY, 2500), 0);
    meet();
}

static void under(long limit, const char *when, long kilobytes) {
    if (kilobytes >= limit) fprintf(stderr, "%s: %ld KB, wanted less than %ld\n", when, kilobytes, limit);
    CHECK(kilobytes < limit);
}

static void idle_server(int listener) {
    int fds[MANY];
    for (int i = 0; i < MANY; i++) {
        warm_server(fds[i] = answer(listener));
        take(fds[i], MB);
        got = sent = 0;
        tell(0);
    }
    while (hear()) sleep_on(fds);
    for (int i = 0; i < MANY; i++) close(fds[i]);
}

static void idle_client(int unused) {
    int fds[MANY];
    long before = 0;
    (void)unused;
    for (int i = 0; i < MANY; i++) {
        warm_client(fds[i] = dial());
        if (i == 0) before = status_of("RssShmem");
        put(fds[i], MB);
        hear();
        got = sent = 0;
    }
    /* 8 of them have a large ring; a small one has 16 KB, and is seen by both ends. */
    under(8 * 256 + MANY * 40, "all have carried much", status_of("RssShmem") - before);
    /* On a machine that has other things to do two threads may sleep at different times. */
    for (int times = 0; times < 5 && (times == 0 || status_of("RssShmem") - before >= MANY * 8); times++) {
        tell(1);
        sleep_on(fds);
    }
    tell(0);
    under(MANY * 8, "all have slept", status_of("RssShmem") - before);
    for (int i = 0; i < MANY; i++) close(fds[i]);
}

/* Core files have what the program has: writable memory of ours is left out, as there is much that was never touched. */
static void cores(int fd) {
    char line[512];
    long size = 0, all = 0;
    int writable = 0;
    FILE *maps = fopen("/proc/self/smaps", "r");
    CHECK(maps);
    while (fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        char mode[5];
        if (sscanf(line, "%lx-%lx %4s", &from, &to, mode) == 3) {
            size = (long)(to - from);
            writable = mode[1] == 'w' && !strstr(line, "[stack]");
        }
        if (!strncmp(line, "VmFlags:", 8) && writable && !strstr(line, " dd")) all += size;
    }
    fclose(maps);
    CHECK(all < 3 * MB);
    leave(fd);
}

static void after_another(int unused) {
    (void)unused;
    int fd = dial();
    warm_client(fd);
    CHECK(mlockall(MCL_FUTURE) == 0);
    another_connection();
    CHECK(status_of("VmRSS") < 50 * 1024);
    leave(fd);
}

const struct example examples[] = {
    {"locked_before", puppet_when_warm, locked_before, RAW},
    {"locked_after", puppet, locked_after, 0},
    {"locked_later", puppet, locked_later, 0},
    {"locked_between", two, after_another, RAW},
    {"wrong_locks", puppet, wrong_locks, 0},
    {"little_data", puppet_when_warm, little_data, RAW},
    {"little_space_later", puppet, little_space_later, 0},
    {"cores", puppet, cores, 0},
    {"idle", idle_server, idle_client, RAW},
    {0},
};

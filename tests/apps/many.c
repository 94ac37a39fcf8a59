/* Many connections and quiet ones: MANY (environment, default 10,000) connections to one epoll server of which 50 are active, with the
 * memory that an idle one may take; and accelerated programs that wait must not use the CPU. */
#include "pair.h"

enum { ACTIVE = 50, ROUNDS = 4, REQUESTS = 200, SIZE = 100 };

static int how_many(void) {
    const char *text = getenv("MANY");
    int many = text ? atoi(text) : 10000;
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    if (limit.rlim_cur < (rlim_t)many + 1000) {
        limit.rlim_cur = many + 1000;
        if (limit.rlim_max < limit.rlim_cur) limit.rlim_max = limit.rlim_cur;
        CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    }
    return many;
}

/* This process's share of resident memory in KB, what it shares with others counted in part. */
static long memory(void) {
    char line[200];
    long pss = -1;
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    CHECK(f != NULL);
    while (fgets(line, sizeof line, f)) sscanf(line, "Pss: %ld", &pss);
    fclose(f);
    return pss;
}

static void many_server(int listener) {
    int many = how_many(), set = epoll_create1(0), open = 0, seen = 0;
    struct epoll_event events[64], event = {.events = EPOLLIN, .data.fd = listener};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event) == 0);
    long before = memory();
    bool told = false;
    while (!told || open > 0) {
        int n = epoll_wait(set, events, 64, 30000);
        CHECK(n > 0);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) {
                event.data.fd = fd = answer(listener);
                CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
                open++;
                seen++;
                continue;
            }
            char data[SIZE];
            ssize_t m = recv(fd, data, SIZE, MSG_WAITALL);
            if (m == 0) {
                close(fd);
                open--;
                continue;
            }
            EQUAL(m, SIZE);
            if (data[0] == 'm' && !told) { /* the client asks by this message; all are open and have been used */
                tell(memory() - before);
                told = true;
            }
            send_all(fd, data, SIZE);
        }
    }
    EQUAL(seen, many);
}

static void ask_one(int fd, int key, int round) {
    char out[SIZE], in[SIZE];
    fill(key, round, out, SIZE);
    out[0] = 'x';
    send_all(fd, out, SIZE);
    recv_all(fd, in, SIZE);
    CHECK(memcmp(in, out, SIZE) == 0);
}

static void many_client(int unused) {
    (void)unused;
    int many = how_many(), *fds = malloc(many * sizeof *fds);
    long before = memory();
    for (int i = 0; i < many; i++) {
        fds[i] = dial();
        for (int round = 0; round < ROUNDS; round++) ask_one(fds[i], i, round);
    }
    /* Everyone once more: whoever was promoted has moved by now. */
    for (int i = 0; i < many; i++) ask_one(fds[i], i, 77);
    for (int round = 0; round < REQUESTS; round++)
        for (int i = 0; i < ACTIVE; i++) ask_one(fds[(long)i * many / ACTIVE], i, round);
    char data[SIZE] = "m";
    send_all(fds[0], data, SIZE);
    recv_all(fds[0], data, SIZE);
    long each = (hear() + memory() - before) / many;
    if (each > 64) fprintf(stderr, "an idle connection takes %ld KB\n", each);
    CHECK(each <= 64);
    for (int i = 0; i < many; i++) CHECK(close(fds[i]) == 0);
}

/* ---- waiting costs nothing ---- */

static double cpu(void) {
    struct rusage u;
    CHECK(getrusage(RUSAGE_SELF, &u) == 0);
    return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static void idle(int fd, int (*wait)(int fd)) {
    double before = cpu();
    order(SEND, 0); /* the puppet sends nothing, and so waits for the next order: both are quiet */
    hear();
    EQUAL(wait(fd), 0);
    CHECK(cpu() - before < 0.02);
    echo_rounds(fd, 100, 64);
    leave(fd);
}

static int in_recv(int fd) {
    char byte;
    struct timeval t = {2, 0};
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t) == 0);
    ERRNO(recv(fd, &byte, 1, 0), EAGAIN);
    t.tv_sec = 0;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t) == 0);
    return 0;
}

static int in_poll(int fd) {
    struct pollfd p = {fd, POLLIN, 0};
    return poll(&p, 1, 2000);
}

static int in_epoll(int fd) {
    struct epoll_event event = {.events = EPOLLIN};
    int set = epoll_create1(0);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    int n = epoll_wait(set, &event, 1, 2000);
    close(set);
    return n;
}

static void idle_recv(int fd) { idle(fd, in_recv); }
static void idle_poll(int fd) { idle(fd, in_poll); }
static void idle_epoll(int fd) { idle(fd, in_epoll); }

const struct example examples[] = {
    {"many", many_server, many_client, RAW | SLOW},
    {"idle_recv", puppet, idle_recv, MEASURES},
    {"idle_poll", puppet, idle_poll, MEASURES},
    {"idle_epoll", puppet, idle_epoll, MEASURES},
    {0},
};

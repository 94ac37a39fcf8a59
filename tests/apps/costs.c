/* Each call of a program's that waits or moves bytes, in each of its outcomes, between two marks: a write() to no descriptor, which strace shows.
 * tests/test_costs.py counts the system calls in between. Each is made ROUNDS times. */
#include "pair.h"
#include <sys/eventfd.h>
#include <sys/timerfd.h>

enum { ROUNDS = 12, MOST = 1000 };

static void mark(const char *what) {
    EQUAL(write(-1, what, strlen(what)), -1);
}

static int members[MOST]; /* the connection first, then pipes, timers and eventfds on which nothing comes */
static int set;           /* an epoll set with as many of them as the case has */
static char data[64];

static void make_members(int fd) {
    struct rlimit many = {4096, 4096};
    EQUAL(setrlimit(RLIMIT_NOFILE, &many), 0);
    members[0] = fd;
    for (int i = 1; i < MOST; i += 3) {
        int ends[2];
        EQUAL(pipe(ends), 0);
        members[i] = ends[0];
        if (i + 1 < MOST) members[i + 1] = timerfd_create(CLOCK_MONOTONIC, 0);
        if (i + 2 < MOST) members[i + 2] = eventfd(0, 0);
    }
}

/* One face for all calls that wait: returns how many are ready. */
typedef int waiter(int count, int milliseconds);

static struct pollfd polled[MOST];

static int by_poll(int count, int milliseconds) {
    return poll(polled, count, milliseconds);
}

static int by_ppoll(int count, int milliseconds) {
    struct timespec t = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    return ppoll(polled, count, milliseconds < 0 ? NULL : &t, NULL);
}

static fd_set wanted, found; /* select() has FD_SETSIZE numbers only: the first of the members */
static int top;

static int by_select(int count, int milliseconds) {
    (void)count;
    struct timeval t = {milliseconds / 1000, milliseconds % 1000 * 1000};
    found = wanted;
    return select(top + 1, &found, NULL, NULL, milliseconds < 0 ? NULL : &t);
}

static int by_pselect(int count, int milliseconds) {
    (void)count;
    struct timespec t = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    found = wanted;
    return pselect(top + 1, &found, NULL, NULL, milliseconds < 0 ? NULL : &t, NULL);
}

static int by_epoll_wait(int count, int milliseconds) {
    (void)count;
    struct epoll_event events[4];
    return epoll_wait(set, events, 4, milliseconds);
}

static int by_epoll_pwait(int count, int milliseconds) {
    (void)count;
    struct epoll_event events[4];
    return epoll_pwait(set, events, 4, milliseconds, NULL);
}

static const struct {
    const char *name;
    waiter *wait;
    bool by_set;
} waiters[] = {
    {"select", by_select, false}, {"pselect", by_pselect, false},       {"poll", by_poll, false},
    {"ppoll", by_ppoll, false},   {"epoll_wait", by_epoll_wait, true}, {"epoll_pwait", by_epoll_pwait, true},
};

static const struct outcome {
    const char *name;
    bool before;      /* the peer sends before the call */
    bool during;      /* or while it sleeps */
    int milliseconds; /* to wait at most */
} outcomes[] = {
    {"ready", true, false, -1}, {"nothing", false, false, 0}, {"times out", false, false, 3}, {"woken", false, true, -1}, {"woken in time", false, true, 20000},
};

static void prepare(int count, bool by_set) {
    FD_ZERO(&wanted);
    top = 0;
    set = epoll_create1(0);
    CHECK(set >= 0);
    for (int i = 0; i < count; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.fd = members[i]};
        if (by_set) EQUAL(epoll_ctl(set, EPOLL_CTL_ADD, members[i], &event), 0);
        polled[i] = (struct pollfd){members[i], POLLIN, 0};
        if (members[i] >= FD_SETSIZE) continue;
        FD_SET(members[i], &wanted);
        if (members[i] > top) top = members[i];
    }
}

static void waits(int fd) {
    make_members(fd);
    int counts[] = {1, 10, MOST};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (size_t w = 0; w < sizeof waiters / sizeof *waiters; w++) {
            prepare(counts[c], waiters[w].by_set);
            for (size_t o = 0; o < sizeof outcomes / sizeof *outcomes; o++) {
                struct outcome as = outcomes[o];
                char name[64];
                snprintf(name, sizeof name, "%s, %d, %s", waiters[w].name, counts[c], as.name);
                for (int i = 0; i < ROUNDS; i++) {
                    if (as.before) ask(SEND, sizeof data);
                    if (as.during) order(i ? SEND_AGAIN_ASLEEP : SEND_ASLEEP, sizeof data);
                    mark(name);
                    int n = waiters[w].wait(counts[c], as.milliseconds);
                    mark("");
                    EQUAL(n, as.before || as.during);
                    if (n) take(fd, sizeof data);
                }
            }
            close(set);
        }
    leave(fd);
}

/* One face for all calls that move bytes. */
typedef ssize_t mover(int fd, int flags);

static ssize_t by_send(int fd, int flags) {
    return send(fd, data, sizeof data, flags);
}

static ssize_t by_write(int fd, int flags) {
    (void)flags;
    return write(fd, data, sizeof data);
}

static ssize_t by_sendmsg(int fd, int flags) {
    struct iovec part = {data, sizeof data};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    return sendmsg(fd, &message, flags);
}

static ssize_t by_recv(int fd, int flags) {
    return recv(fd, data, sizeof data, flags);
}

static ssize_t by_read(int fd, int flags) {
    (void)flags;
    return read(fd, data, sizeof data);
}

static ssize_t by_recvmsg(int fd, int flags) {
    struct iovec part = {data, sizeof data};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    return recvmsg(fd, &message, flags);
}

static const struct {
    const char *name;
    mover *move;
    bool sends, has_flags;
} movers[] = {
    {"send", by_send, true, true},  {"write", by_write, true, false}, {"sendmsg", by_sendmsg, true, true},
    {"recv", by_recv, false, true}, {"read", by_read, false, false},  {"recvmsg", by_recvmsg, false, true},
};

static void moves(int fd) {
    for (size_t m = 0; m < sizeof movers / sizeof *movers; m++) {
        char name[64];
        for (int i = 0; i < ROUNDS; i++) {
            if (!movers[m].sends) ask(SEND, sizeof data);
            fill(my_key, sent, data, sizeof data);
            snprintf(name, sizeof name, "%s, ready", movers[m].name);
            mark(name);
            EQUAL(movers[m].move(fd, 0), sizeof data);
            mark("");
            if (movers[m].sends) sent += sizeof data, ask(READ, sizeof data);
            else verify(your_key, got, data, sizeof data), got += sizeof data;
        }
        for (int i = 0; i < ROUNDS && !movers[m].sends && movers[m].has_flags; i++) {
            snprintf(name, sizeof name, "%s, nothing", movers[m].name);
            mark(name);
            ERRNO(movers[m].move(fd, MSG_DONTWAIT), EAGAIN);
            mark("");
        }
        for (int i = 0; i < ROUNDS && !movers[m].sends; i++) {
            order(i ? SEND_AGAIN_ASLEEP : SEND_ASLEEP, sizeof data);
            snprintf(name, sizeof name, "%s, woken", movers[m].name);
            mark(name);
            EQUAL(movers[m].move(fd, 0), sizeof data);
            mark("");
            verify(your_key, got, data, sizeof data), got += sizeof data;
        }
    }
    leave(fd);
}

/* A connection of two messages: it is over before it could move. */
static void shorts(int fd) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}, from;
    socklen_t length = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    EQUAL(bind(listener, (void *)&at, length), 0);
    EQUAL(listen(listener, 8), 0);
    EQUAL(getsockname(listener, (void *)&at, &length), 0);
    for (int i = 0; i < ROUNDS; i++) {
        mark("socket, short");
        int client = socket(AF_INET, SOCK_STREAM, 0);
        mark("");
        mark("connect, short");
        EQUAL(connect(client, (void *)&at, length), 0);
        mark("");
        mark(i % 2 ? "accept, unnamed" : "accept, short");
        int server = accept(listener, i % 2 ? NULL : (void *)&from, i % 2 ? NULL : &length);
        mark("");
        int ends[] = {client, server, client};
        for (int e = 0; e < 2; e++) {
            mark("send, short");
            EQUAL(send(ends[e], data, sizeof data, 0), sizeof data);
            mark("");
            mark("recv, short");
            EQUAL(recv(ends[e + 1], data, sizeof data, 0), sizeof data);
            mark("");
        }
        mark("shutdown, short");
        EQUAL(shutdown(server, SHUT_WR), 0);
        mark("");
        for (int e = 0; e < 2; e++) {
            mark("close, short");
            EQUAL(close(ends[e]), 0);
            mark("");
        }
    }
    /* Read without waiting, for which a program of this kind waits by other means. */
    int client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    ERRNO(connect(client, (void *)&at, length), EINPROGRESS);
    int server = accept(listener, NULL, NULL);
    for (int i = 0; i < 8 * ROUNDS; i++) {
        EQUAL(send(server, data, sizeof data, 0), sizeof data);
        mark("recv, not seen to wait");
        EQUAL(recv(client, data, sizeof data, 0), sizeof data);
        mark("");
    }
    close(client), close(server), close(listener);
    leave(fd);
}

const struct example examples[] = {
    {"waits", puppet, waits, SLOW},
    {"moves", puppet, moves, SLOW},
    {"shorts", puppet, shorts, SLOW},
    {0},
};

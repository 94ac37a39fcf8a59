/* Programs that wait by an instruction of their own, past libc, and read and write by libc, as Bun does: nobody tells such a wait what is in a ring. */
#include "pair.h"
#include <sys/syscall.h>

#if defined __x86_64__
static long raw(long number, long a, long b, long c, long d, long e, long f) {
    long result;
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    return result;
}
#else
static long raw(long number, long a, long b, long c, long d, long e, long f) {
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = f;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
}
#endif

enum { ROUNDS = 500, SIZE = 64 };
static struct timespec patience = {.tv_sec = 5};

/* The peer: a record, its echo, and so on. */
static void rounds(int unused) {
    char data[SIZE], back[SIZE];
    int fd = dial();
    (void)unused;
    memset(data, 'r', SIZE);
    for (int i = 0; i < ROUNDS; i++) {
        data[0] = (char)i;
        send_all(fd, data, SIZE);
        recv_all(fd, back, SIZE);
        CHECK(memcmp(data, back, SIZE) == 0);
    }
    close(fd);
}

/* Echoes until the end, with a wait before each read. */
static void echo_with(int listener, bool nonblocking, void (*wait_for)(int fd, int set)) {
    char data[SIZE * 4];
    int fd = answer(listener), set = epoll_create1(0);
    if (nonblocking) set_nonblocking(fd, true);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN, .data.fd = fd}) == 0);
    for (;;) {
        wait_for(fd, set);
        ssize_t got_now = recv(fd, data, sizeof data, 0);
        CHECK(got_now >= 0);
        if (got_now == 0) break;
        send_all(fd, data, (size_t)got_now);
    }
    close(set), close(fd);
}

static void by_epoll_pwait(int fd, int set) {
    struct epoll_event event;
    EQUAL(raw(SYS_epoll_pwait, set, (long)&event, 1, 5000, 0, 8), 1);
    EQUAL(event.data.fd, fd);
}

static void by_epoll_pwait2(int fd, int set) {
    struct epoll_event event;
    EQUAL(raw(SYS_epoll_pwait2, set, (long)&event, 1, (long)&patience, 0, 8), 1);
    EQUAL(event.data.fd, fd);
}

/* Of the set, as programs do that embed one event loop in another. */
static void by_ppoll_of_set(int fd, int set) {
    struct pollfd place = {.fd = set, .events = POLLIN};
    struct timespec time = patience;
    (void)fd;
    EQUAL(raw(SYS_ppoll, (long)&place, 1, (long)&time, 0, 8, 0), 1);
}

static void by_ppoll(int fd, int set) {
    struct pollfd place = {.fd = fd, .events = POLLIN};
    struct timespec time = patience;
    (void)set;
    EQUAL(raw(SYS_ppoll, (long)&place, 1, (long)&time, 0, 8, 0), 1);
}

static void by_pselect(int fd, int set) {
    fd_set places;
    struct timespec time = patience;
    (void)set;
    FD_ZERO(&places);
    FD_SET(fd, &places);
    EQUAL(raw(SYS_pselect6, fd + 1, (long)&places, 0, 0, (long)&time, 0), 1);
}

static void epoll_pwait_server(int listener) { echo_with(listener, true, by_epoll_pwait); }
static void epoll_pwait2_server(int listener) { echo_with(listener, false, by_epoll_pwait2); }
static void ppoll_of_set_server(int listener) { echo_with(listener, true, by_ppoll_of_set); }
static void ppoll_server(int listener) { echo_with(listener, true, by_ppoll); }
static void ppoll_blocking_server(int listener) { echo_with(listener, false, by_ppoll); }
static void pselect_server(int listener) { echo_with(listener, true, by_pselect); }

/* A set that was made behind libc's back, with a connection that is in memory already, and bytes that are unread there. */
static void unknown_set(int fd) {
    int set = (int)raw(SYS_epoll_create1, 0, 0, 0, 0, 0, 0);
    CHECK(set >= 0);
    ask(SEND, 100);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    EQUAL(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
    EQUAL(epoll_wait(set, &event, 1, 5000), 1);
    take(fd, 100);
    EQUAL(epoll_wait(set, &event, 1, 0), 0);
    ask(SEND, 100);
    EQUAL(epoll_wait(set, &event, 1, 5000), 1);
    take(fd, 100);
    leave(fd);
}

/* A set that lies as deep in others as sets may, so that nothing of a library's goes into it. */
static void deepest_set(int fd) {
    int sets[5];
    struct epoll_event event = {.events = EPOLLIN};
    for (int i = 0; i < 5; i++) {
        CHECK((sets[i] = epoll_create1(0)) >= 0);
        if (i > 0) EQUAL(epoll_ctl(sets[i], EPOLL_CTL_ADD, sets[i - 1], &event), 0);
    }
    ask(SEND, 100);
    event.data.fd = fd;
    EQUAL(epoll_ctl(sets[0], EPOLL_CTL_ADD, fd, &event), 0);
    for (int i = 0; i < 3; i++) {
        EQUAL(epoll_wait(sets[0], &event, 1, 5000), 1);
        EQUAL(event.data.fd, fd);
        take(fd, 100);
        EQUAL(epoll_wait(sets[0], &event, 1, 0), 0);
        ask(SEND, 100);
    }
    take(fd, 100);
    leave(fd);
}

const struct example examples[] = {
    {"epoll_pwait", epoll_pwait_server, rounds, RAW | TCP_OK},
    {"epoll_pwait2", epoll_pwait2_server, rounds, RAW | TCP_OK},
    {"ppoll_of_set", ppoll_of_set_server, rounds, RAW | TCP_OK},
    {"ppoll", ppoll_server, rounds, RAW | TCP_OK},
    {"ppoll_blocking", ppoll_blocking_server, rounds, RAW | TCP_OK},
    {"pselect", pselect_server, rounds, RAW | TCP_OK},
    {"unknown_set", puppet, unknown_set, 0},
    {"deepest_set", puppet, deepest_set, 0},
    {0},
};

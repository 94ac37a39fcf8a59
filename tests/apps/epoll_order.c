/* What came first is told first: a program writes to one connection, then to another, and whoever has both in an epoll set must
 * not see the second without, or before, the first; whichever of them are in memory and which on tcp. Busy, and asleep. */
#include "pair.h"
#include <sched.h>

enum { CONNECTIONS = 12, ROUNDS = 3000 };

static void pause_up_to(unsigned *seed, unsigned microseconds) {
    double end = now() + rand_r(seed) % microseconds / 1e6;
    while (now() < end) {}
}

static void server(int listener, uint32_t mode) {
    int set = epoll_create1(0), fds[CONNECTIONS];
    unsigned seed = 1;
    for (int i = 0; i < CONNECTIONS; i++) {
        warm_server(fds[i] = answer(listener));
        struct epoll_event event = {.events = EPOLLIN | mode, .data.fd = fds[i]};
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fds[i], &event) == 0);
    }
    struct epoll_event events[CONNECTIONS];
    EQUAL(epoll_wait(set, events, CONNECTIONS, 0), 0);
    meet();
    for (int round = 0; round < ROUNDS; round++) {
        char byte, wanted = 1;
        pause_up_to(&seed, round % 3 ? 200 : 20);
        while (wanted <= 2) {
            int n = epoll_wait(set, events, CONNECTIONS, 10000);
            CHECK(n > 0);
            for (int i = 0; i < n; i++) {
                EQUAL(recv(events[i].data.fd, &byte, 1, 0), 1);
                EQUAL(byte, wanted); /* 1 was sent before 2 */
                wanted++;
            }
        }
        /* A level-triggered member that was told of stays in its place until a look finds it empty, with tcp, too. */
        EQUAL(epoll_wait(set, events, CONNECTIONS, 0), 0);
        tell(round);
    }
    for (int i = 0; i < CONNECTIONS; i++) close(fds[i]);
    meet();
}

/* on_tcp: so many of every four stay on tcp. */
static void dial_all(int *fds, int on_tcp) {
    for (int i = 0; i < CONNECTIONS; i++) {
        int one = 1;
        fds[i] = dial();
        if (i % 4 < on_tcp) CHECK(setsockopt(fds[i], SOL_SOCKET, SO_TIMESTAMP, &one, sizeof one) == 0);
        warm_client(fds[i]);
    }
}

static void client(int on_tcp) {
    int fds[CONNECTIONS];
    unsigned seed = 2;
    cpu_set_t here;
    CPU_ZERO(&here);
    CPU_SET(sched_getcpu(), &here); /* to send from two processors is to send at the same time */
    sched_setaffinity(0, sizeof here, &here);
    dial_all(fds, on_tcp);
    meet();
    for (int round = 0; round < ROUNDS; round++) {
        int first = rand_r(&seed) % CONNECTIONS, second = (first + 1 + rand_r(&seed) % (CONNECTIONS - 1)) % CONNECTIONS;
        pause_up_to(&seed, round % 2 ? 20 : 200);
        EQUAL(send(fds[first], "\1", 1, 0), 1);
        EQUAL(send(fds[second], "\2", 1, 0), 1);
        EQUAL(hear(), round);
    }
    meet();
    for (int i = 0; i < CONNECTIONS; i++) close(fds[i]);
}

/* One call tells of a connection once, however much comes while it looks. */
enum { PIECES = 60000 };

static void once_server(int listener, uint32_t mode) {
    int set = epoll_create1(0), fds[CONNECTIONS];
    for (int i = 0; i < CONNECTIONS; i++) {
        warm_server(fds[i] = answer(listener));
        set_nonblocking(fds[i], true);
        struct epoll_event event = {.events = EPOLLIN | mode, .data.u32 = i};
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fds[i], &event) == 0);
    }
    struct epoll_event events[CONNECTIONS];
    meet();
    for (int have = 0; have < PIECES;) {
        int n = epoll_wait(set, events, CONNECTIONS, 10000);
        unsigned told = 0;
        CHECK(n > 0);
        for (int i = 0; i < n; i++) {
            char data[64];
            ssize_t got;
            CHECK(!(told & 1u << events[i].data.u32));
            told |= 1u << events[i].data.u32;
            while ((got = recv(fds[events[i].data.u32], data, sizeof data, 0)) > 0) have += got;
            EQUAL(errno, EAGAIN);
        }
    }
    meet();
    for (int i = 0; i < CONNECTIONS; i++) close(fds[i]);
}

static void once_client(int on_tcp) {
    int fds[CONNECTIONS];
    unsigned seed = 3;
    dial_all(fds, on_tcp);
    meet();
    for (int i = 0; i < PIECES; i++) EQUAL(send(fds[rand_r(&seed) % CONNECTIONS], "x", 1, 0), 1);
    meet();
    for (int i = 0; i < CONNECTIONS; i++) close(fds[i]);
}

static void once_level(int listener) {
    once_server(listener, 0);
}

static void once_edge(int listener) {
    once_server(listener, EPOLLET);
}

static void pieces(int unused) {
    (void)unused;
    once_client(0);
}

static void pieces_mixed(int unused) {
    (void)unused;
    once_client(2);
}

static void level(int listener) {
    server(listener, 0);
}

static void edge(int listener) {
    server(listener, EPOLLET);
}

static void all_alike(int unused) {
    (void)unused;
    client(0);
}

static void some_on_tcp(int unused) {
    (void)unused;
    client(2);
}

const struct example examples[] = {
    {"level", level, all_alike, RAW},
    {"edge", edge, all_alike, RAW},
    {"level_mixed", level, some_on_tcp, RAW},
    {"edge_mixed", edge, some_on_tcp, RAW},
    {"once_level", once_level, pieces, RAW},
    {"once_edge", once_edge, pieces, RAW},
    {"once_level_mixed", once_level, pieces_mixed, RAW},
    {"once_edge_mixed", once_edge, pieces_mixed, RAW},
    {0},
};

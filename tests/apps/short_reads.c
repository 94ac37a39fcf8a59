/* A read that gives less than was asked for has taken all there was: who polls for edges sleeps then (epoll(7) says so), and who was
 * told of the end thinks that this was it (HAProxy). So also where the bytes have come by several ways. */
#include "pair.h"

static char data[100000];

/* Until the other end has shut its writing half: all that it sent is here. */
static void wait_ended(int fd) {
    struct pollfd p = {fd, POLLRDHUP, 0};
    EQUAL(poll(&p, 1, 20000), 1);
    CHECK(p.revents & POLLRDHUP);
}

static void expect(int fd, size_t length, int flags) {
    EQUAL(recv(fd, data, sizeof data, flags), length);
    verify(your_key, got, data, length);
    if (!(flags & MSG_PEEK)) got += length;
}

/* Few bytes, then many at once, read by one call. */
static void after_growing(int fd) {
    ask(SEND, 3000);
    ask(SEND, 40000);
    wait_queued(fd, 43000);
    expect(fd, 43000, 0);
    leave(fd);
}

static void after_growing_peeked(int fd) {
    ask(SEND, 3000);
    ask(SEND, 40000);
    wait_queued(fd, 43000);
    expect(fd, 43000, MSG_PEEK);
    expect(fd, 43000, 0);
    leave(fd);
}

static void after_growing_ended(int fd) {
    ask(SEND, 3000);
    ask(SEND, 40000);
    ask(END_WR, 0);
    wait_ended(fd);
    expect(fd, 43000, 0);
    EQUAL(recv(fd, data, sizeof data, 0), 0);
    leave(fd);
}

/* Edge-triggered: a short read, so the next wait waits for the next bytes. */
static void edges(int fd) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    int set = epoll_create1(0);
    EQUAL(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
    set_nonblocking(fd, true);
    for (int i = 0; i < 20; i++) {
        size_t size = i == 10 ? 40000 : 3000;
        ask(SEND, 1000);
        ask(SEND, size);
        wait_queued(fd, 1000 + size);
        EQUAL(epoll_wait(set, &event, 1, 20000), 1);
        expect(fd, 1000 + size, 0);
    }
    close(set);
    set_nonblocking(fd, false);
    leave(fd);
}

/* Two messages at a time: some pair of them comes by two ways, whenever the connection is moved. */
static void in_pairs(int fd) {
    for (int i = 0; i < 300; i++) {
        ask(SEND, 10);
        ask(SEND, 10);
        wait_queued(fd, 20);
        expect(fd, 20, i % 2 ? MSG_PEEK : 0);
        if (i % 2) expect(fd, 20, 0);
    }
    leave(fd);
}

/* As nginx reads: it asks how much there is (FIONREAD), and when it has read more than that, more has come since, and so will an edge. */
static void by_count(int fd) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    int set = epoll_create1(0);
    const uint64_t all = 4000000;
    set_nonblocking(fd, true);
    EQUAL(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
    tell(0);
    while (got < all) {
        EQUAL(epoll_wait(set, &event, 1, 20000), 1);
        for (int there = -1; there != 0;) {
            ssize_t n = recv(fd, data, 4096, 0);
            if (n < 0) EQUAL(errno, EAGAIN);
            if (n <= 0) break;
            verify(your_key, got, data, n);
            got += n;
            if (n < 4096) break;
            if (there < 0) CHECK(ioctl(fd, FIONREAD, &there) == 0);
            else there = there > n ? there - n : 0;
        }
    }
    EQUAL(got, all);
    close(set);
    close(fd);
}

static void by_count_server(int fd) {
    hear();
    for (int i = 0; i < 40; i++) put(fd, 100000);
    char byte;
    EQUAL(recv(fd, &byte, 1, 0), 0);
    close(fd);
}

/* The writer finds no room for long, while nobody reads, and never reads itself. What it has sent, by whatever way, is there for one read, whichever byte comes last. */
static void after_stall(int fd) {
    /* A small buffer of the kernel's, unread in part, opens its window only when it is all but empty: the rest stays with the writer. */
    int room = 1 << 20;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room) == 0);
    tell(0);
    usleep(200000);
    for (int i = 0; i < 5; i++) take(fd, 100000);
    hear();
    wait_queued(fd, 100000);
    expect(fd, 100000, 0);
    /* The other end may be told only now that nothing more than bytes comes; then, at the latest, they are not held back. */
    bool at_once = false;
    for (double end = now() + 10; !at_once && now() < end;) {
        tell(1);
        hear();
        wait_queued(fd, 1);
        at_once = recv(fd, data, 1, MSG_DONTWAIT) == 1;
        if (!at_once) EQUAL(recv(fd, data, 1, 0), 1);
        EQUAL((uint8_t)data[0], 0xf8);
    }
    CHECK(at_once);
    tell(0);
    close(fd);
}

static void after_stall_server(int fd) {
    hear();
    put(fd, 600000);
    tell(0);
    while (hear()) {
        send_all(fd, "\xf8", 1);
        tell(0);
    }
    close(fd);
}

/* stdio writes without being seen, so what it writes comes another way than what was sent before. */
static void through_stdio_server(int fd) {
    put(fd, 1000);
    FILE *f = fdopen(dup(fd), "w");
    fill(my_key, sent, data, 500);
    EQUAL(fwrite(data, 1, 500, f), 500);
    sent += 500;
    CHECK(fflush(f) == 0);
    EQUAL(shutdown(fd, SHUT_WR), 0);
    meet();
    fclose(f);
    close(fd);
}

static void through_stdio(int fd) {
    wait_ended(fd);
    expect(fd, 1500, 0);
    EQUAL(recv(fd, data, sizeof data, 0), 0);
    meet();
    close(fd);
}

static void through_stdio_waited_for(int fd) {
    EQUAL(recv(fd, data, 1500, MSG_WAITALL), 1500);
    verify(your_key, got, data, 1500);
    EQUAL(recv(fd, data, sizeof data, 0), 0);
    meet();
    close(fd);
}

const struct example examples[] = {
    {"after_growing", puppet, after_growing, 0},
    {"after_growing_peeked", puppet, after_growing_peeked, 0},
    {"after_growing_ended", puppet, after_growing_ended, 0},
    {"edges", puppet, edges, 0},
    {"after_stall", after_stall_server, after_stall, 0},
    {"by_count", by_count_server, by_count, 0},
    {"in_pairs", puppet, in_pairs, 0},
    {"through_stdio", through_stdio_server, through_stdio, TCP_OK},
    {"through_stdio_waited_for", through_stdio_server, through_stdio_waited_for, TCP_OK},
    {NULL, NULL, NULL, 0},
};

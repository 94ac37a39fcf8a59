/* SO_RCVTIMEO and SO_SNDTIMEO: a blocking call gives up with EAGAIN after the time, not much before and not for ever, and the
 * connection is as good as before. */
#include "pair.h"

static void set_timeout(int fd, int option, int milliseconds) {
    struct timeval t = {milliseconds / 1000, milliseconds % 1000 * 1000}, back;
    socklen_t length = sizeof back;
    CHECK(setsockopt(fd, SOL_SOCKET, option, &t, sizeof t) == 0);
    CHECK(getsockopt(fd, SOL_SOCKET, option, &back, &length) == 0);
    CHECK(back.tv_sec == t.tv_sec && labs(back.tv_usec - t.tv_usec) <= 10000);
}

static void receive(int fd) {
    char byte;
    for (int i = 0; i < 3; i++) {
        set_timeout(fd, SO_RCVTIMEO, 120);
        double start = now();
        ERRNO(recv(fd, &byte, 1, 0), EAGAIN);
        double took = now() - start;
        CHECK(took >= 0.115);
        CHECK(took < 3);
        set_timeout(fd, SO_RCVTIMEO, 10000); /* a busy machine's answer may take longer than that */
        echo_rounds(fd, 50, 64);
    }
    set_timeout(fd, SO_RCVTIMEO, 0);
    order(SEND_ASLEEP, 100);
    take(fd, 100);
    leave(fd);
}

/* Data that comes before the time is up ends the wait. */
static void in_time(int fd) {
    set_timeout(fd, SO_RCVTIMEO, 20000);
    for (int i = 0; i < 10; i++) {
        order(SEND_ASLEEP, 100);
        double start = now();
        take(fd, 100);
        CHECK(now() - start < 10);
    }
    leave(fd);
}

/* MSG_WAITALL with a timeout gives what has come. */
static void wait_all(int fd) {
    char data[1000];
    set_timeout(fd, SO_RCVTIMEO, 150);
    ask(SEND, 300);
    EQUAL(recv(fd, data, sizeof data, MSG_WAITALL), 300);
    verify(your_key, got, data, 300);
    got += 300;
    leave(fd);
}

/* The time is that of the whole call, however often it gets a little. The server sends (or reads) some of it each 40 ms. */
static void dribble(int fd) {
    char data[1000];
    set_timeout(fd, SO_RCVTIMEO, 300);
    for (int i = 0; i < 3; i++) {
        tell(true);
        double start = now();
        ssize_t n = recv(fd, data, sizeof data, MSG_WAITALL);
        double took = now() - start;
        CHECK(n > 0 && n < (ssize_t)sizeof data);
        verify(your_key, got, data, n);
        got += n;
        CHECK(took >= 0.28 && took < 3);
        tell(0);
        for (int64_t all = hear(); got < (uint64_t)all;) take(fd, 1);
    }
    tell(false);
}

static void dribble_server(int fd) {
    while (hear()) {
        for (int i = 0; i < 200 && !is_told(); i++) {
            put(fd, 1);
            usleep(40000);
        }
        hear();
        tell(sent);
    }
}

/* Likewise where the connection goes back to tcp in the middle of the call, by another thread, and the end comes as a reset, which the next call tells. */
static void *go_back(void *fd) {
    wait_asleep(getpid(), getpid());
    go_by_tcp((int)(intptr_t)fd);
    return NULL;
}

static void dribble_by_tcp(int fd) {
    char data[1000];
    pthread_t other;
    set_timeout(fd, SO_RCVTIMEO, 600);
    CHECK(pthread_create(&other, NULL, go_back, (void *)(intptr_t)fd) == 0);
    dribble(fd);
    CHECK(pthread_join(other, NULL) == 0);
    set_timeout(fd, SO_RCVTIMEO, 20000);
    tell(true);
    ssize_t n = recv(fd, data, sizeof data, MSG_WAITALL);
    CHECK(n > 0 && n < (ssize_t)sizeof data);
    verify(your_key, got, data, n);
    ERRNO(recv(fd, data, 1, 0), ECONNRESET);
    EQUAL(recv(fd, data, 1, 0), 0);
}

static void dribble_by_tcp_server(int fd) {
    dribble_server(fd);
    CHECK(hear());
    for (int i = 0; i < 5; i++) {
        put(fd, 1);
        usleep(20000);
    }
    struct linger reset = {1, 0};
    CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset) == 0);
    close(fd);
}

static void seep(int fd) {
    static char data[64 << 20];
    set_timeout(fd, SO_SNDTIMEO, 300);
    for (int i = 0; i < 3; i++) {
        tell(true);
        fill(my_key, sent, data, sizeof data);
        double start = now();
        ssize_t n = send(fd, data, sizeof data, 0);
        double took = now() - start;
        CHECK(n > 0 && n < (ssize_t)sizeof data);
        sent += n;
        CHECK(took >= 0.28 && took < 3);
        tell(sent);
    }
    tell(false);
}

static void seep_server(int fd) {
    while (hear()) {
        for (int i = 0; i < 200 && !is_told(); i++) {
            take(fd, 100000);
            usleep(40000);
        }
        take(fd, hear() - got);
    }
}

static void transmit(int fd) {
    static char data[1 << 20];
    set_timeout(fd, SO_SNDTIMEO, 120);
    size_t total = 0;
    double start;
    for (;;) {
        fill(my_key, sent, data, sizeof data);
        start = now();
        ssize_t n = send(fd, data, sizeof data, 0);
        if (n < 0) break;
        CHECK(n > 0);
        sent += n;
        total += n;
    }
    EQUAL(errno, EAGAIN);
    CHECK(now() - start >= 0.115);
    CHECK(now() - start < 3);
    ask(READ, total);
    echo_rounds(fd, 50, 64);
    leave(fd);
}

const struct example examples[] = {
    {"receive", puppet, receive, 0},
    {"in_time", puppet, in_time, 0},
    {"wait_all", puppet, wait_all, 0},
    {"dribble", dribble_server, dribble, 0},
    {"dribble_by_tcp", dribble_by_tcp_server, dribble_by_tcp, 0},
    {"seep", seep_server, seep, 0},
    {"transmit", puppet, transmit, 0},
    {0},
};

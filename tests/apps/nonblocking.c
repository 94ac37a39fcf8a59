/* Non-blocking descriptors: EAGAIN when there is nothing or no room, partial writes, connect() in progress, and every way of
 * switching the mode on (fcntl, ioctl, accept4, socket flags, through a dup). */
#include "pair.h"

static void empty(int fd) {
    char byte;
    set_nonblocking(fd, true);
    for (int i = 0; i < 100; i++) ERRNO(recv(fd, &byte, 1, 0), EAGAIN);
    ERRNO(read(fd, &byte, 1), EAGAIN);
    ask(SEND, 3);
    struct pollfd p = {fd, POLLIN, 0};
    EQUAL(poll(&p, 1, 5000), 1);
    take(fd, 3);
    ERRNO(recv(fd, &byte, 1, 0), EAGAIN);
    set_nonblocking(fd, false);
    echo_rounds(fd, 100, 64);
    leave(fd);
}

static void fill_and_drain(int fd) {
    set_nonblocking(fd, true);
    for (int round = 0; round < 3; round++) {
        size_t n = fill_up(fd);
        CHECK(n >= 4096);
        ask(READ, n);
        struct pollfd p = {fd, POLLOUT, 0};
        EQUAL(poll(&p, 1, 5000), 1);
        EQUAL(p.revents, POLLOUT);
    }
    set_nonblocking(fd, false);
    echo_rounds(fd, 100, 64);
    leave(fd);
}

/* One send() of far more than fits takes a part of it and says how much. */
static void partial_write(int fd) {
    static char data[64 << 20];
    fill(my_key, sent, data, sizeof data);
    set_nonblocking(fd, true);
    ssize_t n = write(fd, data, sizeof data);
    CHECK(n > 0 && n < (ssize_t)sizeof data);
    sent += n;
    ask(READ, n);
    leave(fd);
}

static void by_ioctl(int fd) {
    char byte;
    int on = 1, off = 0;
    CHECK(ioctl(fd, FIONBIO, &on) == 0);
    CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK);
    ERRNO(recv(fd, &byte, 1, 0), EAGAIN);
    CHECK(ioctl(fd, FIONBIO, &off) == 0);
    CHECK(!(fcntl(fd, F_GETFL) & O_NONBLOCK));
    order(SEND_ASLEEP, 10);
    take(fd, 10);
    leave(fd);
}

/* The mode belongs to the open file, not to the number. */
static void through_dup(int fd) {
    char byte;
    int other = dup(fd);
    set_nonblocking(other, true);
    ERRNO(recv(fd, &byte, 1, 0), EAGAIN);
    set_nonblocking(fd, false);
    order(SEND_ASLEEP, 10);
    take(other, 10);
    close(other);
    leave(fd);
}

static void through_accept4(int listener) {
    char byte;
    set_nonblocking(listener, true);
    ERRNO(accept(listener, NULL, NULL), EAGAIN);
    tell(0);
    struct pollfd p = {listener, POLLIN, 0};
    EQUAL(poll(&p, 1, 5000), 1);
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    CHECK(fd >= 0);
    CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK);
    CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    ERRNO(recv(fd, &byte, 1, 0), EAGAIN);
    tell(0);
    for (int i = 0; i < 2000; i++) {
        char data[64];
        size_t have = 0;
        while (have < sizeof data) {
            ssize_t n = recv(fd, data + have, sizeof data - have, 0);
            if (n > 0) {
                have += n;
                continue;
            }
            CHECK(n < 0 && errno == EAGAIN);
            struct pollfd q = {fd, POLLIN, 0};
            EQUAL(poll(&q, 1, 5000), 1);
        }
        send_all(fd, data, sizeof data);
    }
    close(fd);
}

static void dial_and_echo(int unused) {
    (void)unused;
    hear();
    int fd = dial();
    hear();
    for (int i = 0; i < 2000; i++) {
        char out[64], in[64];
        fill(9, i, out, sizeof out);
        send_all(fd, out, sizeof out);
        recv_all(fd, in, sizeof in);
        CHECK(memcmp(in, out, sizeof in) == 0);
    }
    char byte;
    EQUAL(recv(fd, &byte, 1, 0), 0);
}

static void finish_connect(int fd, int result) {
    if (result != 0) {
        EQUAL(errno, EINPROGRESS);
        struct pollfd p = {fd, POLLOUT, 0};
        EQUAL(poll(&p, 1, 5000), 1);
        EQUAL(p.revents, POLLOUT);
    }
    int error = -1;
    socklen_t length = sizeof error;
    CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0);
    EQUAL(error, 0);
}

static void in_progress_client(int unused) {
    (void)unused;
    int fd, result = dial_start(&fd);
    finish_connect(fd, result);
    if (result != 0) EQUAL(connect(fd, (void *)&listener_address, listener_length), 0); /* reports the success once */
    ERRNO(connect(fd, (void *)&listener_address, listener_length), EISCONN);
    set_nonblocking(fd, false);
    warm_client(fd);
    echo_rounds(fd, 500, 64);
    leave(fd);
}

static void talk_by_edges(int set, int fd) {
    struct epoll_event out;
    for (int i = 0; i < 1000; i++) {
        order(ECHO, (int64_t)1 << 32 | 100);
        put(fd, 100);
        char data[100];
        for (size_t have = 0; have < sizeof data;) {
            ssize_t n = recv(fd, data, sizeof data - have, 0);
            if (n < 0) {
                EQUAL(errno, EAGAIN);
                EQUAL(epoll_wait(set, &out, 1, 5000), 1);
                continue;
            }
            CHECK(n > 0);
            verify(your_key, got, data, n);
            got += n;
            have += n;
        }
        hear();
    }
    leave(fd);
}

static void in_progress_epoll_client(int unused) {
    (void)unused;
    int set = epoll_create1(0), fd;
    dial_start(&fd);
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.u64 = 77}, out;
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    EQUAL(epoll_wait(set, &out, 1, 5000), 1);
    EQUAL(out.events, EPOLLOUT);
    EQUAL(out.data.u64, 77);
    finish_connect(fd, 0);
    talk_by_edges(set, fd);
}

/* A member before it is connected, as nginx makes its connections to the servers behind it. */
static void member_before_connect(int unused) {
    (void)unused;
    int set = epoll_create1(0), fd = socket(listener_address.ss_family, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.u64 = 77}, out;
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    int begun = connect(fd, (void *)&listener_address, listener_length);
    CHECK(begun == 0 || errno == EINPROGRESS);
    do EQUAL(epoll_wait(set, &out, 1, 5000), 1);
    while (out.events != EPOLLOUT); /* before connect() it was told to have hung up */
    talk_by_edges(set, fd);
}

static void accept_and_puppet_cold(int listener) {
    puppet(answer(listener));
}

static void refused_server(int listener) {
    close(listener);
    tell(0);
}

static void refused_client(int unused) {
    (void)unused;
    hear();
    int fd, result = dial_start(&fd), error = 0;
    socklen_t length = sizeof error;
    if (result != 0 && errno == EINPROGRESS) {
        struct pollfd p = {fd, POLLOUT, 0};
        EQUAL(poll(&p, 1, 5000), 1);
        CHECK(p.revents & POLLERR);
        CHECK(p.revents & POLLHUP);
        CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0);
        EQUAL(error, ECONNREFUSED);
        CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0);
        EQUAL(error, 0);
    } else {
        EQUAL(result, -1);
        EQUAL(errno, ECONNREFUSED);
    }
    close(fd);
}

/* Programs that give both buffers a size bound what is under way (socket(7)): one that writes is stopped early. Kernel TCP takes
 * a few times what was set. */
enum { LITTLE = 4096, BOUND = 100000 };

static void set_buffers(int fd) {
    int size = LITTLE;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size) == 0);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size) == 0);
}

static void fill_little(int fd) {
    set_nonblocking(fd, true);
    size_t n = fill_up(fd);
    CHECK(n > 0);
    if (n > BOUND) fail(__FILE__, __LINE__, "what is under way", n, BOUND);
    set_nonblocking(fd, false);
    tell(n);
}

static void small_buffers_server(int listener) {
    set_buffers(listener);
    tell(0);
    int fd = answer(listener);
    warm_server(fd);
    for (int i = 0; i < 5; i++) {
        take(fd, hear());
        fill_little(fd);
    }
    puppet(fd);
}

static void small_buffers(int unused) {
    (void)unused;
    hear();
    int fd = dial();
    set_buffers(fd);
    warm_client(fd);
    for (int i = 0; i < 5; i++) {
        fill_little(fd);
        take(fd, hear());
    }
    leave(fd);
}

static void small_buffers_later_server(int fd) {
    set_buffers(fd);
    meet();
    for (int i = 0; i < 5; i++) {
        take(fd, hear());
        fill_little(fd);
    }
    puppet(fd);
}

static void small_buffers_later(int fd) {
    set_buffers(fd);
    meet();
    for (int i = 0; i < 5; i++) {
        fill_little(fd);
        take(fd, hear());
    }
    leave(fd);
}

const struct example examples[] = {
    {"empty", puppet, empty, 0},
    {"fill_and_drain", puppet, fill_and_drain, 0},
    {"partial_write", puppet, partial_write, 0},
    {"by_ioctl", puppet, by_ioctl, 0},
    {"through_dup", puppet, through_dup, 0},
    {"through_accept4", through_accept4, dial_and_echo, RAW},
    {"connect_in_progress", puppet_when_warm, in_progress_client, RAW},
    {"connect_in_progress_epoll", accept_and_puppet_cold, in_progress_epoll_client, RAW},
    {"member_before_connect", accept_and_puppet_cold, member_before_connect, RAW},
    {"small_buffers", small_buffers_server, small_buffers, RAW},
    {"small_buffers_later", small_buffers_later_server, small_buffers_later, 0},
    {"connect_refused", refused_server, refused_client, RAW | TCP_OK},
    {0},
};

/* Urgent data: a byte out of band, its mark in the stream, SIGURG, and SO_OOBINLINE. Old programs (telnet, ftp, rlogin) use it. */
#include "pair.h"

static void send_urgent(int fd, char byte) {
    EQUAL(send(fd, &byte, 1, MSG_OOB), 1);
}

/* The server plays by hand here: before the urgent byte 100 bytes, after it 50. */
static void sender(int fd) {
    for (int i = 0; i < 10; i++) {
        put(fd, 100);
        send_urgent(fd, 'A' + i);
        put(fd, 50);
        meet();
    }
    char byte;
    EQUAL(recv(fd, &byte, 1, 0), 0);
}

static void await_urgent(int fd) {
    struct pollfd p = {fd, POLLPRI, 0};
    int n;
    /* The kernel sends SIGURG just before it makes the socket ready: on another processor poll() may see only the signal. */
    do n = poll(&p, 1, 5000);
    while (n < 0 && errno == EINTR);
    EQUAL(n, 1);
    EQUAL(p.revents, POLLPRI);
}

static void out_of_band(int fd) {
    for (int i = 0; i < 10; i++) {
        char byte;
        await_urgent(fd);
        EQUAL(recv(fd, &byte, 1, MSG_OOB), 1);
        EQUAL(byte, 'A' + i);
        ERRNO(recv(fd, &byte, 1, MSG_OOB), EINVAL);
        /* A read stops at the mark. */
        char data[200];
        size_t before = 0;
        while (before < 100) {
            EQUAL(sockatmark(fd), 0);
            ssize_t n = recv(fd, data + before, sizeof data - before, 0);
            CHECK(n > 0);
            before += n;
        }
        EQUAL(before, 100);
        EQUAL(sockatmark(fd), 1);
        verify(your_key, got, data, 100);
        got += 100;
        take(fd, 50);
        meet();
    }
    close(fd);
}

static void in_line(int fd) {
    int one = 1;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &one, sizeof one) == 0);
    tell(0);
    for (int i = 0; i < 10; i++) {
        char byte;
        take(fd, 100);
        EQUAL(recv(fd, &byte, 1, 0), 1);
        EQUAL(byte, 'A' + i);
        take(fd, 50);
        meet();
    }
    close(fd);
}

static void in_line_sender(int fd) {
    hear();
    sender(fd);
}

static volatile sig_atomic_t urgent;
static void on_urgent(int unused) {
    (void)unused;
    urgent++;
}

static void by_signal(int fd) {
    signal(SIGURG, on_urgent);
    CHECK(fcntl(fd, F_SETOWN, getpid()) == 0);
    tell(0);
    for (int i = 0; i < 10; i++) {
        char byte;
        await_urgent(fd);
        for (double end = now() + 5; urgent < i + 1; usleep(200)) CHECK(now() < end);
        EQUAL(recv(fd, &byte, 1, MSG_OOB), 1);
        take(fd, 150);
        meet();
    }
    close(fd);
}

/* Until urgent data has come, by the one way or the other, with data before it waiting: only the urgent byte counts. */
static void await_by_epoll(int fd, int set) {
    (void)fd;
    struct epoll_event event;
    EQUAL(epoll_wait(set, &event, 1, 5000), 1);
    EQUAL(event.events, EPOLLPRI);
}

static void await_by_select(int fd, int set) {
    (void)set;
    fd_set urgent_ones;
    FD_ZERO(&urgent_ones);
    FD_SET(fd, &urgent_ones);
    struct timeval time = {5, 0};
    EQUAL(select(fd + 1, NULL, NULL, &urgent_ones, &time), 1);
    CHECK(FD_ISSET(fd, &urgent_ones));
}

static void awaited(int fd, void (*await)(int, int)) {
    struct epoll_event event = {.events = EPOLLPRI};
    int set = epoll_create1(0);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    for (int i = 0; i < 10; i++) {
        char byte;
        int at_mark = -1;
        await(fd, set);
        CHECK(ioctl(fd, SIOCATMARK, &at_mark) == 0);
        EQUAL(at_mark, 0);
        EQUAL(recv(fd, &byte, 1, MSG_OOB), 1);
        EQUAL(byte, 'A' + i);
        take(fd, 100);
        CHECK(ioctl(fd, SIOCATMARK, &at_mark) == 0);
        EQUAL(at_mark, 1);
        take(fd, 50);
        CHECK(ioctl(fd, SIOCATMARK, &at_mark) == 0);
        EQUAL(at_mark, 0);
        EQUAL(epoll_wait(set, &event, 1, 0), 0);
        meet();
    }
    close(set);
    close(fd);
}

static void by_epoll(int fd) { awaited(fd, await_by_epoll); }
static void by_select(int fd) { awaited(fd, await_by_select); }

/* Asleep in each call before anything comes: the other side sees it asleep first. */
static void asleep_sender(int fd) {
    for (int i = 0; i < 6; i++) {
        pid_t pid = hear();
        wait_asleep(pid, pid);
        send_urgent(fd, 'a' + i);
        meet();
    }
    char byte;
    EQUAL(recv(fd, &byte, 1, 0), 0);
}

static void asleep(int fd) {
    struct epoll_event event = {.events = EPOLLPRI};
    int set = epoll_create1(0);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    for (int i = 0; i < 6; i++) {
        char byte;
        tell(getpid());
        if (i % 3 == 0) await_urgent(fd);
        if (i % 3 == 1) await_by_epoll(fd, set);
        if (i % 3 == 2) await_by_select(fd, set);
        EQUAL(recv(fd, &byte, 1, MSG_OOB), 1);
        EQUAL(byte, 'a' + i);
        ERRNO(recv(fd, &byte, 1, MSG_DONTWAIT), EAGAIN);
        meet();
    }
    close(set);
    close(fd);
}

/* Nothing urgent has come: EINVAL, and the stream goes on. */
static void none(int fd) {
    char byte;
    for (int i = 0; i < 20; i++) {
        ERRNO(recv(fd, &byte, 1, MSG_OOB), EINVAL);
        EQUAL(sockatmark(fd), 0);
        echo_rounds(fd, 5, 100);
    }
    struct pollfd p = {fd, POLLPRI, 0};
    EQUAL(poll(&p, 1, 10), 0);
    leave(fd);
}

const struct example examples[] = {
    {"out_of_band", sender, out_of_band, 0},
    {"in_line", in_line_sender, in_line, 0},
    {"by_epoll", sender, by_epoll, 0},
    {"by_select", sender, by_select, 0},
    {"asleep", asleep_sender, asleep, 0},
    {"none", puppet, none, 0},
    {"by_signal", in_line_sender, by_signal, 0},
    {0},
};

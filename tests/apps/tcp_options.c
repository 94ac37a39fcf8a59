/* Options that change what a connection does, and that only the kernel's TCP has: what is unread is told with each message (TCP_INQ), or
 * mapped (TCP_ZEROCOPY_RECEIVE), bytes go slowly (SO_MAX_PACING_RATE), and who reads nothing is given up (TCP_USER_TIMEOUT). Each in
 * mid-conversation, with bytes unread; before the connection; and on its listener. And what nobody has heard of. */
#include "pair.h"
#include <linux/sockios.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#ifndef TCP_INQ
#define TCP_INQ 36
#endif
#ifndef TCP_ZEROCOPY_RECEIVE
#define TCP_ZEROCOPY_RECEIVE 35
#endif

__attribute__((weak)) int shunt_path(int fd);

static void on_tcp(int fd) {
    if (shunt_path) EQUAL(shunt_path(fd), 0);
}

static void set(int fd, int level, int name, int value) {
    EQUAL(setsockopt(fd, level, name, &value, sizeof value), 0);
}

static int dial_with(int level, int name, int value) {
    int fd = socket(listener_address.ss_family, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    set(fd, level, name, value);
    CHECK(connect(fd, (void *)&listener_address, listener_length) == 0);
    return fd;
}

static int answer_with(int listener, int level, int name, int value) {
    set(listener, level, name, value);
    tell(0); /* it has what accept() is to give */
    return answer(listener);
}

/* ---- TCP_INQ ---- */

static void expect_told(int fd) {
    for (int i = 0; i < 20; i++) {
        char data[10], control[100];
        struct iovec piece = {data, sizeof data};
        struct msghdr m = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        int left = -1;
        ask(SEND, 16);
        wait_queued(fd, 16);
        EQUAL(recvmsg(fd, &m, 0), sizeof data);
        for (struct cmsghdr *part = CMSG_FIRSTHDR(&m); part; part = CMSG_NXTHDR(&m, part))
            if (part->cmsg_level == IPPROTO_TCP && part->cmsg_type == TCP_INQ) memcpy(&left, CMSG_DATA(part), sizeof left);
        EQUAL(left, 6);
        verify(your_key, got, data, sizeof data);
        got += sizeof data;
        take(fd, 6);
    }
    on_tcp(fd);
    leave(fd);
}

static void told(int fd) {
    ask(SEND, 100); /* unread while it is set */
    wait_queued(fd, 100);
    set(fd, IPPROTO_TCP, TCP_INQ, 1);
    take(fd, 100);
    expect_told(fd);
}

static void told_before(int unused) {
    (void)unused;
    int fd = dial_with(IPPROTO_TCP, TCP_INQ, 1);
    echo_rounds(fd, 400, 100);
    expect_told(fd);
}

static void told_of_listener(int listener) {
    int fd = answer_with(listener, IPPROTO_TCP, TCP_INQ, 1);
    echo_rounds(fd, 400, 100);
    expect_told(fd);
}

/* ---- TCP_ZEROCOPY_RECEIVE ---- */

/* An option that is got, and gives bytes: as many as are mapped, and says how many are to be read. */
static void mapped(int fd) {
    enum { ALL = 200000, MAP = 1 << 20 };
    static char data[ALL];
    ask(SEND, 300);
    wait_queued(fd, 300);
    char *at = mmap(NULL, MAP, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    order(SEND, ALL - 300);
    for (size_t have = 0, idle = 0; have < ALL;) {
        struct pollfd p = {fd, POLLIN, 0};
        EQUAL(poll(&p, 1, 5000), 1);
        struct { uint64_t address; uint32_t length, hint; } receive = {(uintptr_t)at, MAP, 0};
        socklen_t length = sizeof receive;
        EQUAL(getsockopt(fd, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, &receive, &length), 0);
        if (receive.length != 0) {
            verify(your_key, got, at, receive.length);
            got += receive.length, have += receive.length;
            CHECK(madvise(at, receive.length, MADV_DONTNEED) == 0);
        }
        if (receive.hint != 0) {
            ssize_t n = recv(fd, data, receive.hint < ALL ? receive.hint : ALL, 0);
            CHECK(n > 0);
            verify(your_key, got, data, n);
            got += n, have += n;
        } else if (receive.length == 0) {
            CHECK(idle++ < 1000);
        }
    }
    hear();
    on_tcp(fd);
    CHECK(munmap(at, MAP) == 0); /* or the connection lives on */
    leave(fd);
}

/* ---- SO_MAX_PACING_RATE ---- */

enum { RATE = 1000000 };

/* What goes in half a second is far from what goes without a limit, and no limit is none. */
static void expect_slow(int fd) {
    static char data[16384];
    size_t n = 0;
    for (double end = now() + 0.5; now() < end;) {
        ssize_t part = send(fd, data, sizeof data, MSG_DONTWAIT);
        if (part > 0) n += part;
        else usleep(1000);
    }
    CHECK(n < 12 * RATE); /* the kernel's buffer is filled, which may have 4 MB or more */
    on_tcp(fd);
    set(fd, SOL_SOCKET, SO_MAX_PACING_RATE, -1); /* none: what is left goes at once */
    CHECK(shutdown(fd, SHUT_WR) == 0);
    close(fd);
}

static void swallow(int fd) {
    static char data[65536];
    while (recv(fd, data, sizeof data, 0) > 0) continue;
    close(fd);
}

static void paced_later(int fd) {
    set(fd, SOL_SOCKET, SO_MAX_PACING_RATE, RATE);
    expect_slow(fd);
}

static void paced_before(int unused) {
    (void)unused;
    int fd = dial_with(SOL_SOCKET, SO_MAX_PACING_RATE, 100 * RATE);
    warm_client(fd);
    on_tcp(fd);
    set(fd, SOL_SOCKET, SO_MAX_PACING_RATE, RATE);
    expect_slow(fd);
}

static void swallow_one(int listener) {
    int fd = answer(listener);
    warm_server(fd);
    swallow(fd);
}

/* All ones is no limit, and keeps nobody on tcp. */
static void paced_by_none(int fd) {
    int before = shunt_path ? shunt_path(fd) : 0;
    set(fd, SOL_SOCKET, SO_MAX_PACING_RATE, -1);
    set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 0);
    set(fd, IPPROTO_TCP, TCP_INQ, 0);
    set(fd, SOL_SOCKET, SO_TIMESTAMP, 0);
    echo_rounds(fd, 20, 100);
    if (shunt_path && before == 3) EQUAL(shunt_path(fd), 3);
    leave(fd);
}

/* ---- TCP_USER_TIMEOUT ---- */

static void expect_given_up(int fd) {
    static char data[65536];
    double start = now();
    for (;;) {
        ssize_t n = send(fd, data, sizeof data, MSG_DONTWAIT | MSG_NOSIGNAL);
        CHECK(now() - start < 20);
        if (n > 0) continue;
        if (errno != EAGAIN) break;
        poll(&(struct pollfd){fd, POLLOUT, 0}, 1, 100);
    }
    EQUAL(errno, ETIMEDOUT);
    CHECK(now() - start > 0.4);
    tell(0);
    close(fd);
}

static void reads_nothing(int fd) {
    hear();
    close(fd);
}

static void given_up(int fd) {
    set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 500);
    expect_given_up(fd);
}

static void given_up_before(int unused) {
    (void)unused;
    int fd = dial_with(IPPROTO_TCP, TCP_USER_TIMEOUT, 500);
    warm_client(fd);
    expect_given_up(fd);
}

static void reads_nothing_for_one(int listener) {
    int fd = answer(listener);
    warm_server(fd);
    reads_nothing(fd);
}

static void given_up_of_listener(int listener) {
    int fd = answer_with(listener, IPPROTO_TCP, TCP_USER_TIMEOUT, 500);
    warm_server(fd);
    expect_given_up(fd);
}

static void dials_and_reads_nothing(int unused) {
    (void)unused;
    hear();
    int fd = dial();
    warm_client(fd);
    reads_nothing(fd);
}

/* ---- what is not known ---- */

/* Options, requests, flags and calls that no kernel has: its answer, and the connection goes on. */
static void unknown(int fd) {
    int value = 1;
    socklen_t length = sizeof value;
    ask(SEND, 300);
    wait_queued(fd, 300);
    ERRNO(setsockopt(fd, 77, 1, &value, sizeof value), ENOPROTOOPT);
    take(fd, 100);
    ERRNO(getsockopt(fd, IPPROTO_TCP, 9999, &value, &length), ENOPROTOOPT);
    CHECK(ioctl(fd, 0x89ee, &value) == -1);
    take(fd, 100);
    ERRNO(syscall(9999, fd, fd, fd, fd, fd, fd), ENOSYS);
    take(fd, 100);
    on_tcp(fd);
    echo_rounds(fd, 50, 100);
    leave(fd);
}

static void unknown_flag(int fd) {
    char data[100];
    ask(SEND, 100);
    wait_queued(fd, 100);
    EQUAL(recv(fd, data, sizeof data, 0x1000000), sizeof data); /* the kernel does not look */
    verify(your_key, got, data, sizeof data);
    got += sizeof data;
    on_tcp(fd);
    echo_rounds(fd, 50, 100);
    leave(fd);
}

/* Those that are known, and change nothing about where bytes go. */
static void harmless(int fd) {
    int before = shunt_path ? shunt_path(fd) : 0, value;
    socklen_t length;
    static const int asked[] = {SO_TYPE, SO_ERROR, SO_PROTOCOL, SO_DOMAIN, SO_COOKIE, SO_INCOMING_CPU, SO_MARK, SO_PRIORITY, SO_SNDBUF, SO_RCVBUF};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        int64_t wide;
        length = sizeof wide;
        EQUAL(getsockopt(fd, SOL_SOCKET, asked[i], &wide, &length), 0);
        echo_rounds(fd, 2, 100);
    }
    set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 50);
    set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    length = sizeof value;
    ERRNO(getsockopt(fd, IPPROTO_TCP, TCP_COOKIE_TRANSACTIONS, &value, &length), ENOPROTOOPT);
    CHECK(!isatty(fd));
    CHECK(ioctl(fd, 0x5401, &value) == -1); /* TCGETS */
    CHECK(ioctl(fd, FIOCLEX) == 0);
    CHECK(ioctl(fd, SIOCOUTQNSD, &value) == 0);
    echo_rounds(fd, 20, 100);
    if (shunt_path && before == 3) EQUAL(shunt_path(fd), 3);
    leave(fd);
}

const struct example examples[] = {
    {"told", puppet, told, 0},
    {"told_before", puppet_for_one, told_before, RAW | TCP_OK},
    {"told_of_listener", told_of_listener, puppet_that_dials, RAW | TCP_OK},
    {"mapped", puppet, mapped, 0},
    {"paced", swallow, paced_later, 0},
    {"paced_before", swallow_one, paced_before, RAW | TCP_OK},
    {"paced_by_none", puppet, paced_by_none, 0},
    {"given_up", reads_nothing, given_up, 0},
    {"given_up_before", reads_nothing_for_one, given_up_before, RAW | TCP_OK},
    {"given_up_of_listener", given_up_of_listener, dials_and_reads_nothing, RAW | TCP_OK},
    {"unknown", puppet, unknown, 0},
    {"unknown_flag", puppet, unknown_flag, 0},
    {"harmless", puppet, harmless, 0},
    {0},
};

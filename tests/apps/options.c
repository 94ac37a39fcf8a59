/* Options of a connection in mid-conversation: the low-water mark with every way to wait, linger, cork, peek offset, keep-alive and
 * user timeout, TCP_INFO; what a program sets it reads back, and what it sets works. */
#include "pair.h"
#include <linux/sockios.h>

static void set(int fd, int level, int name, int value) {
    EQUAL(setsockopt(fd, level, name, &value, sizeof value), 0);
}

static int value_of(int fd, int level, int name) {
    int value = -1;
    socklen_t length = sizeof value;
    EQUAL(getsockopt(fd, level, name, &value, &length), 0);
    EQUAL(length, sizeof value);
    return value;
}

/* ---- SO_RCVLOWAT ---- */

enum { LOW = 500 };

static int ready_by_poll(int fd, int milliseconds) {
    struct pollfd p = {fd, POLLIN, 0};
    return poll(&p, 1, milliseconds);
}

static int ready_by_select(int fd, int milliseconds) {
    struct timeval t = {milliseconds / 1000, milliseconds % 1000 * 1000};
    fd_set reading;
    FD_ZERO(&reading);
    FD_SET(fd, &reading);
    return select(fd + 1, &reading, NULL, NULL, &t);
}

static int the_set;
static int ready_by_epoll(int fd, int milliseconds) {
    (void)fd;
    struct epoll_event event;
    return epoll_wait(the_set, &event, 1, milliseconds);
}

static void low_water(int fd, int (*ready)(int, int)) {
    char data[LOW];
    struct epoll_event event = {.events = EPOLLIN};
    the_set = epoll_create1(0);
    CHECK(epoll_ctl(the_set, EPOLL_CTL_ADD, fd, &event) == 0);
    /* It holds for what came before it was set, too. */
    ask(SEND, LOW - 1);
    wait_queued(fd, LOW - 1);
    EQUAL(ready(fd, 1000), 1);
    set(fd, SOL_SOCKET, SO_RCVLOWAT, LOW);
    EQUAL(value_of(fd, SOL_SOCKET, SO_RCVLOWAT), LOW);
    wait_queued(fd, LOW - 1);
    EQUAL(ready(fd, 0), 0);
    take(fd, LOW - 1);
    for (int i = 0; i < 5; i++) {
        ask(SEND, LOW - 1);
        wait_queued(fd, LOW - 1);
        EQUAL(ready(fd, 0), 0);
        EQUAL(ready(fd, 20), 0);
        /* recv() that need not wait gives what there is. */
        EQUAL(recv(fd, data, 9, MSG_DONTWAIT | MSG_PEEK), 9);
        order(SEND_ASLEEP, 1);
        EQUAL(ready(fd, 5000), 1);
        EQUAL(ready(fd, 0), 1);
        take(fd, LOW);
        EQUAL(ready(fd, 0), 0);
    }
    /* The end of the stream is always ready. */
    ask(SEND, 3);
    ask(END_WR, 0);
    EQUAL(ready(fd, 5000), 1);
    take(fd, 3);
    EQUAL(recv(fd, data, 1, 0), 0);
    close(the_set);
    leave(fd);
}

static void low_water_poll(int fd) { low_water(fd, ready_by_poll); }
static void low_water_select(int fd) { low_water(fd, ready_by_select); }
static void low_water_epoll(int fd) { low_water(fd, ready_by_epoll); }

/* A blocking recv() waits for as many bytes. */
static void low_water_recv(int fd) {
    char data[2 * LOW];
    set(fd, SOL_SOCKET, SO_RCVLOWAT, LOW);
    for (int i = 0; i < 10; i++) {
        order(SEND_ASLEEP, LOW - 100);
        order(SEND_ASLEEP, 100);
        ssize_t n = i % 2 ? recv(fd, data, sizeof data, 0) : read(fd, data, sizeof data);
        EQUAL(n, LOW);
        verify(your_key, got, data, n);
        got += n;
        /* Never for more than it was asked for. */
        ask(SEND, 10);
        wait_queued(fd, 10);
        EQUAL(recv(fd, data, 10, 0), 10);
        verify(your_key, got, data, 10);
        got += 10;
    }
    set(fd, SOL_SOCKET, SO_RCVLOWAT, 1);
    order(SEND_ASLEEP, 1);
    EQUAL(recv(fd, data, sizeof data, 0), 1);
    verify(your_key, got++, data, 1);
    leave(fd);
}

/* With bytes unread that the other end sent before it went another way. */
static void low_water_behind(int fd) {
    hear();
    wait_queued(fd, 5100);
    set(fd, SOL_SOCKET, SO_RCVLOWAT, 50);
    wait_queued(fd, 5100);
    take(fd, 5100);
    ask(SEND, 40);
    wait_queued(fd, 40);
    EQUAL(ready_by_poll(fd, 20), 0);
    ask(SEND, 10);
    EQUAL(ready_by_poll(fd, 5000), 1);
    take(fd, 50);
    leave(fd);
}

static void goes_by_tcp_server(int fd) {
    put(fd, 5000);
    go_by_tcp(fd);
    put(fd, 100);
    tell(0);
    puppet(fd);
}

/* ---- options that were there before the connection ---- */

static int dial_with(int level, int name, int value) {
    int fd = socket(listener_address.ss_family, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    set(fd, level, name, value);
    CHECK(connect(fd, (void *)&listener_address, listener_length) == 0);
    return fd;
}

static void low_water_before(int unused) {
    (void)unused;
    int fd = dial_with(SOL_SOCKET, SO_RCVLOWAT, LOW);
    echo_rounds(fd, 400, LOW);
    EQUAL(value_of(fd, SOL_SOCKET, SO_RCVLOWAT), LOW);
    ask(SEND, LOW - 1);
    wait_queued(fd, LOW - 1);
    EQUAL(ready_by_poll(fd, 20), 0);
    ask(SEND, 1);
    EQUAL(ready_by_poll(fd, 5000), 1);
    take(fd, LOW);
    leave(fd);
}

/* What accept() gives has it from the listener. */
static void low_water_of_listener(int listener) {
    char data[2 * LOW];
    set(listener, SOL_SOCKET, SO_RCVLOWAT, LOW);
    tell(0); /* it has what accept() is to give */
    int fd = answer(listener);
    EQUAL(value_of(fd, SOL_SOCKET, SO_RCVLOWAT), LOW);
    echo_rounds(fd, 400, LOW);
    order(SEND_ASLEEP, LOW - 100);
    order(SEND_ASLEEP, 100);
    EQUAL(recv(fd, data, sizeof data, 0), LOW);
    verify(your_key, got, data, LOW);
    got += LOW;
    leave(fd);
}

/* ---- what is kept ---- */

static void kept(int fd) {
    static const struct {
        int level, name, value;
    } all[] = {
        {SOL_SOCKET, SO_KEEPALIVE, 1},
        {IPPROTO_TCP, TCP_KEEPIDLE, 33},
        {IPPROTO_TCP, TCP_KEEPINTVL, 7},
        {IPPROTO_TCP, TCP_KEEPCNT, 4},
        {IPPROTO_TCP, TCP_USER_TIMEOUT, 30000},
        {IPPROTO_TCP, TCP_QUICKACK, 1},
        {IPPROTO_TCP, TCP_LINGER2, 20},
        {IPPROTO_TCP, TCP_NOTSENT_LOWAT, 20000},
        {IPPROTO_TCP, TCP_NODELAY, 1},
        {IPPROTO_TCP, TCP_NODELAY, 0},
        {IPPROTO_TCP, TCP_CORK, 1},
        {IPPROTO_TCP, TCP_CORK, 0},
        {IPPROTO_TCP, TCP_MAXSEG, 1000},
        {SOL_SOCKET, SO_REUSEADDR, 1},
        {SOL_SOCKET, SO_OOBINLINE, 1},
        {SOL_SOCKET, SO_PRIORITY, 3},
        {SOL_SOCKET, SO_MARK, 5},
        {SOL_SOCKET, SO_BUSY_POLL, 0},
        {IPPROTO_IP, IP_TOS, 0x10},
        {IPPROTO_IP, IP_TTL, 64},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int value = all[i].value;
        if (setsockopt(fd, all[i].level, all[i].name, &value, sizeof value) == 0) {
            if (all[i].name != TCP_MAXSEG || all[i].level != IPPROTO_TCP) EQUAL(value_of(fd, all[i].level, all[i].name), value);
        } else {
            CHECK(errno == EPERM || errno == EINVAL); /* SO_MARK and SO_BUSY_POLL are for root */
        }
        echo_rounds(fd, 5, 100);
    }
    int wrong = 7;
    ERRNO(setsockopt(fd, IPPROTO_TCP, 9999, &wrong, sizeof wrong), ENOPROTOOPT);
    ERRNO(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &wrong, 2), EINVAL);
    ERRNO(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &wrong, 0), EINVAL);
    socklen_t length = 1;
    char small = 9;
    EQUAL(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &small, &length), 0);
    EQUAL(length, 1);
    EQUAL(small, 0);
    ERRNO(getsockopt(fd, SOL_SOCKET, 9999, &wrong, &length), ENOPROTOOPT);
    leave(fd);
}

/* A corked connection that is uncorked, or closed, sends all. */
static void cork(int fd) {
    for (int i = 0; i < 10; i++) {
        set(fd, IPPROTO_TCP, TCP_CORK, 1);
        order(READ, 60);
        for (int part = 0; part < 6; part++) put(fd, 10);
        EQUAL(value_of(fd, IPPROTO_TCP, TCP_CORK), 1);
        set(fd, IPPROTO_TCP, TCP_CORK, 0);
        hear();
        echo_rounds(fd, 5, 100);
    }
    set(fd, IPPROTO_TCP, TCP_CORK, 1);
    order(READ, 60);
    for (int part = 0; part < 6; part++) put(fd, 10);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    hear();
    leave(fd);
}

/* Whether TCP has SO_PEEK_OFF (Linux 6.9), as a socket says that no library follows. */
static bool has_peek_offset(void) {
    int at = 0, fd = socket(AF_INET, SOCK_STREAM, 0);
    bool has = setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &at, sizeof at) == 0;
    close(fd);
    return has;
}

/* Each peek goes on behind the last one, and a read moves it back. */
static void peek_offset(int fd) {
    int at = 0, minus = -1;
    char data[100];
    ask(SEND, 50); /* unread when the option is set */
    wait_queued(fd, 50);
    if (setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &at, sizeof at) != 0) {
        EQUAL(errno, EOPNOTSUPP);
        CHECK(!has_peek_offset());
        take(fd, 50);
        echo_rounds(fd, 20, 100);
        leave(fd);
        return;
    }
    for (int i = 0; i < 10; i++) {
        ask(SEND, i ? 100 : 50);
        wait_queued(fd, 100);
        EQUAL(recv(fd, data, 30, MSG_PEEK), 30);
        verify(your_key, got, data, 30);
        EQUAL(recv(fd, data, 30, MSG_PEEK), 30);
        verify(your_key, got + 30, data, 30);
        EQUAL(value_of(fd, SOL_SOCKET, SO_PEEK_OFF), 60);
        take(fd, 20);
        EQUAL(recv(fd, data, 100, MSG_PEEK), 40);
        verify(your_key, got + 40, data, 40);
        take(fd, 80);
        EQUAL(value_of(fd, SOL_SOCKET, SO_PEEK_OFF), 0);
    }
    EQUAL(setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &minus, sizeof minus), 0);
    ask(SEND, 10);
    wait_queued(fd, 10);
    for (int i = 0; i < 3; i++) {
        EQUAL(recv(fd, data, 10, MSG_PEEK), 10);
        verify(your_key, got, data, 10);
    }
    take(fd, 10);
    leave(fd);
}

/* The same on a connection by which nothing has come yet, and from one who sleeps. */
static void peek_offset_asleep(int unused) {
    (void)unused;
    int fd = dial(), at = 0;
    char data[30];
    for (int i = 0; i < 400; i++) {
        order(READ, 64);
        put(fd, 64);
        hear();
    }
    if (setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &at, sizeof at) != 0) {
        EQUAL(errno, EOPNOTSUPP);
        CHECK(!has_peek_offset());
    } else {
        for (int i = 0; i < 5; i++) {
            order(SEND_ASLEEP, sizeof data);
            EQUAL(recv(fd, data, sizeof data, MSG_PEEK), sizeof data);
            verify(your_key, got + i * sizeof data, data, sizeof data);
        }
        take(fd, 5 * sizeof data);
        EQUAL(value_of(fd, SOL_SOCKET, SO_PEEK_OFF), 0);
    }
    echo_rounds(fd, 20, 100);
    leave(fd);
}

/* SO_LINGER with a time: close() returns when the other side has everything. */
static void linger_sends_all(int fd) {
    struct linger linger = {1, 10}, back;
    socklen_t length = sizeof back;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
    CHECK(getsockopt(fd, SOL_SOCKET, SO_LINGER, &back, &length) == 0);
    EQUAL(back.l_onoff, 1);
    EQUAL(back.l_linger, 10);
    put(fd, 1 << 20);
    double start = now();
    close(fd);
    CHECK(now() - start < 5);
}

static void linger_sends_all_server(int fd) {
    char byte;
    take(fd, 1 << 20);
    EQUAL(recv(fd, &byte, 1, 0), 0);
    close(fd);
}

/* SO_LINGER 0 throws away what the other side has not read: it sees a reset, asleep in whatever call. */
static void linger_zero(int fd) {
    tell(getpid());
    char byte;
    struct pollfd p = {fd, POLLIN, 0};
    EQUAL(poll(&p, 1, 5000), 1);
    CHECK(p.revents & POLLERR);
    CHECK(p.revents & POLLHUP);
    ERRNO(recv(fd, &byte, 1, 0), ECONNRESET);
    EQUAL(recv(fd, &byte, 1, 0), 0);
    ERRNO(send(fd, &byte, 1, MSG_NOSIGNAL), EPIPE);
    EQUAL(value_of(fd, SOL_SOCKET, SO_ERROR), 0);
    close(fd);
}

static void linger_zero_server(int fd) {
    pid_t pid = hear();
    struct linger linger = {1, 0};
    wait_asleep(pid, pid);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
    close(fd);
}

/* TCP_INFO stays true where it describes the connection, and does not fall over in any length. */
static void information(int fd) {
    struct tcp_info info;
    socklen_t length = sizeof info;
    echo_rounds(fd, 50, 1000);
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0);
    EQUAL(info.tcpi_state, TCP_ESTABLISHED);
    CHECK(info.tcpi_rtt > 0);
    CHECK(info.tcpi_snd_mss > 0);
    length = 8;
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0);
    EQUAL(length, 8);
    ask(END_WR, 0);
    char byte;
    EQUAL(recv(fd, &byte, 1, 0), 0);
    length = sizeof info;
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0);
    EQUAL(info.tcpi_state, TCP_CLOSE_WAIT);
    leave(fd);
}

/* SIOCOUTQ and SIOCOUTQNSD of a connection whose reader does not read. */
static void unsent(int fd) {
    int queued = -1, unsent = -1;
    size_t n = fill_up(fd);
    CHECK(ioctl(fd, SIOCOUTQ, &queued) == 0);
    CHECK(ioctl(fd, SIOCOUTQNSD, &unsent) == 0);
    CHECK(queued >= unsent && unsent >= 0 && (size_t)queued <= n);
    ask(READ, n);
    for (double end = now() + 5; queued != 0; usleep(200)) {
        CHECK(ioctl(fd, SIOCOUTQ, &queued) == 0);
        CHECK(now() < end);
    }
    leave(fd);
}

/* The same, where some of it is still on its way by tcp, and more goes otherwise: the reader calls often, and reads little. */
static void unsent_by_tcp(int fd) {
    int queued = -1, unsent = -1;
    char byte;
    size_t n = fill_up(fd);
    for (int i = 0; i < 200; i++) {
        usleep(1000);
        ask(READ, 1);
        fill(my_key, sent, &byte, 1);
        ssize_t more = send(fd, &byte, 1, MSG_DONTWAIT);
        if (more < 0) EQUAL(errno, EAGAIN);
        else sent += more, n += more;
        CHECK(ioctl(fd, SIOCOUTQ, &queued) == 0);
        CHECK(ioctl(fd, SIOCOUTQNSD, &unsent) == 0);
        CHECK(queued >= unsent && unsent >= 0);
    }
    ask(READ, n - 200);
    for (double end = now() + 5; queued != 0; usleep(200)) {
        CHECK(ioctl(fd, SIOCOUTQ, &queued) == 0);
        CHECK(now() < end);
    }
    leave(fd);
}

const struct example examples[] = {
    {"low_water_poll", puppet, low_water_poll, 0},
    {"low_water_select", puppet, low_water_select, 0},
    {"low_water_epoll", puppet, low_water_epoll, 0},
    {"low_water_recv", puppet, low_water_recv, 0},
    {"low_water_behind", goes_by_tcp_server, low_water_behind, 0},
    {"low_water_before", puppet_for_one, low_water_before, RAW | TCP_OK},
    {"low_water_of_listener", low_water_of_listener, puppet_that_dials, RAW | TCP_OK},
    {"kept", puppet, kept, 0},
    {"cork", puppet, cork, 0},
    {"peek_offset", puppet, peek_offset, 0},
    {"peek_offset_asleep", puppet_for_one, peek_offset_asleep, RAW | TCP_OK},
    {"linger_sends_all", linger_sends_all_server, linger_sends_all, 0},
    {"linger_zero", linger_zero_server, linger_zero, 0},
    {"information", puppet, information, 0},
    {"unsent", puppet, unsent, 0},
    {"unsent_by_tcp", puppet, unsent_by_tcp, 0},
    {0},
};

/* epoll on one connection: level, edge and one shot; EPOLLOUT as writers use it; MOD, DEL and ADD in every order; what the kernel
 * says of wrong calls; the user's 64 bits come back unchanged; the other side's end in all its forms. */
#include "pair.h"
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>

static const uint64_t COOKIE = 0xdeadbeefcafef00dull;

static int set_of(int fd, uint32_t events) {
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = events, .data.u64 = COOKIE};
    CHECK(set >= 0);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    return set;
}

static void change(int set, int fd, uint32_t events) {
    struct epoll_event event = {.events = events, .data.u64 = COOKIE};
    CHECK(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event) == 0);
}

/* What one wait reports; 0 when the time is up. */
static uint32_t wait_set(int set, int milliseconds) {
    struct epoll_event event[4];
    int n = epoll_wait(set, event, 4, milliseconds);
    CHECK(n == 0 || n == 1);
    if (n == 0) return 0;
    EQUAL(event[0].data.u64, COOKIE);
    return event[0].events;
}

static void again(int fd) {
    char byte;
    ERRNO(recv(fd, &byte, 1, MSG_DONTWAIT), EAGAIN);
}

static void level(int fd) {
    int set = set_of(fd, EPOLLIN);
    EQUAL(wait_set(set, 0), 0);
    for (int i = 0; i < 20; i++) {
        ask(SEND, 100);
        EQUAL(wait_set(set, 5000), EPOLLIN);
        take(fd, 50);
        EQUAL(wait_set(set, 5000), EPOLLIN);
        EQUAL(wait_set(set, -1), EPOLLIN);
        take(fd, 50);
        EQUAL(wait_set(set, 0), 0);
    }
    close(set);
    leave(fd);
}

static void asleep(int fd, uint32_t mode) {
    int set = set_of(fd, EPOLLIN | mode);
    for (int i = 0; i < 10; i++) {
        order(SEND_ASLEEP, 100);
        EQUAL(wait_set(set, i % 2 ? -1 : 20000), EPOLLIN);
        take(fd, 100);
        again(fd);
    }
    close(set);
    leave(fd);
}

static void level_asleep(int fd) { asleep(fd, 0); }
static void edge_asleep(int fd) { asleep(fd, EPOLLET); }

static void edge(int fd) {
    int set = set_of(fd, EPOLLIN | EPOLLET);
    EQUAL(wait_set(set, 0), 0);
    for (int i = 0; i < 20; i++) {
        ask(SEND, 100);
        EQUAL(wait_set(set, 5000), EPOLLIN);
        EQUAL(wait_set(set, 0), 0); /* told once */
        take(fd, 50);
        EQUAL(wait_set(set, 0), 0); /* a part read is no edge */
        ask(SEND, 10);              /* new data is */
        EQUAL(wait_set(set, 5000), EPOLLIN);
        take(fd, 60);
        again(fd);
        EQUAL(wait_set(set, i % 5 ? 0 : 20), 0);
    }
    close(set);
    leave(fd);
}

static void edge_both(int fd) {
    int set = set_of(fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
    EQUAL(wait_set(set, 5000), EPOLLOUT);
    EQUAL(wait_set(set, 0), 0);
    for (int i = 0; i < 20; i++) {
        ask(SEND, 100);
        EQUAL(wait_set(set, 5000), EPOLLIN | EPOLLOUT);
        EQUAL(wait_set(set, 0), 0);
        take(fd, 100);
        again(fd);
    }
    close(set);
    leave(fd);
}

/* The loop of every edge-triggered server: read until EAGAIN, then wait. */
static void edge_loop(int fd) {
    set_nonblocking(fd, true);
    int set = set_of(fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
    order(ECHO, (int64_t)3000 << 32 | 700);
    for (int i = 0; i < 3000; i++) {
        put(fd, 700);
        for (int have = 0; have < 700;) {
            char data[512];
            ssize_t n = recv(fd, data, sizeof data, 0);
            if (n < 0) {
                EQUAL(errno, EAGAIN);
                CHECK(wait_set(set, 20000) != 0);
                continue;
            }
            CHECK(n > 0);
            verify(your_key, got, data, n);
            got += n;
            have += n;
        }
    }
    hear();
    close(set);
    leave(fd);
}

static void one_shot(int fd) {
    int set = set_of(fd, EPOLLIN | EPOLLONESHOT);
    for (int i = 0; i < 20; i++) {
        ask(SEND, 50);
        EQUAL(wait_set(set, 5000), EPOLLIN);
        EQUAL(wait_set(set, 0), 0);
        ask(SEND, 50);
        EQUAL(wait_set(set, i % 5 ? 0 : 20), 0); /* off until it is armed again */
        change(set, fd, EPOLLIN | EPOLLONESHOT);
        EQUAL(wait_set(set, 5000), EPOLLIN);
        take(fd, 100);
        change(set, fd, EPOLLIN | EPOLLONESHOT);
        EQUAL(wait_set(set, 0), 0);
    }
    close(set);
    leave(fd);
}

/* The same calls made through syscall(), as some run-time systems do. */
static void by_syscall(int fd) {
    int set = syscall(SYS_epoll_create1, EPOLL_CLOEXEC), one = 1;
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = COOKIE};
    unsigned char data[100];
    CHECK(set >= 0);
    CHECK(syscall(SYS_setsockopt, fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    CHECK(syscall(SYS_epoll_ctl, set, EPOLL_CTL_ADD, fd, &event) == 0);
    for (int i = 0; i < 100; i++) {
        struct pollfd p = {fd, POLLIN, 0};
        struct timespec none = {0, 0};
        EQUAL(syscall(SYS_epoll_pwait, set, &event, 1, 0, NULL, 8), 0);
        EQUAL(syscall(SYS_ppoll, &p, 1, &none, NULL, 8), 0);
        ask(SEND, 100);
        EQUAL(syscall(SYS_epoll_pwait, set, &event, 1, 5000, NULL, 8), 1);
        EQUAL(event.events, EPOLLIN);
        EQUAL(event.data.u64, COOKIE);
        EQUAL(syscall(SYS_ppoll, &p, 1, NULL, NULL, 8), 1);
        EQUAL(p.revents, POLLIN);
        int waiting = 0;
        while (waiting < 100) CHECK(syscall(SYS_ioctl, fd, FIONREAD, &waiting) == 0);
        EQUAL(syscall(SYS_recvfrom, fd, data, sizeof data, 0, NULL, NULL), 100);
        verify(your_key, got, data, 100);
        got += 100;
    }
    CHECK(syscall(SYS_dup3, set, fd + 50, O_CLOEXEC) == fd + 50);
    CHECK(syscall(SYS_close, set) == 0);
    EQUAL(wait_set(fd + 50, 0), 0);
    leave(fd);
}

/* A fired shot stays fired while many bytes go to and fro, whatever becomes of the connection meanwhile. */
static void one_shot_kept(int fd) {
    int set = set_of(fd, EPOLLIN | EPOLLONESHOT);
    for (int i = 0; i < 3; i++) {
        ask(SEND, 50);
        EQUAL(wait_set(set, 5000), EPOLLIN);
        take(fd, 50);
        echo_rounds(fd, 200, 64);
        ask(SEND, 50);
        wait_queued(fd, 50);
        EQUAL(wait_set(set, 0), 0);
        EQUAL(wait_set(set, 20), 0);
        take(fd, 50);
        change(set, fd, EPOLLIN | EPOLLONESHOT);
        EQUAL(wait_set(set, 0), 0);
    }
    leave(fd);
}

/* An unfired shot fires once, however the bytes came. */
static void one_shot_unfired(int fd) {
    int set = set_of(fd, EPOLLIN | EPOLLONESHOT), idle = set_of(fd, EPOLLIN | EPOLLONESHOT);
    ask(SEND, 50);
    EQUAL(wait_set(set, 5000), EPOLLIN);
    take(fd, 50);
    echo_rounds(fd, 200, 64);
    change(set, fd, EPOLLIN | EPOLLONESHOT);
    echo_rounds(fd, 200, 64);
    ask(SEND, 50);
    wait_queued(fd, 50);
    EQUAL(wait_set(idle, 5000), EPOLLIN);
    EQUAL(wait_set(idle, 0), 0);
    take(fd, 50);
    change(idle, fd, EPOLLIN | EPOLLONESHOT);
    EQUAL(wait_set(idle, 0), 0);
    leave(fd);
}

static void room(int fd, uint32_t mode) {
    set_nonblocking(fd, true);
    int set = set_of(fd, EPOLLOUT | mode);
    EQUAL(wait_set(set, 5000), EPOLLOUT);
    EQUAL(wait_set(set, 0), mode & EPOLLET ? 0 : EPOLLOUT);
    for (int i = 0; i < 3; i++) {
        size_t n = fill_up(fd);
        while (wait_set(set, 0)) n += fill_up(fd); /* the kernel has made room meanwhile */
        order(DRAIN_ASLEEP, n);
        EQUAL(wait_set(set, 20000), EPOLLOUT);
    }
    close(set);
    set_nonblocking(fd, false);
    echo_rounds(fd, 20, 64);
    leave(fd);
}

/* There was no room, then there is some again, and before the program asks for that a library moves the connection to another path. */
static void room_moved(size_t (*fill_by)(int fd)) {
    char byte;
    int fd = dial();
    set_nonblocking(fd, true);
    int set = set_of(fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
    EQUAL(wait_set(set, 5000), EPOLLOUT);
    size_t n = fill_by(fd);
    while (wait_set(set, 0)) n += fill_by(fd); /* the kernel has made room meanwhile: its edge is gone */
    CHECK(n > 60 * 1000); /* the first buffers of a connection by Ethernet are small */
    ask(READ, n - 50 * 1000);
    for (int i = 0; i < 50; i++) {
        ask(READ, 1000);
        ERRNO(recv(fd, &byte, 1, 0), EAGAIN);
        usleep(20000);
    }
    EQUAL(wait_set(set, 20000), EPOLLOUT);
    close(set);
    set_nonblocking(fd, false);
    echo_rounds(fd, 20, 64);
    leave(fd);
}

static size_t part(ssize_t n, size_t whole) {
    if (n < 0) {
        EQUAL(errno, EAGAIN);
        return 0;
    }
    CHECK((size_t)n < whole);
    sent += (size_t)n;
    return (size_t)n;
}

/* Part of what was to be sent had room: the program need not try the rest. */
static size_t part_of_much(int fd) {
    static char data[64 << 20];
    fill(my_key, sent, data, sizeof data);
    return part(send(fd, data, sizeof data, 0), sizeof data);
}

/* The same by sendfile(), of which the socket has the file's own pages. */
static size_t files(int fd) {
    static char data[64 << 20];
    int file = memfd_create("room", 0);
    fill(my_key, sent, data, sizeof data);
    EQUAL(write(file, data, sizeof data), sizeof data);
    off_t at = 0;
    size_t n = part(sendfile(fd, file, &at, sizeof data), sizeof data);
    close(file);
    return n;
}

static void room_moved_send(int unused) { (void)unused, room_moved(fill_up); }
static void room_moved_part(int unused) { (void)unused, room_moved(part_of_much); }
static void room_moved_file(int unused) { (void)unused, room_moved(files); }
static void answers(int listener) { puppet(answer(listener)); }

/* The peer takes the connection back to tcp with bytes unread, and then sends what ends like the beginning of something that a library might send between the program's
 * bytes. There is no more, so no edge for it, either. */
static void last_bytes(int fd) {
    static const unsigned char text[] = {'x', 0xf8, 0xff, 0xfe};
    unsigned char data[64];
    set_nonblocking(fd, true);
    int set = set_of(fd, EPOLLIN | EPOLLET);
    EQUAL(send(fd, "unread", 6, 0), 6);
    tell(sizeof text);
    for (size_t length = 1; length <= sizeof text; length++) {
        for (size_t there = 0; there < length;) {
            ssize_t n = recv(fd, data + there, sizeof data - there, 0);
            if (n > 0) there += (size_t)n;
            else {
                EQUAL(errno, EAGAIN);
                EQUAL(wait_set(set, 5000), EPOLLIN);
            }
        }
        CHECK(memcmp(data, text, length) == 0);
        tell((int64_t)length);
    }
    close(set);
    EQUAL(hear(), 0);
    close(fd);
}

static void last_bytes_server(int fd) {
    static const unsigned char text[] = {'x', 0xf8, 0xff, 0xfe};
    char data[6];
    EQUAL(hear(), sizeof text);
    CHECK(fcntl(fd, F_SETFL, O_ASYNC) == 0 && fcntl(fd, F_SETFL, 0) == 0);
    for (size_t length = 1; length <= sizeof text; length++) {
        EQUAL(send(fd, text, length, 0), length);
        EQUAL(hear(), length);
    }
    recv_all(fd, data, sizeof data);
    CHECK(memcmp(data, "unread", 6) == 0);
    tell(0);
    EQUAL(recv(fd, data, 1, 0), 0);
    close(fd);
}

static void room_level(int fd) { room(fd, 0); }
static void room_edge(int fd) { room(fd, EPOLLET); }

/* A writer that streams 8 MB by filling and waiting for EPOLLOUT, against a reader that takes its time. */
static void stream(int fd, uint32_t mode) {
    static char data[100000];
    const uint64_t total = 8 << 20;
    set_nonblocking(fd, true);
    int set = set_of(fd, EPOLLOUT | mode);
    for (uint64_t done = 0; done < total;) {
        size_t n = total - done < sizeof data ? total - done : sizeof data;
        fill(my_key, sent, data, n);
        ssize_t m = send(fd, data, n, 0);
        if (m < 0) {
            EQUAL(errno, EAGAIN);
            EQUAL(wait_set(set, 20000), EPOLLOUT);
            if (mode & EPOLLONESHOT) change(set, fd, EPOLLOUT | mode);
            continue;
        }
        sent += m;
        done += m;
    }
    close(set);
    char byte;
    set_nonblocking(fd, false);
    EQUAL(recv(fd, &byte, 1, 0), 1);
    close(fd);
}

static void stream_level(int fd) { stream(fd, 0); }
static void stream_edge(int fd) { stream(fd, EPOLLET); }
static void stream_one_shot(int fd) { stream(fd, EPOLLONESHOT); }

static void stream_server(int fd) {
    for (uint64_t done = 0; done < 8 << 20;) {
        size_t n = 1 + done * 7919 % 60000;
        if (n > (8 << 20) - done) n = (8 << 20) - done;
        take(fd, n);
        done += n;
        if (done % 16 == 3) usleep(500); /* lets the writer fill up; the result does not depend on it */
    }
    put(fd, 1);
    char byte;
    EQUAL(recv(fd, &byte, 1, 0), 0);
}

static void modify(int fd) {
    int set = set_of(fd, EPOLLIN);
    EQUAL(wait_set(set, 0), 0);
    for (int i = 0; i < 10; i++) {
        change(set, fd, EPOLLOUT);
        EQUAL(wait_set(set, 5000), EPOLLOUT);
        ask(SEND, 10);
        EQUAL(wait_set(set, 5000), EPOLLOUT);
        change(set, fd, EPOLLIN | EPOLLOUT);
        struct pollfd p = {fd, POLLIN, 0};
        EQUAL(poll(&p, 1, 5000), 1);
        EQUAL(wait_set(set, 5000), EPOLLIN | EPOLLOUT);
        change(set, fd, 0);
        EQUAL(wait_set(set, 0), 0);
        change(set, fd, EPOLLIN | EPOLLET); /* pending data is an edge for a new mode */
        EQUAL(wait_set(set, 5000), EPOLLIN);
        EQUAL(wait_set(set, 0), 0);
        change(set, fd, EPOLLIN | EPOLLET);
        EQUAL(wait_set(set, 5000), EPOLLIN);
        take(fd, 10);
        change(set, fd, EPOLLIN);
        EQUAL(wait_set(set, 0), 0);
    }
    close(set);
    leave(fd);
}

static void delete(int fd) {
    int set = set_of(fd, EPOLLIN);
    for (int i = 0; i < 10; i++) {
        ask(SEND, 10);
        EQUAL(wait_set(set, 5000), EPOLLIN);
        CHECK(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL) == 0);
        EQUAL(wait_set(set, 0), 0);
        ask(SEND, 10);
        EQUAL(wait_set(set, i % 5 ? 0 : 20), 0);
        struct epoll_event event = {.events = EPOLLIN | (i % 2 ? EPOLLET : 0), .data.u64 = COOKIE};
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
        EQUAL(wait_set(set, 5000), EPOLLIN);
        take(fd, 20);
        EQUAL(wait_set(set, 0), 0);
    }
    close(set);
    leave(fd);
}

static void wrong_calls(int fd) {
    int set = set_of(fd, EPOLLIN), other = epoll_create(1);
    struct epoll_event event = {.events = EPOLLIN};
    ERRNO(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), EEXIST);
    ERRNO(epoll_ctl(other, EPOLL_CTL_MOD, fd, &event), ENOENT);
    ERRNO(epoll_ctl(other, EPOLL_CTL_DEL, fd, NULL), ENOENT);
    ERRNO(epoll_ctl(fd, EPOLL_CTL_ADD, set, &event), EINVAL);
    ERRNO(epoll_wait(fd, &event, 1, 0), EINVAL);
    ERRNO(epoll_wait(set, &event, 0, 0), EINVAL);
    ERRNO(epoll_wait(12345, &event, 1, 0), EBADF);
    ERRNO(epoll_ctl(set, EPOLL_CTL_ADD, 12345, &event), EBADF);
    CHECK(epoll_ctl(set, EPOLL_CTL_DEL, fd, &event) == 0);
    ERRNO(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event), ENOENT);
    close(other);
    close(set);
    leave(fd);
}

/* All 64 bits, whatever they are, and 12 descriptors that must not be mixed up. */
static void data_server(int listener) {
    int fds[12];
    for (int i = 0; i < 12; i++) warm_server(fds[i] = answer(listener));
    for (int round = 0; round < 100; round++) {
        int which = round * 7 % 12;
        char byte = (char)round;
        hear();
        send_all(fds[which], &byte, 1);
    }
    char byte;
    for (int i = 0; i < 12; i++) EQUAL(recv(fds[i], &byte, 1, 0), 0);
}

static void data_client(int unused) {
    (void)unused;
    int fds[12], set = epoll_create1(0);
    for (int i = 0; i < 12; i++) {
        warm_client(fds[i] = dial());
        struct epoll_event event = {.events = EPOLLIN | (i % 2 ? EPOLLET : 0), .data.u64 = 0xffffffff00000000ull * (i % 3) + i};
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fds[i], &event) == 0);
    }
    for (int round = 0; round < 100; round++) {
        int which = round * 7 % 12;
        struct epoll_event event[12];
        char byte;
        tell(0);
        EQUAL(epoll_wait(set, event, 12, 20000), 1);
        EQUAL(event[0].data.u64, 0xffffffff00000000ull * (which % 3) + which);
        EQUAL(event[0].events, EPOLLIN);
        EQUAL(recv(fds[which], &byte, 1, 0), 1);
        EQUAL(byte, (char)round);
    }
}

/* More is ready than the caller has room for: everybody's turn comes. */
static void fair_server(int listener) {
    int fds[10];
    for (int i = 0; i < 10; i++) warm_server(fds[i] = answer(listener));
    for (int i = 0; i < 10; i++) send_all(fds[i], "x", 1);
    tell(0);
    char byte;
    for (int i = 0; i < 10; i++) EQUAL(recv(fds[i], &byte, 1, 0), 0);
}

static void fair_client(int unused) {
    (void)unused;
    int fds[10], set = epoll_create1(0), seen = 0;
    for (int i = 0; i < 10; i++) {
        warm_client(fds[i] = dial());
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fds[i], &event) == 0);
    }
    hear();
    for (int calls = 0; seen != (1 << 10) - 1; calls++) {
        struct epoll_event event[3];
        CHECK(calls < 30);
        int n = epoll_wait(set, event, 3, 5000);
        CHECK(n >= 1 && n <= 3);
        for (int i = 0; i < n; i++) seen |= 1 << event[i].data.u32; /* not read: stays ready */
    }
    char byte;
    for (int i = 0; i < 10; i++) EQUAL(recv(fds[i], &byte, 1, 0), 1);
}

static void two_sets(int fd) {
    int one = set_of(fd, EPOLLIN), two = set_of(fd, EPOLLIN | EPOLLET);
    for (int i = 0; i < 10; i++) {
        ask(SEND, 10);
        EQUAL(wait_set(one, 5000), EPOLLIN);
        EQUAL(wait_set(two, 5000), EPOLLIN);
        EQUAL(wait_set(two, 0), 0);
        EQUAL(wait_set(one, 0), EPOLLIN);
        take(fd, 10);
        EQUAL(wait_set(one, 0), 0);
    }
    close(one);
    order(SEND_ASLEEP, 10);
    EQUAL(wait_set(two, 20000), EPOLLIN);
    take(fd, 10);
    close(two);
    leave(fd);
}

/* The same connection under two numbers is two members. */
static void two_numbers(int fd) {
    int other = dup(fd), set = set_of(fd, EPOLLIN);
    struct epoll_event event[4] = {{.events = EPOLLIN, .data.u64 = COOKIE + 1}};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, other, event) == 0);
    for (int i = 0; i < 5; i++) {
        ask(SEND, 10);
        struct pollfd p = {fd, POLLIN, 0};
        EQUAL(poll(&p, 1, 5000), 1);
        EQUAL(epoll_wait(set, event, 4, 5000), 2);
        EQUAL(event[0].data.u64 + event[1].data.u64, 2 * COOKIE + 1);
        take(i % 2 ? fd : other, 10);
        EQUAL(epoll_wait(set, event, 4, 0), 0);
    }
    CHECK(epoll_ctl(set, EPOLL_CTL_DEL, other, NULL) == 0);
    close(other);
    ask(SEND, 10);
    EQUAL(wait_set(set, 5000), EPOLLIN);
    take(fd, 10);
    close(set);
    leave(fd);
}

/* Closing one number of two leaves the member in the set (epoll(7), questions 6); closing the last takes it out. */
static void closed_number(int fd) {
    int other = dup(fd), set = set_of(other, EPOLLIN);
    close(other);
    ask(SEND, 10);
    EQUAL(wait_set(set, 5000), EPOLLIN);
    take(fd, 10);
    EQUAL(wait_set(set, 0), 0);
    order(QUIT, 0);
    close(fd);
    hear();
    EQUAL(wait_set(set, 0), 0);
    close(set);
}

/* A number closed and used again by another connection belongs to that one. */
static void number_again_server(int listener) {
    for (int i = 0; i < 20; i++) {
        int fd = answer(listener);
        warm_server(fd);
        hear();
        send_all(fd, "y", 1);
        char byte;
        EQUAL(recv(fd, &byte, 1, 0), 0);
        close(fd);
    }
}

static void number_again_client(int unused) {
    (void)unused;
    int set = epoll_create1(0), first = -1;
    for (int i = 0; i < 20; i++) {
        int fd = dial();
        if (first < 0) first = fd;
        EQUAL(fd, first);
        expect_lowest(i);
        warm_client(fd);
        struct epoll_event event = {.events = EPOLLIN, .data.u64 = i};
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
        tell(0);
        EQUAL(epoll_wait(set, &event, 1, 20000), 1);
        EQUAL(event.data.u64, i);
        EQUAL(event.events, EPOLLIN);
        char byte;
        EQUAL(recv(fd, &byte, 1, 0), 1);
        close(fd);
    }
}

static void ends(int fd) {
    int set = set_of(fd, EPOLLIN | EPOLLRDHUP);
    char byte;
    ask(SEND, 10);
    ask(END_WR, 0);
    while (wait_set(set, 5000) != (EPOLLIN | EPOLLRDHUP)) continue;
    take(fd, 10);
    EQUAL(wait_set(set, 5000), EPOLLIN | EPOLLRDHUP);
    EQUAL(recv(fd, &byte, 1, 0), 0);
    put(fd, 1000);
    ask(READ, 1000);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    while (wait_set(set, 5000) != (EPOLLIN | EPOLLRDHUP | EPOLLHUP)) continue;
    close(set);
    leave(fd);
}

static void end_asleep(int fd, uint32_t mode) {
    int set = set_of(fd, EPOLLIN | EPOLLRDHUP | mode);
    char byte;
    tell(getpid());
    EQUAL(wait_set(set, -1), EPOLLIN | EPOLLRDHUP);
    EQUAL(recv(fd, &byte, 1, 0), 0);
    close(fd);
}

static void end_asleep_server(int fd) {
    pid_t pid = hear();
    wait_asleep(pid, pid);
    close(fd);
}

static void end_asleep_level(int fd) { end_asleep(fd, 0); }
static void end_asleep_edge(int fd) { end_asleep(fd, EPOLLET); }

static void reset(int fd) {
    int set = set_of(fd, EPOLLIN);
    char byte;
    ask(RESET, 0);
    uint32_t events = wait_set(set, 5000);
    CHECK(events & EPOLLERR);
    CHECK(events & EPOLLHUP);
    ERRNO(recv(fd, &byte, 1, 0), ECONNRESET);
    close(set);
    close(fd);
}

static void times_out(int fd) {
    int set = set_of(fd, EPOLLIN);
    struct epoll_event event;
    for (int i = 0; i < 4; i++) {
        double start = now();
        struct timespec t = {0, 60000000};
        EQUAL(i % 2 ? epoll_wait(set, &event, 1, 60) : i ? epoll_pwait(set, &event, 1, 60, NULL) : epoll_pwait2(set, &event, 1, &t, NULL), 0);
        CHECK(now() - start >= 0.059);
        CHECK(now() - start < 2);
        echo_rounds(fd, 20, 64);
    }
    close(set);
    leave(fd);
}

static volatile sig_atomic_t signals;
static void on_signal(int unused) {
    (void)unused;
    signals++;
}

static void pwait_mask(int fd) {
    sigset_t block, none;
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    struct epoll_event event;
    int set = set_of(fd, EPOLLIN);
    sigemptyset(&none);
    sigemptyset(&block);
    sigaddset(&block, SIGUSR1);
    sigaction(SIGUSR1, &action, NULL);
    sigprocmask(SIG_BLOCK, &block, NULL);
    for (int i = 1; i <= 5; i++) {
        raise(SIGUSR1);
        EQUAL(epoll_wait(set, &event, 1, 10), 0);
        ERRNO(epoll_pwait(set, &event, 1, -1, &none), EINTR);
        EQUAL(signals, i);
    }
    order(SEND_ASLEEP, 10);
    EQUAL(epoll_pwait(set, &event, 1, -1, &none), 1);
    take(fd, 10);
    sigprocmask(SIG_SETMASK, &none, NULL);
    close(set);
    leave(fd);
}

const struct example examples[] = {
    {"level", puppet, level, 0},
    {"level_asleep", puppet, level_asleep, 0},
    {"edge", puppet, edge, 0},
    {"edge_asleep", puppet, edge_asleep, 0},
    {"edge_both", puppet, edge_both, 0},
    {"edge_loop", puppet, edge_loop, 0},
    {"one_shot", puppet, one_shot, 0},
    {"by_syscall", puppet, by_syscall, 0},
    {"one_shot_kept", puppet, one_shot_kept, 0},
    {"one_shot_unfired", puppet, one_shot_unfired, 0},
    {"room_level", puppet, room_level, 0},
    {"room_edge", puppet, room_edge, 0},
    {"room_moved_send", answers, room_moved_send, RAW | SLOW},
    {"room_moved_part", answers, room_moved_part, RAW | SLOW},
    {"room_moved_file", answers, room_moved_file, RAW | SLOW},
    {"last_bytes", last_bytes_server, last_bytes, 0},
    {"stream_level", stream_server, stream_level, 0},
    {"stream_edge", stream_server, stream_edge, 0},
    {"stream_one_shot", stream_server, stream_one_shot, 0},
    {"modify", puppet, modify, 0},
    {"delete", puppet, delete, 0},
    {"wrong_calls", puppet, wrong_calls, 0},
    {"data", data_server, data_client, RAW},
    {"fair", fair_server, fair_client, RAW},
    {"two_sets", puppet, two_sets, 0},
    {"two_numbers", puppet, two_numbers, 0},
    {"closed_number", puppet, closed_number, 0},
    {"number_again", number_again_server, number_again_client, RAW},
    {"ends", puppet, ends, 0},
    {"end_asleep_level", end_asleep_server, end_asleep_level, 0},
    {"end_asleep_edge", end_asleep_server, end_asleep_edge, 0},
    {"reset", puppet, reset, 0},
    {"times_out", puppet, times_out, 0},
    {"pwait_mask", puppet, pwait_mask, 0},
    {0},
};

/* The flags of send() and recv(): MSG_PEEK, MSG_WAITALL, MSG_DONTWAIT, MSG_TRUNC, MSG_NOSIGNAL, MSG_MORE; and calls of length 0. */
#include "pair.h"

static void peek(int fd) {
    char data[300];
    for (int i = 0; i < 20; i++) {
        ask(SEND, 300);
        wait_queued(fd, 300);
        for (int times = 0; times < 3; times++) {
            EQUAL(recv(fd, data, 100, MSG_PEEK), 100);
            verify(your_key, got, data, 100);
        }
        EQUAL(recv(fd, data, 300, MSG_PEEK | MSG_WAITALL), 300);
        verify(your_key, got, data, 300);
        wait_queued(fd, 300);
        take(fd, 150);
        EQUAL(recv(fd, data, 300, MSG_PEEK | MSG_DONTWAIT), 150);
        verify(your_key, got, data, 150);
        take(fd, 150);
        ERRNO(recv(fd, data, 300, MSG_PEEK | MSG_DONTWAIT), EAGAIN);
    }
    order(SEND_ASLEEP, 10);
    EQUAL(recv(fd, data, 300, MSG_PEEK), 10);
    take(fd, 10);
    leave(fd);
}

/* A look waits for all, too, but not beyond its time. */
static void peek_all(int fd) {
    char data[400];
    struct timeval t = {0, 50000}, none = {0, 0};
    for (int i = 0; i < 10; i++) {
        ask(SEND, 100);
        wait_queued(fd, 100);
        order(SEND_ASLEEP, 150);
        order(SEND_ASLEEP, 50);
        EQUAL(recv(fd, data, 300, MSG_PEEK | MSG_WAITALL), 300);
        verify(your_key, got, data, 300);
        EQUAL(recv(fd, data, 400, MSG_PEEK | MSG_WAITALL | MSG_DONTWAIT), 300);
        EQUAL(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t), 0);
        EQUAL(recv(fd, data, 400, MSG_PEEK | MSG_WAITALL), 300);
        EQUAL(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none), 0);
        take(fd, 300);
    }
    leave(fd);
}

/* Nor beyond the end; and it sees all, by whatever ways it comes. */
static void peek_all_to_the_end(int fd) {
    static char data[40000];
    tell(getpid());
    EQUAL(recv(fd, data, sizeof data, MSG_PEEK | MSG_WAITALL), sizeof data);
    verify(your_key, got, data, sizeof data);
    take(fd, sizeof data);
    tell(getpid());
    EQUAL(recv(fd, data, 300, MSG_PEEK | MSG_WAITALL), 100);
    verify(your_key, got, data, 100);
    take(fd, 100);
    close(fd);
}

static void peek_all_to_the_end_server(int fd) {
    pid_t pid = hear();
    wait_asleep(pid, pid);
    put(fd, 20000);
    go_by_tcp(fd);
    put(fd, 20000);
    hear();
    put(fd, 100);
    wait_asleep(pid, pid);
    close(fd);
}

/* A look sees all that is there, also while the connection moves: what came before, unread, */
static void peek_while_moved(int unused) {
    static char data[20000];
    (void)unused;
    int fd = dial();
    be_seen_to_wait(fd);
    ask(SEND, sizeof data);
    wait_queued(fd, sizeof data);
    for (double end = now() + 1.5; now() < end;) {
        put(fd, 100);
        ask(READ, 100);
        EQUAL(recv(fd, data, sizeof data, MSG_PEEK), sizeof data);
    }
    verify(your_key, got, data, sizeof data);
    take(fd, sizeof data);
    leave(fd);
}

/* and what comes after it has been left, while the other end has not come so far. Its last byte is like the first of a record between the two libraries, which may be held a while. */
static void peek_while_left(int unused) {
    static char data[30000];
    size_t length = 20000;
    (void)unused;
    int fd = dial();
    be_seen_to_wait(fd);
    put(fd, 100); /* not read */
    for (double end = now() + 1.5; now() < end;) {
        ask(SEND, 100);
        take(fd, 100);
        usleep(1000);
    }
    for (int i = 0; i < 3; i++) put(fd, 100);
    go_by_tcp(fd);
    while (byte_at(your_key, got + length - 1) != 0xf8) length++;
    ask(SEND, length);
    wait_queued(fd, length);
    size_t seen = 0;
    for (double end = now() + 5; seen < length && now() < end; usleep(1000)) {
        seen = recv(fd, data, sizeof data, MSG_PEEK);
        CHECK(seen == length || seen == length - 1);
    }
    EQUAL(seen, length);
    verify(your_key, got, data, length);
    ask(READ, 400);
    take(fd, length);
    leave(fd);
}

/* The other end moves, and leaves what it has moved to, while bytes from before are unread. */
static void peek_beyond(int unused) {
    static char data[20000];
    (void)unused;
    int fd = dial();
    be_seen_to_wait(fd);
    hear();
    for (double end = now() + 1.5; now() < end; hear()) {
        put(fd, 100);
        tell(1);
    }
    tell(0);
    hear();
    wait_queued(fd, 19000);
    EQUAL(recv(fd, data, 10000, MSG_PEEK), 10000);
    verify(your_key, got, data, 10000);
    EQUAL(recv(fd, data, sizeof data, MSG_PEEK), 19000);
    verify(your_key, got, data, 19000);
    /* Nobody looks for a record for so long but who reads. */
    usleep(1200000);
    take(fd, 8000);
    EQUAL(recv(fd, data, sizeof data, MSG_PEEK), 11000);
    take(fd, 11000);
    tell(0);
    close(fd);
}

static void peek_beyond_server(int listener) {
    int fd = answer(listener);
    be_seen_to_wait(fd);
    put(fd, 8000);
    tell(0);
    for (; hear(); tell(0)) take(fd, 100);
    put(fd, 3000);
    go_by_tcp(fd);
    put(fd, 8000);
    tell(0);
    hear();
    close(fd);
}

/* What is peeked at the end of the stream. */
static void peek_end(int fd) {
    char data[10];
    ask(SEND, 5);
    ask(END_WR, 0);
    wait_queued(fd, 5);
    EQUAL(recv(fd, data, 10, MSG_PEEK), 5);
    take(fd, 5);
    EQUAL(recv(fd, data, 10, MSG_PEEK), 0);
    EQUAL(recv(fd, data, 10, 0), 0);
    leave(fd);
}

static void wait_all(int fd) {
    char data[40000];
    for (int i = 0; i < 5; i++) {
        order(SEND_ASLEEP, 10);
        order(SEND_ASLEEP, 10);
        order(SEND_ASLEEP, 980);
        EQUAL(recv(fd, data, 1000, MSG_WAITALL), 1000);
        verify(your_key, got, data, 1000);
        got += 1000;
        order(SEND, 40000);
        EQUAL(recv(fd, data, 40000, MSG_WAITALL), 40000);
        verify(your_key, got, data, 40000);
        got += 40000;
        hear();
    }
    /* The end of the stream ends the wait. */
    ask(SEND, 300);
    ask(END_WR, 0);
    EQUAL(recv(fd, data, 1000, MSG_WAITALL), 300);
    verify(your_key, got, data, 300);
    EQUAL(recv(fd, data, 1000, MSG_WAITALL), 0);
    leave(fd);
}

static void dont_wait(int fd) {
    char data[100];
    for (int i = 0; i < 20; i++) {
        ERRNO(recv(fd, data, sizeof data, MSG_DONTWAIT), EAGAIN);
        ERRNO(recv(fd, data, sizeof data, MSG_DONTWAIT | MSG_WAITALL), EAGAIN);
        ask(SEND, 50);
        wait_queued(fd, 50);
        EQUAL(recv(fd, data, sizeof data, MSG_DONTWAIT), 50);
        verify(your_key, got, data, 50);
        got += 50;
    }
    size_t n = fill_up(fd); /* MSG_DONTWAIT on a blocking descriptor */
    ask(READ, n);
    CHECK(!(fcntl(fd, F_GETFL) & O_NONBLOCK));
    leave(fd);
}

/* On TCP MSG_TRUNC throws bytes away without copying them. */
static void truncate_(int fd) {
    for (int i = 0; i < 20; i++) {
        ask(SEND, 200);
        wait_queued(fd, 200);
        EQUAL(recv(fd, NULL, 100, MSG_TRUNC), 100);
        got += 100;
        take(fd, 100);
    }
    leave(fd);
}

static void more(int fd) {
    for (int i = 0; i < 20; i++) {
        char data[30];
        for (int part = 0; part < 3; part++) {
            fill(my_key, sent, data, 10);
            EQUAL(send(fd, data, 10, part < 2 ? MSG_MORE : 0), 10);
            sent += 10;
        }
        ask(READ, 30);
    }
    leave(fd);
}

static void zero_length(int fd) {
    char byte = 'z';
    for (int i = 0; i < 20; i++) {
        EQUAL(send(fd, &byte, 0, 0), 0);
        EQUAL(write(fd, &byte, 0), 0);
        EQUAL(send(fd, NULL, 0, 0), 0);
        EQUAL(read(fd, &byte, 0), 0);
        ERRNO(recv(fd, &byte, 0, MSG_DONTWAIT), EAGAIN);
        order(SEND_ASLEEP, 3); /* read() of no bytes says so at once; recv() waits for some */
        EQUAL(recv(fd, &byte, 0, 0), 0);
        wait_queued(fd, 3);
        EQUAL(recv(fd, &byte, 0, 0), 0);
        EQUAL(read(fd, &byte, 0), 0);
        take(fd, 3);
        echo_rounds(fd, 5, 10);
    }
    leave(fd);
}

static void bad_pointer(int fd) {
    ERRNO(send(fd, (void *)8, 100, 0), EFAULT);
    ask(SEND, 10);
    wait_queued(fd, 10);
    ERRNO(recv(fd, (void *)8, 10, 0), EFAULT);
    take(fd, 10);
    echo_rounds(fd, 20, 64);
    leave(fd);
}

/* Of several buffers one is bad. */
static void bad_vector(int fd) {
    static char data[70000];
    void *volatile bad = (void *)8;
    struct iovec out[2] = {{data, 5}, {bad, 100}};
    struct msghdr in = {.msg_iov = out, .msg_iovlen = 2};
    for (int i = 0; i < 5; i++) {
        ERRNO(writev(fd, out, 2), EFAULT);
        ERRNO(writev(fd, bad, 2), EFAULT);
        ERRNO(sendmsg(fd, bad, 0), EFAULT);
        ERRNO(recvmsg(fd, bad, MSG_DONTWAIT), EFAULT);
        ERRNO(recv(fd, bad, 10, MSG_DONTWAIT), EAGAIN);
        ERRNO(recvmsg(fd, &in, MSG_DONTWAIT), EAGAIN);
        ask(SEND, 50);
        wait_queued(fd, 50);
        ERRNO(recvmsg(fd, &in, 0), EFAULT);
        take(fd, 45);
        EQUAL(recvmsg(fd, &in, 0), 5);
        verify(your_key, got, data, 5);
        got += 5;
        EQUAL(send(fd, bad, 0, 0), 0);
        ERRNO(poll(bad, 1, 0), EFAULT);
        ERRNO(select(fd + 1, bad, NULL, NULL, NULL), EFAULT);
        ERRNO(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, bad, 4), EFAULT);
        ERRNO(ioctl(fd, FIONREAD, bad), EFAULT);
        order(SEND_ASLEEP, 10);
        ERRNO(recv(fd, NULL, 10, 0), EFAULT);
        take(fd, 10);
    }
    /* What was sent before the bad one counts. */
    fill(my_key, sent, data, sizeof data);
    out[0].iov_len = sizeof data;
    ssize_t n = writev(fd, out, 2);
    CHECK(n > 0 && n <= (ssize_t)sizeof data);
    sent += n;
    ask(READ, n);
    ask(END_WR, 0);
    EQUAL(recv(fd, bad, 10, 0), 0);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    ERRNO(send(fd, bad, 10, MSG_NOSIGNAL), EPIPE);
    leave(fd);
}

const struct example examples[] = {
    {"peek", puppet, peek, 0},
    {"peek_all", puppet, peek_all, 0},
    {"peek_all_to_the_end", peek_all_to_the_end_server, peek_all_to_the_end, 0},
    {"peek_while_moved", puppet_for_one, peek_while_moved, RAW},
    {"peek_while_left", puppet_for_one, peek_while_left, RAW},
    {"peek_beyond", peek_beyond_server, peek_beyond, RAW},
    {"peek_end", puppet, peek_end, 0},
    {"wait_all", puppet, wait_all, 0},
    {"dont_wait", puppet, dont_wait, 0},
    {"truncate", puppet, truncate_, 0},
    {"more", puppet, more, 0},
    {"zero_length", puppet, zero_length, 0},
    {"bad_pointer", puppet, bad_pointer, 0},
    {"bad_vector", puppet, bad_vector, 0},
    {0},
};

/* One connection under several numbers: dup, dup2, dup3, F_DUPFD, F_DUPFD_CLOEXEC. All of them are the same connection; it ends
 * when the last is closed; a number that dup2 overwrites loses what it was before. */
#include "pair.h"
#include <sys/prctl.h>

static void use_both(int one, int two) {
    for (int i = 0; i < 50; i++) {
        order(ECHO, (int64_t)2 << 32 | 100);
        put(i % 2 ? one : two, 100);
        take(i % 3 ? one : two, 100);
        put(i % 3 ? two : one, 100);
        take(i % 2 ? two : one, 100);
        hear();
    }
}

static void by(int fd, int (*how)(int)) {
    for (int i = 0; i < 5; i++) {
        int other = how(fd);
        CHECK(other >= 0 && other != fd);
        use_both(fd, other);
        CHECK(close(other) == 0);
        ERRNO(send(other, "x", 1, MSG_NOSIGNAL), EBADF);
        echo_rounds(fd, 10, 64);
    }
    /* Now the other way round: the original goes, the copy stays. */
    int other = how(fd);
    close(fd);
    echo_rounds(other, 100, 64);
    leave(other);
}

static int plain(int fd) { return dup(fd); }
static int to_number(int fd) { return dup2(fd, 77); }
static int to_number3(int fd) { return dup3(fd, 78, O_CLOEXEC); }
static int by_fcntl(int fd) { return fcntl(fd, F_DUPFD, 50); }
static int by_fcntl_cloexec(int fd) {
    int other = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    CHECK(fcntl(other, F_GETFD) & FD_CLOEXEC);
    return other;
}

static void by_dup(int fd) { by(fd, plain); }
static void by_dup2(int fd) { by(fd, to_number); }
static void by_dup3(int fd) { by(fd, to_number3); }
static void by_f_dupfd(int fd) { by(fd, by_fcntl); }
static void by_f_dupfd_cloexec(int fd) { by(fd, by_fcntl_cloexec); }

static void to_itself(int fd) {
    EQUAL(dup2(fd, fd), fd);
    ERRNO(dup3(fd, fd, 0), EINVAL);
    ERRNO(dup2(12345, 60), EBADF);
    ERRNO(dup(12345), EBADF);
    echo_rounds(fd, 100, 64);
    leave(fd);
}

/* dup2 of a file onto a connection's only number ends the connection; of the connection onto a file replaces the file. */
static void over_file(int fd) {
    int file = open("/dev/null", O_RDWR);
    EQUAL(dup2(fd, file), file);
    close(fd);
    echo_rounds(file, 100, 64);
    order(QUIT, 0);
    int null = open("/dev/null", O_RDWR);
    EQUAL(dup2(null, file), file);
    hear();
    EQUAL(write(file, "x", 1), 1);
    EQUAL(read(file, &null, 1), 0);
}

/* One connection over another: the old one ends, the number speaks for the new. */
static void over_server(int listener) {
    int one = answer(listener);
    warm_server(one);
    int two = answer(listener);
    warm_server(two);
    char byte;
    EQUAL(recv(one, &byte, 1, 0), 0);
    tell(0);
    puppet(two);
    close(one);
}

static void over_client(int unused) {
    (void)unused;
    int one = dial();
    warm_client(one);
    int two = dial();
    warm_client(two);
    EQUAL(dup2(two, one), one);
    hear();
    echo_rounds(one, 50, 100);
    use_both(one, two);
    close(two);
    leave(one);
}

/* Copies that are made before the socket is connected are the same connection. */
static void before_connect(int unused) {
    (void)unused;
    int one = socket(listener_address.ss_family, SOCK_STREAM, 0), two = dup(one);
    CHECK(dup2(one, 70) == 70);
    CHECK(connect(one, (void *)&listener_address, listener_length) == 0);
    warm_client(two);
    use_both(one, two);
    use_both(70, one);
    close(one);
    use_both(two, 70);
    close(70);
    leave(two);
}

static void before_connect_server(int listener) {
    int one = dup(listener); /* a listener under two numbers */
    int fd = answer(one);
    close(one);
    warm_server(fd);
    puppet(fd);
}

/* Fifty copies, closed in a mixed order; the other side sees the end only after the last. */
static void last_close(int fd) {
    int copies[50];
    for (int i = 0; i < 50; i++) CHECK((copies[i] = dup(i ? copies[i - 1] : fd)) >= 0);
    close(fd);
    for (int i = 0; i < 49; i++) {
        int which = i * 29 % 50;
        CHECK(close(copies[which]) == 0);
        echo_rounds(copies[49 * 29 % 50], 2, 64);
    }
    leave(copies[49 * 29 % 50]);
}

/* A member of a set gets another number while bytes are unread, and the other end, which has done the same before, is busy with other things: what it has sent is there. */
static void unread_member(int fd) {
    struct epoll_event event = {.events = EPOLLIN};
    int set = epoll_create1(0);
    EQUAL(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
    for (int i = 0; i < 2; i++) {
        ask(SEND, 5000);
        wait_queued(fd, 5000);
        int other = dup(fd);
        CHECK(other >= 0);
        close(fd);
        fd = other;
        wait_queued(fd, 5000);
        take(fd, 3000);
        ask(SEND, 100);
        wait_queued(fd, 2100);
        take(fd, 2100);
    }
    close(set);
    echo_rounds(fd, 20, 100);
    leave(fd);
}

static void unread_member_server(int fd) {
    int other = dup(fd);
    CHECK(other >= 0);
    close(fd);
    puppet(other);
}

/* Neither may look into the other, so neither can send what the other one has sent. (65534 is nobody, and proves nothing.) */
static void unlike(void) {
    if (geteuid() == 0) CHECK(setresuid(65533, 65533, 65533) == 0);
    CHECK(prctl(PR_SET_DUMPABLE, 0) == 0);
}

static void unread_member_alone(int unused) {
    (void)unused;
    unlike();
    int fd = dial();
    warm_client(fd);
    unread_member(fd);
}

static void unread_member_alone_server(int listener) {
    unlike();
    int fd = answer(listener);
    warm_server(fd);
    puppet(fd);
}

const struct example examples[] = {
    {"by_dup", puppet, by_dup, 0},
    {"by_dup2", puppet, by_dup2, 0},
    {"by_dup3", puppet, by_dup3, 0},
    {"by_f_dupfd", puppet, by_f_dupfd, 0},
    {"by_f_dupfd_cloexec", puppet, by_f_dupfd_cloexec, 0},
    {"to_itself", puppet, to_itself, 0},
    {"over_file", puppet, over_file, 0},
    {"over_connection", over_server, over_client, RAW},
    {"before_connect", before_connect_server, before_connect, RAW},
    {"last_close", puppet, last_close, 0},
    {"unread_member", unread_member_server, unread_member, 0},
    {"unread_member_alone", unread_member_alone_server, unread_member_alone, RAW},
    {0},
};

/* What a program can ask about a connection: FIONREAD, SIOCOUTQ, names, SO_ERROR and other options, fstat, TCP_INFO's state.
 * Everything that describes the socket must stay true in mid-conversation. */
#include "pair.h"
#include <linux/sockios.h>

static void readable_bytes(int fd) {
    for (int i = 0; i < 50; i++) {
        wait_queued(fd, 0);
        ask(SEND, 100);
        wait_queued(fd, 100);
        ask(SEND, 4000);
        wait_queued(fd, 4100);
        take(fd, 100);
        int n = -1;
        CHECK(ioctl(fd, FIONREAD, &n) == 0);
        EQUAL(n, 4000);
        take(fd, 4000);
    }
    leave(fd);
}

static int unsent(int fd) {
    int n = -1;
    CHECK(ioctl(fd, SIOCOUTQ, &n) == 0);
    return n;
}

/* SIOCOUTQ counts what the other side's *kernel* has not acknowledged: 0 soon after a small send, more when nothing fits. */
static void unsent_bytes(int fd) {
    put(fd, 100);
    for (double end = now() + 5; unsent(fd) != 0; usleep(200)) CHECK(now() < end);
    ask(READ, 100);
    size_t n = fill_up(fd);
    CHECK(unsent(fd) >= 0);
    CHECK((size_t)unsent(fd) <= n);
    ask(READ, n);
    for (double end = now() + 5; unsent(fd) != 0; usleep(200)) CHECK(now() < end);
    leave(fd);
}

static void names(int fd) {
    struct sockaddr_storage a;
    socklen_t length = sizeof a;
    CHECK(getpeername(fd, (void *)&a, &length) == 0);
    EQUAL(length, listener_length);
    CHECK(memcmp(&a, &listener_address, length) == 0);
    CHECK(getsockname(fd, (void *)&a, &length) == 0);
    EQUAL(a.ss_family, listener_address.ss_family);
    CHECK(((struct sockaddr_in *)&a)->sin_port != 0);
    echo_rounds(fd, 10, 64);
    ask(CLOSE, 0);
    char byte;
    EQUAL(recv(fd, &byte, 1, 0), 0);
    length = sizeof a;
    CHECK(getpeername(fd, (void *)&a, &length) == 0);
    close(fd);
    ERRNO(getpeername(fd, (void *)&a, &length), EBADF);
}

static int option(int fd, int level, int name) {
    int value = -1;
    socklen_t length = sizeof value;
    CHECK(getsockopt(fd, level, name, &value, &length) == 0);
    return value;
}

static void options(int fd) {
    int zero = 0, size = 65536, one = 1;
    EQUAL(option(fd, SOL_SOCKET, SO_TYPE), SOCK_STREAM);
    EQUAL(option(fd, SOL_SOCKET, SO_DOMAIN), listener_address.ss_family);
    EQUAL(option(fd, SOL_SOCKET, SO_PROTOCOL), IPPROTO_TCP);
    EQUAL(option(fd, SOL_SOCKET, SO_ERROR), 0);
    EQUAL(option(fd, SOL_SOCKET, SO_ACCEPTCONN), 0);
    EQUAL(option(fd, IPPROTO_TCP, TCP_NODELAY), 1);
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &zero, sizeof zero) == 0);
    EQUAL(option(fd, IPPROTO_TCP, TCP_NODELAY), 0);
    echo_rounds(fd, 20, 64);
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size) == 0);
    EQUAL(option(fd, SOL_SOCKET, SO_SNDBUF), 2 * size);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one) == 0);
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &one, sizeof one) == 0);
    order(READ, 100);
    put(fd, 100);
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &zero, sizeof zero) == 0);
    hear();
    struct tcp_info info;
    socklen_t length = sizeof info;
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0);
    EQUAL(info.tcpi_state, TCP_ESTABLISHED);
    struct stat status;
    CHECK(fstat(fd, &status) == 0);
    CHECK(S_ISSOCK(status.st_mode));
    EQUAL(isatty(fd), 0);
    leave(fd);
}

/* SO_ERROR tells a pending error and takes it away. */
static void pending_error(int fd) {
    char byte;
    ask(RESET, 0);
    struct pollfd p = {fd, POLLIN, 0};
    EQUAL(poll(&p, 1, 5000), 1);
    EQUAL(option(fd, SOL_SOCKET, SO_ERROR), ECONNRESET);
    EQUAL(option(fd, SOL_SOCKET, SO_ERROR), 0);
    EQUAL(recv(fd, &byte, 1, 0), 0);
    close(fd);
}

static void wrong_state(int unused) {
    (void)unused;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    char byte;
    ERRNO(recv(fd, &byte, 1, 0), ENOTCONN);
    ERRNO(send(fd, &byte, 1, MSG_NOSIGNAL), EPIPE);
    ERRNO(shutdown(fd, SHUT_WR), ENOTCONN);
    close(fd);
    ERRNO(recv(fd, &byte, 1, 0), EBADF);
    ERRNO(recv(-1, &byte, 1, 0), EBADF);
    ERRNO(read(1 << 30, &byte, 1), EBADF);
    int file = open("/dev/null", O_RDWR);
    ERRNO(recv(file, &byte, 1, 0), ENOTSOCK);
    close(file);
}

static void nothing(int unused) { (void)unused; }

const struct example examples[] = {
    {"readable_bytes", puppet, readable_bytes, 0},
    {"unsent_bytes", puppet, unsent_bytes, 0},
    {"names_v4", puppet, names, 0},
    {"names_v6", puppet, names, V6},
    {"names_mapped", puppet, names, MAPPED},
    {"options", puppet, options, 0},
    {"pending_error", puppet, pending_error, 0},
    {"wrong_state", nothing, wrong_state, RAW | TCP_OK},
    {0},
};

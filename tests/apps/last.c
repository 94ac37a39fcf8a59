/* The last line of a client that ends, at a server that is terminated soon after: `last MILLISECONDS` has it at each stage of a connection's way to another path, and back:
 * after so many round trips, by each way of waiting, with each way to end. Says which were not whole (tests/test_last.py). */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "moving.h"

#define CHECK(cond) ((cond) ? (void)0 : (fprintf(stderr, "last.c:%d: %s: %s\n", __LINE__, #cond, strerror(errno)), _exit(1)))


enum wait { RECV, POLL, SELECT, LEVEL, EDGE, WAITS };
enum end { EXIT, CLOSE, SHUT, KILLED, ENDS };
enum stage { ROUNDS_0, ROUNDS_1, ROUNDS_2, ROUNDS_3, ROUNDS_5, ROUNDS_10, ROUNDS_30, MOVED, GROWN, DEMOTED_BY_WRITER, DEMOTED_BY_READER, STAGES };
static const int rounds_of[] = {0, 1, 2, 3, 5, 10, 30, 100, 100, 100, 100};
static const char line[] = "the last line that there is\n";

static void go_by_tcp(int fd) {
    int one = 1;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_TIMESTAMP, &one, sizeof one) == 0);
}

static void whole(int fd, char *data, int size) {
    for (int have = 0; have < size;) {
        ssize_t n = recv(fd, data + have, size - have, 0);
        CHECK(n > 0);
        have += n;
    }
}

/* The last byte of a round trip says whether another one follows. */
static void client(int port, enum stage stage, enum end how) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    char data[64] = {0};
    static char much[100000];
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    CHECK(connect(fd, (void *)&to, sizeof to) == 0);
    for (int i = rounds_of[stage], tries = 0; i > 0; i--) {
        if (i == 1 && stage >= MOVED && yet_to_move(fd) && ++tries < 2000) i = 10;
        data[63] = i > 1;
        CHECK(send(fd, data, sizeof data, 0) == sizeof data);
        whole(fd, data, sizeof data);
    }
    if (stage == GROWN) CHECK(send(fd, much, sizeof much, 0) == sizeof much);
    if (stage == DEMOTED_BY_WRITER) go_by_tcp(fd);
    CHECK(send(fd, line, sizeof line, 0) == sizeof line);
    if (how == CLOSE) close(fd);
    if (how == SHUT) shutdown(fd, SHUT_WR);
    if (how == KILLED) kill(getpid(), SIGKILL);
    _exit(0);
}

static void server(int listener, enum stage stage, enum wait how, int file) {
    int fd = accept(listener, NULL, NULL), one = 1, set = epoll_create1(0);
    char data[65536];
    CHECK(fd >= 0 && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    for (int more = rounds_of[stage] > 0; more;) {
        whole(fd, data, 64);
        more = data[63];
        CHECK(send(fd, data, 64, 0) == 64);
    }
    if (stage == DEMOTED_BY_READER) go_by_tcp(fd);
    struct epoll_event event = {.events = EPOLLIN | (how == EDGE ? EPOLLET : 0)};
    if (how >= LEVEL) CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    for (;;) {
        struct pollfd place = {fd, POLLIN, 0};
        fd_set in;
        FD_ZERO(&in);
        FD_SET(fd, &in);
        if (how == POLL) CHECK(poll(&place, 1, -1) == 1);
        if (how == SELECT) CHECK(select(fd + 1, &in, NULL, NULL, NULL) == 1);
        if (how >= LEVEL) CHECK(epoll_wait(set, &event, 1, -1) == 1);
        ssize_t n;
        do {
            n = recv(fd, data, sizeof data, how == EDGE ? MSG_DONTWAIT : 0);
            if (n > 0) CHECK(write(file, data, n) == n);
        } while (n > 0 && how == EDGE);
        if (n == 0 || (n < 0 && errno != EAGAIN)) break;
    }
    for (;;) pause(); /* it is to be terminated */
}

static int missing(enum stage stage, enum wait wait, enum end end, double milliseconds) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), file = memfd_create("out", 0), status;
    CHECK(bind(listener, (void *)&address, length) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (void *)&address, &length) == 0);
    pid_t reader = fork();
    if (reader == 0) server(listener, stage, wait, file);
    pid_t writer = fork();
    if (writer == 0) client(ntohs(address.sin_port), stage, end);
    close(listener);
    CHECK(waitpid(writer, &status, 0) == writer);
    usleep(milliseconds * 1000);
    CHECK(kill(reader, SIGTERM) == 0 && waitpid(reader, &status, 0) == reader);
    int missing = (stage == GROWN ? 100000 : 0) + (int)sizeof line - (int)lseek(file, 0, SEEK_END);
    close(file);
    return missing;
}

int main(int argc, char **argv) {
    double milliseconds = argc > 1 ? atof(argv[1]) : 20;
    int only = argc > 2 ? atoi(argv[2]) : -1;
    for (int stage = 0; stage < STAGES; stage++)
        for (int wait = 0; wait < WAITS; wait++)
            for (int end = 0; end < ENDS; end++) {
                int which = (stage * WAITS + wait) * ENDS + end;
                if (only >= 0 && which != only) continue;
                int lost = missing(stage, wait, end, milliseconds);
                if (lost) printf("%d\n", which), fprintf(stderr, "stage %d, wait %d, end %d: %d bytes\n", stage, wait, end, lost), fflush(stdout);
            }
    return 0;
}

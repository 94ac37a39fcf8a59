/* Sends and receives 64 bytes by both ends of a connection, so often, in one thread: `counted HOW ROUNDS`. HOW the ends wait: blocking (by the calls themselves) or epoll.
 * What is received has always been sent before, so nothing sleeps or spins. tests/test_counts.py counts the instructions of the calls in rounds(). */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define CHECK(cond) ((cond) ? (void)0 : (perror(#cond), _exit(1)))
enum { SIZE = 64, MEMORY = 3, TRIES = 100000, EVENTS = 8, PAUSE_US = 60 };

__attribute__((weak)) int shunt_path(int fd);

/* Both directions of both ends. */
static int in_memory(const int *ends) {
    return !shunt_path || (shunt_path(ends[0]) == MEMORY && shunt_path(ends[1]) == MEMORY);
}

/* With what a busy set asks the kernel for now and then: after the pause it always does, however fast the machine is. */
__attribute__((noinline)) static void rounds(const int *ends, int set, long count) {
    char data[SIZE] = {0};
    struct epoll_event events[EVENTS];
    for (long i = 0; i < count; i++)
        for (int from = 0; from < 2; from++) {
            CHECK(send(ends[from], data, SIZE, 0) == SIZE);
            if (set >= 0) usleep(PAUSE_US);
            if (set >= 0) CHECK(epoll_wait(set, events, EVENTS, -1) == 1 && events[0].data.fd == ends[!from]);
            CHECK(recv(ends[!from], data, SIZE, 0) == SIZE);
        }
}

static void connect_ends(int *ends) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    CHECK(bind(listener, (void *)&address, length) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (void *)&address, &length) == 0);
    CHECK((ends[0] = socket(AF_INET, SOCK_STREAM, 0)) >= 0 && connect(ends[0], (void *)&address, length) == 0);
    CHECK((ends[1] = accept(listener, NULL, NULL)) >= 0);
    for (int i = 0; i < 2; i++) CHECK(setsockopt(ends[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    close(listener);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    int ends[2], set = -1;
    connect_ends(ends);
    if (!strcmp(argv[1], "epoll")) {
        CHECK((set = epoll_create1(0)) >= 0);
        for (int i = 0; i < 2; i++) {
            struct epoll_event event = {.events = EPOLLIN, .data.fd = ends[i]};
            CHECK(epoll_ctl(set, EPOLL_CTL_ADD, ends[i], &event) == 0);
        }
    }
    for (int tries = 0; !in_memory(ends); tries++) {
        CHECK(tries < TRIES);
        /* A program that has been seen to wait for them. */
        struct pollfd both[2] = {{ends[0], POLLIN, 0}, {ends[1], POLLIN, 0}};
        CHECK(poll(both, 2, 0) >= 0);
        for (int from = 0; from < 2; from++) {
            char data[SIZE] = {0};
            struct epoll_event event;
            CHECK(send(ends[from], data, SIZE, 0) == SIZE);
            if (set >= 0) CHECK(epoll_wait(set, &event, 1, -1) == 1);
            CHECK(recv(ends[!from], data, SIZE, MSG_WAITALL) == SIZE);
        }
    }
    rounds(ends, set, atol(argv[2]));
    CHECK(in_memory(ends));
    return 0;
}

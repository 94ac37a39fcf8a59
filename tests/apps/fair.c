/* Who is served, and how often, where there are few processors: `fair HOW CLIENTS MILLISECONDS [PROCESSORS]`. A server answers messages of 64 bytes of so many clients, each a
 * process that waits for its answer; HOW it waits: epoll, poll, or recv (one client). PROCESSORS: a digit for the server, then for
 * each client in turn. Says how many round trips each client had. tests/test_fair.py has it on one processor. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(cond) ((cond) ? (void)0 : (perror(#cond), _exit(1)))
enum { MOST = 64, SIZE = 64 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static int whole(int fd, char *data) {
    for (int have = 0; have < SIZE;) {
        ssize_t n = recv(fd, data + have, SIZE - have, 0);
        if (n <= 0) return 0;
        have += n;
    }
    return 1;
}

static void move_to(int cpu) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
}

static void client(int port, volatile uint64_t *rounds, volatile int *go) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    char data[SIZE] = {0};
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    CHECK(connect(fd, (void *)&to, sizeof to) == 0);
    for (;;) {
        if (send(fd, data, SIZE, MSG_NOSIGNAL) != SIZE || !whole(fd, data)) _exit(0);
        if (*go) (*rounds)++;
    }
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    int clients = atoi(argv[2]), one = 1, fds[MOST], set = epoll_create1(0);
    double milliseconds = atof(argv[3]);
    volatile uint64_t *rounds = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    volatile int *go = (volatile int *)&rounds[MOST];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listener, (void *)&address, length) == 0 && listen(listener, MOST) == 0);
    CHECK(getsockname(listener, (void *)&address, &length) == 0);
    pid_t children[MOST];
    if (argc > 4) move_to(argv[4][0] - '0');
    for (int i = 0; i < clients; i++)
        if ((children[i] = fork()) == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (argc > 4) move_to(argv[4][1 + i % (strlen(argv[4]) - 1)] - '0');
            client(ntohs(address.sin_port), &rounds[i], go);
        }
    struct pollfd places[MOST];
    for (int i = 0; i < clients; i++) {
        CHECK((fds[i] = accept(listener, NULL, NULL)) >= 0);
        CHECK(setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fds[i]};
        CHECK(argv[1][0] != 'e' || epoll_ctl(set, EPOLL_CTL_ADD, fds[i], &event) == 0);
        places[i] = (struct pollfd){fds[i], POLLIN, 0};
    }
    /* A third of the time for connections to move. */
    double start = now(), begin = start + milliseconds / 3000, end = start + milliseconds / 1000, last = 0;
    char data[SIZE];
    for (double t; (t = now()) < end;) {
        if (t >= begin && !*go) *go = 1, last = t;
        struct epoll_event events[MOST];
        if (argv[1][0] == 'e') {
            int n = epoll_wait(set, events, MOST, -1);
            CHECK(n > 0);
            for (int i = 0; i < n; i++) CHECK(whole(events[i].data.fd, data) && send(events[i].data.fd, data, SIZE, 0) == SIZE);
        } else if (argv[1][0] == 'p') {
            CHECK(poll(places, clients, -1) > 0);
            for (int i = 0; i < clients; i++)
                if (places[i].revents) CHECK(whole(fds[i], data) && send(fds[i], data, SIZE, 0) == SIZE);
        } else {
            for (int i = 0; i < 50; i++) CHECK(whole(fds[0], data) && send(fds[0], data, SIZE, 0) == SIZE);
        }
    }
    *go = 0;
    double took = now() - last;
    for (int i = 0; i < clients; i++) printf("%.0f ", rounds[i] / took);
    printf("\n");
    for (int i = 0; i < clients; i++) kill(children[i], SIGKILL), waitpid(children[i], NULL, 0);
    return 0;
}

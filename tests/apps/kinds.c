/* Handlers of both kinds in one process: a read that one with SA_RESTART interrupts goes on, one without ends it with EINTR, however long
 * the reader has slept. `kinds MILLISECONDS` says how long that is. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(cond) ((cond) ? (void)0 : (fprintf(stderr, "kinds.c:%d: %s: %s\n", __LINE__, #cond, strerror(errno)), _exit(1)))

enum { ROUNDS = 300, TIMES = 4 };
static volatile sig_atomic_t ran[2];

static void restarts(int signal) {
    (void)signal;
    ran[0]++;
}

static void interrupts(int signal) {
    (void)signal;
    ran[1]++;
}

static void reads(int fd) {
    char byte;
    for (int i = 0; i < TIMES; i++) {
        CHECK(send(fd, "r", 1, 0) == 1);
        CHECK(recv(fd, &byte, 1, 0) == 1 && byte == 'd'); /* through SIGUSR1 */
        CHECK(ran[0] == i + 1 && ran[1] == i);
        CHECK(send(fd, "i", 1, 0) == 1);
        CHECK(recv(fd, &byte, 1, 0) == -1 && errno == EINTR); /* by SIGUSR2 */
        CHECK(ran[0] == i + 1 && ran[1] == i + 1);
    }
}

static void signals(int fd, pid_t reader, int milliseconds) {
    char what;
    while (recv(fd, &what, 1, 0) == 1) {
        usleep(milliseconds * 1000);
        CHECK(kill(reader, what == 'r' ? SIGUSR1 : SIGUSR2) == 0);
        if (what == 'r') {
            usleep(milliseconds * 1000);
            CHECK(send(fd, "d", 1, 0) == 1);
        }
    }
}

int main(int argc, char **argv) {
    int milliseconds = argc > 1 ? atoi(argv[1]) : 10, one = 1;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listener, (void *)&at, len) == 0 && listen(listener, 1) == 0 && getsockname(listener, (void *)&at, &len) == 0);
    struct sigaction action = {.sa_handler = restarts, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    action = (struct sigaction){.sa_handler = interrupts};
    CHECK(sigaction(SIGUSR2, &action, NULL) == 0);
    pid_t reader = fork();
    CHECK(reader >= 0);
    int fd = reader ? accept(listener, NULL, NULL) : socket(AF_INET, SOCK_STREAM, 0);
    CHECK(reader || connect(fd, (void *)&at, len) == 0);
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    for (int i = 0; i < ROUNDS; i++) {
        char byte = 'x';
        CHECK(!reader || send(fd, &byte, 1, 0) == 1);
        CHECK(recv(fd, &byte, 1, 0) == 1);
        CHECK(reader || send(fd, &byte, 1, 0) == 1);
    }
    if (reader == 0) {
        reads(fd);
        _exit(0);
    }
    signals(fd, reader, milliseconds);
    int status;
    CHECK(waitpid(reader, &status, 0) == reader && status == 0);
    return 0;
}

/* Locks survive the death of their holder: children that write, or read, a connection that they share with their parent are killed at any
 * moment, which is most often in the middle of a call, and the parent goes on at once. */
#include "pair.h"

enum { GENERATIONS = 150 };

static pid_t start(void (*work)(int fd, int generation), int fd, int generation) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        work(fd, generation);
        _exit(1); /* they are killed before */
    }
    return child;
}

static void stop(pid_t child, unsigned *seed) {
    struct timespec a_while = {.tv_nsec = 100000 + rand_r(seed) % 1000000};
    int status;
    nanosleep(&a_while, NULL);
    CHECK(kill(child, SIGKILL) == 0);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void write_on(int fd, int generation) {
    char data[40];
    memset(data, generation, sizeof data);
    for (;;) CHECK(send(fd, data, 1 + rand() % sizeof data, MSG_NOSIGNAL) > 0);
}

static void killed_writers(int fd) {
    unsigned seed = 5;
    for (int generation = 1; generation <= GENERATIONS; generation++) {
        stop(start(write_on, fd, generation), &seed);
        double began = now();
        EQUAL(send(fd, "\xff", 1, 0), 1);
        CHECK(now() - began < 2);
    }
    meet();
    close(fd);
}

/* Of each generation some, a 255 of the parent's, then the next one's. */
static void generations(int fd) {
    unsigned char data[4096];
    int generation = 1;
    while (generation <= GENERATIONS) {
        ssize_t got = recv(fd, data, sizeof data, 0);
        CHECK(got > 0);
        for (ssize_t i = 0; i < got; i++) {
            if (data[i] == 255) generation++;
            else EQUAL(data[i], generation);
        }
    }
    EQUAL(generation, GENERATIONS + 1);
    meet();
}

static void take_some(int fd) {
    unsigned char data[64];
    ssize_t got = recv(fd, data, sizeof data, 0);
    CHECK(got > 0);
    for (ssize_t i = 0; i < got; i++) EQUAL(data[i], 170);
}

static void read_on(int fd, int generation) {
    (void)generation;
    for (;;) take_some(fd);
}

static void killed_readers(int fd) {
    unsigned seed = 6;
    for (int generation = 1; generation <= GENERATIONS; generation++) {
        stop(start(read_on, fd, generation), &seed);
        double began = now();
        take_some(fd);
        CHECK(now() - began < 2);
    }
    close(fd);
    meet();
}

static void sender(int fd) {
    char data[1000];
    memset(data, 170, sizeof data);
    while (send(fd, data, sizeof data, MSG_NOSIGNAL) > 0) {}
    CHECK(errno == ECONNRESET || errno == EPIPE);
    meet();
}

const struct example examples[] = {
    {"killed_writers", generations, killed_writers, TCP_OK},
    {"killed_readers", sender, killed_readers, TCP_OK},
    {0},
};

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

/* A stream of numbers, eight bytes each, so that one who knows nothing of what was read before can tell where he is. */
static _Atomic bool flooding;

static void *number_on(void *arg) {
    int fd = *(int *)arg;
    unsigned seed = 7;
    uint64_t numbers[512], next = 1;
    for (;;) {
        int count = flooding ? 512 : 1 + rand_r(&seed) % 16;
        for (int i = 0; i < count; i++) numbers[i] = next++;
        for (size_t done = 0; done < count * sizeof *numbers;) {
            ssize_t n = send(fd, (char *)numbers + done, count * sizeof *numbers - done, MSG_NOSIGNAL);
            if (n < 0) {
                CHECK(errno == ECONNRESET || errno == EPIPE);
                return NULL;
            }
            done += n;
        }
        /* Readers fall asleep, and must be woken. */
        struct timespec a_while = {.tv_nsec = rand_r(&seed) % 50000};
        if (!flooding && rand_r(&seed) % 4 == 0) nanosleep(&a_while, NULL);
    }
}

static void read_any(int fd, int generation) {
    char data[100];
    unsigned seed = generation;
    for (;;) CHECK(recv(fd, data, 1 + rand_r(&seed) % sizeof data, 0) > 0);
}

enum { CONNECTIONS = 8, DEATHS = 25, FLOOD = 2 << 20 };

static void numbers(int listener) {
    for (int i = 0; i < CONNECTIONS; i++) {
        int fd = answer(listener);
        warm_server(fd);
        flooding = false;
        pthread_t writer;
        CHECK(pthread_create(&writer, NULL, number_on, &fd) == 0);
        hear();
        flooding = true;
        CHECK(pthread_join(writer, NULL) == 0);
        close(fd);
    }
}

/* The place in the stream behind these bytes, which must be of one piece. */
static uint64_t place(const char *data, size_t length) {
    for (size_t skip = 0; skip < 8; skip++) {
        uint64_t first, next;
        memcpy(&first, data + skip, 8);
        memcpy(&next, data + skip + 8, 8);
        if (next == first + 1 && first >> 40 == 0) return (first - 1) * 8 - skip + length;
    }
    fail(__FILE__, __LINE__, "there are two numbers in sequence", 0, 0);
}

static void follow(int fd, uint64_t *at, size_t length) {
    char data[4096];
    for (size_t done = 0; done < length;) {
        ssize_t n = recv(fd, data, sizeof data < length - done ? sizeof data : length - done, 0);
        CHECK(n > 0);
        for (ssize_t i = 0; i < n; i++, ++*at) {
            uint64_t number = *at / 8 + 1;
            EQUAL((unsigned char)data[i], (unsigned char)(number >> *at % 8 * 8));
        }
        done += n;
    }
}

/* They die while they take what wakes them, and before and while the connection changes its path: what comes later is whole. */
static void killed_asleep(int none) {
    (void)none;
    unsigned seed = 8;
    for (int i = 0; i < CONNECTIONS; i++) {
        int fd = dial();
        warm_client(fd);
        uint64_t at = 0;
        for (int death = 1; death <= DEATHS; death++) {
            stop(start(read_any, fd, death), &seed);
            char data[64];
            recv_all(fd, data, sizeof data);
            uint64_t now_at = place(data, sizeof data);
            CHECK(now_at >= at + sizeof data);
            at = now_at;
            follow(fd, &at, 1000);
        }
        tell(0);
        struct timespec long_enough = {.tv_nsec = 60000000};
        nanosleep(&long_enough, NULL);
        follow(fd, &at, FLOOD);
        close(fd);
    }
}

const struct example examples[] = {
    {"killed_writers", generations, killed_writers, TCP_OK},
    {"killed_readers", sender, killed_readers, TCP_OK},
    {"killed_asleep", numbers, killed_asleep, RAW | TCP_OK},
    {0},
};

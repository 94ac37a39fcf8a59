/* Descriptor numbers belong to the program: new ones are the lowest free; a program may close all it does not know, put its own on
 * any number, and run into RLIMIT_NOFILE. The library's own descriptors must not show, and must not be missed when they go. */
#include "pair.h"
#include <dirent.h>

/* The second channel (pair.c) is the test's own. */
enum { CONTROL = 900 };

static void lowest(int fd) {
    for (int i = 0; i < 50; i++) {
        int one = open("/dev/null", O_RDONLY), two = socket(AF_INET, SOCK_STREAM, 0), pipes[2];
        CHECK(pipe(pipes) == 0);
        EQUAL(one, fd + 1);
        EQUAL(two, fd + 2);
        EQUAL(pipes[0], fd + 3);
        EQUAL(pipes[1], fd + 4);
        close(one);
        EQUAL(dup(fd), one);
        close(one), close(two), close(pipes[0]), close(pipes[1]);
        echo_rounds(fd, 10, 100);
    }
    leave(fd);
}

static void lowest_accept_server(int listener) {
    int fds[20];
    for (int i = 0; i < 20; i++) {
        fds[i] = answer(listener);
        if (i > 0) EQUAL(fds[i], fds[i - 1] + 1);
        warm_server(fds[i]);
    }
    close(fds[3]);
    tell(0);
    int again = answer(listener);
    EQUAL(again, fds[3]);
    puppet(again);
    char byte;
    for (int i = 0; i < 20; i++)
        if (i != 3) EQUAL(recv(fds[i], &byte, 1, 0), 0);
}

static void lowest_accept_client(int unused) {
    (void)unused;
    int fds[20];
    for (int i = 0; i < 20; i++) {
        fds[i] = dial();
        if (i > 0) EQUAL(fds[i], fds[i - 1] + 1);
        expect_lowest(i);
        warm_client(fds[i]);
    }
    hear();
    close(fds[5]);
    int again = dial();
    EQUAL(again, fds[5]);
    echo_rounds(again, 400, 100);
    leave(again);
}

/* Daemons close everything they do not know. */
static void close_others(int fd) {
    for (int other = 3; other < 1100; other++)
        if (other != fd && other != CONTROL) close(other);
    echo_rounds(fd, 500, 100);
    leave(fd);
}

static void close_ranges(int fd) {
    CHECK(dup2(fd, 3) == 3);
    if (fd != 3) close(fd);
    CHECK(close_range(4, CONTROL - 1, 0) == 0);
    CHECK(close_range(CONTROL + 1, ~0u, 0) == 0);
    echo_rounds(3, 500, 100);
    leave(3);
}

/* Everything that /proc/self/fd lists, as Python's subprocess and many more do; and closefrom(). */
static void close_listed(int fd) {
    DIR *dir = opendir("/proc/self/fd");
    struct dirent *entry;
    int listed[2000], count = 0;
    while ((entry = readdir(dir)) != NULL) listed[count++] = atoi(entry->d_name);
    closedir(dir);
    for (int i = 0; i < count; i++)
        if (listed[i] > 2 && listed[i] != fd && listed[i] != CONTROL) close(listed[i]);
    echo_rounds(fd, 500, 100);
    dup2(fd, CONTROL + 1);
    close(fd);
    closefrom(CONTROL + 2);
    echo_rounds(CONTROL + 1, 200, 100);
    leave(CONTROL + 1);
}

static void close_others_server(int fd) {
    for (int other = 3; other < 1100; other++)
        if (other != fd && other != CONTROL) close(other);
    puppet(fd);
}

/* The program's descriptors on every number there is. */
static void every_number(int fd) {
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    int top = limit.rlim_cur < 1024 ? (int)limit.rlim_cur : 1024;
    for (int number = 3; number < top; number++)
        if (number != fd && number != CONTROL) EQUAL(dup2(fd, number), number);
    echo_rounds(fd, 300, 100);
    echo_rounds(top - 1, 300, 100);
    for (int number = 3; number < top; number++)
        if (number != fd && number != CONTROL) CHECK(close(number) == 0);
    echo_rounds(fd, 300, 100);
    leave(fd);
}

/* No descriptor is left: calls that need one say EMFILE, the connection works; connections accepted in the last numbers work. */
static void none_left(int fd) {
    struct rlimit limit, small = {40, 0};
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    small.rlim_max = limit.rlim_max;
    int fds[64], count = 0;
    CHECK(setrlimit(RLIMIT_NOFILE, &small) == 0);
    while ((fds[count] = open("/dev/null", O_RDONLY)) >= 0) count++;
    EQUAL(errno, EMFILE);
    EQUAL(count, 40 - 1 - fd);
    ERRNO(socket(AF_INET, SOCK_STREAM, 0), EMFILE);
    ERRNO(dup(fd), EMFILE);
    ERRNO(epoll_create1(0), EMFILE);
    echo_rounds(fd, 500, 100);
    order(SEND_ASLEEP, 100);
    take(fd, 100);
    for (int i = 0; i < count; i++) close(fds[i]);
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    leave(fd);
}

/* The limit is low before the connection is made: exactly one number is free for it. */
static void last_number_client(int unused) {
    (void)unused;
    struct rlimit limit, small = {30, 0};
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    small.rlim_max = limit.rlim_max;
    CHECK(setrlimit(RLIMIT_NOFILE, &small) == 0);
    int last = -1, n;
    while ((n = open("/dev/null", O_RDONLY)) >= 0) last = n;
    close(last);
    int fd = dial();
    EQUAL(fd, last);
    warm_client(fd);
    echo_rounds(fd, 500, 100);
    leave(fd);
    EQUAL(socket(AF_INET, SOCK_STREAM, 0), last);
}

/* The usual limit: all its numbers are the program's. */
static void every_usual_number(int unused) {
    (void)unused;
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    if (limit.rlim_cur > 1024) limit.rlim_cur = 1024;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    int fd = dial();
    warm_client(fd);
    every_number(fd);
    struct rlimit now;
    CHECK(getrlimit(RLIMIT_NOFILE, &now) == 0);
    EQUAL(now.rlim_cur, limit.rlim_cur);
    EQUAL(now.rlim_max, limit.rlim_max);
}

const struct example examples[] = {
    {"lowest", puppet, lowest, 0},
    {"lowest_accept", lowest_accept_server, lowest_accept_client, RAW},
    {"close_others", puppet, close_others, 0},
    {"close_others_both", close_others_server, close_others, 0},
    {"close_ranges", puppet, close_ranges, 0},
    {"close_listed", puppet, close_listed, 0},
    {"every_number", puppet, every_number, 0},
    {"every_usual_number", puppet_when_warm, every_usual_number, RAW},
    {"none_left", puppet, none_left, 0},
    {"last_number", puppet_when_warm, last_number_client, RAW},
    {0},
};

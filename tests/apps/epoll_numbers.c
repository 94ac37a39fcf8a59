/* Numbers of members of epoll sets: several of one connection, given to another, closed by a child or beside a thread that asks. */
#include "epoll_sets.h"

/* Each number of a connection is a member of its own, however many there are when it moves to memory. */
static void many_numbers(int unused) {
    enum { NUMBERS = 20 };
    (void)unused;
    int fd = dial(), set = epoll_create1(0), others[NUMBERS - 1];
    add(set, fd, EPOLLIN);
    for (int i = 0; i < NUMBERS - 1; i++) add(set, others[i] = dup(fd), EPOLLIN);
    struct epoll_event events[NUMBERS + 1];
    EQUAL(epoll_wait(set, events, NUMBERS + 1, 0), 0);
    warm_client(fd);
    for (int i = 0; i < 5; i++) {
        EQUAL(epoll_wait(set, events, NUMBERS + 1, 0), 0);
        ask(SEND, 10);
        wait_queued(fd, 10);
        EQUAL(epoll_wait(set, events, NUMBERS + 1, 1000), NUMBERS);
        take(fd, 10);
        order(SEND_ASLEEP, 10);
        CHECK(epoll_wait(set, events, NUMBERS + 1, 20000) > 0);
        take(fd, 10);
    }
    close(set);
    for (int i = 0; i < NUMBERS - 1; i++) close(others[i]);
    leave(fd);
}

/* The number that a member was added by is closed, while another one lives on, and stands for the connection again: it still is a member. */
static void number_again(int fd) {
    int set = epoll_create1(0), first = dup(fd);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = 77};
    CHECK(first >= 0);
    ask(SEND, 10);
    wait_queued(fd, 10);
    EQUAL(epoll_ctl(set, EPOLL_CTL_ADD, first, &event), 0);
    close(first);
    EQUAL(dup(fd), first);
    ERRNO(epoll_ctl(set, EPOLL_CTL_ADD, first, &event), EEXIST);
    event.data.fd = 78;
    EQUAL(epoll_ctl(set, EPOLL_CTL_MOD, first, &event), 0);
    take(fd, 10);
    order(SEND_ASLEEP, 10);
    EQUAL(epoll_wait(set, &event, 1, 5000), 1);
    EQUAL(event.data.fd, 78);
    take(fd, 10);
    EQUAL(epoll_ctl(set, EPOLL_CTL_DEL, first, NULL), 0);
    ask(SEND, 10);
    EQUAL(epoll_wait(set, &event, 1, 20), 0);
    take(fd, 10);
    close(set), close(first);
    leave(fd);
}

/* A child closes one of its two numbers of a member: what the parent registers after that counts. */
static void child_closes_number(int fd) {
    int set = epoll_create1(0), other = dup(fd);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.fd = 77};
    CHECK(other >= 0);
    EQUAL(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
    EQUAL(epoll_wait(set, &event, 1, 0), 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        close(fd);
        _exit(0);
    }
    ended_well(child);
    event.events = EPOLLIN;
    event.data.fd = 78;
    EQUAL(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event), 0);
    for (int i = 0; i < 5; i++) {
        order(SEND_ASLEEP, 10);
        EQUAL(epoll_wait(set, &event, 1, 5000), 1);
        EQUAL(event.data.fd, 78);
        EQUAL(event.events, EPOLLIN);
        take(fd, 10);
    }
    close(set), close(other);
    leave(fd);
}

/* A child closes its parent's set; then the parent closes one of two numbers of a member: it stays one. */
static void child_closes_set_before_number(int fd) {
    int set = epoll_create1(0);
    struct epoll_event event;
    add(set, fd, EPOLLIN);
    EQUAL(epoll_wait(set, &event, 1, 0), 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        close(set);
        _exit(0);
    }
    ended_well(child);
    int other = dup(fd);
    CHECK(other >= 0);
    ask(SEND, 10);
    wait_queued(fd, 10);
    close(fd);
    for (int i = 0; i < 3; i++) EQUAL(epoll_wait(set, &event, 1, 1000), 1);
    take(other, 10);
    EQUAL(epoll_wait(set, &event, 1, 0), 0);
    order(SEND_ASLEEP, 10);
    EQUAL(epoll_wait(set, &event, 1, 5000), 1);
    take(other, 10);
    close(set);
    leave(other);
}

/* A child asks the set that it has from its parent: the parent is told of the same as before. */
static void child_asks(int fd) {
    int set = epoll_create1(0), second = epoll_create1(0);
    struct epoll_event event;
    add(set, fd, EPOLLIN);
    add(second, fd, EPOLLIN | EPOLLET);
    EQUAL(epoll_wait(set, &event, 1, 0), 0);
    EQUAL(epoll_wait(second, &event, 1, 0), 0);
    for (int i = 0; i < 5; i++) {
        ask(SEND, 10);
        wait_queued(fd, 10);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            for (int again = 0; again < 3; again++) EQUAL(epoll_wait(set, &event, 1, 0), 1);
            _exit(0);
        }
        ended_well(child);
        EQUAL(epoll_wait(set, &event, 1, 0), 1);
        EQUAL(event.data.fd, fd);
        take(fd, 10);
        EQUAL(epoll_wait(set, &event, 1, 0), 0);
    }
    close(set), close(second);
    leave(fd);
}

/* A thread asks a set all the time while one of two numbers of a member is closed: it stays a member, with what is unread. */
static int asked_set;
static atomic_int asked_enough;
static void *asks(void *unused) {
    (void)unused;
    struct epoll_event event;
    while (!asked_enough) CHECK(epoll_wait(asked_set, &event, 1, 0) >= 0);
    return NULL;
}

static void closed_while_asked(int fd) {
    pthread_t thread;
    int other = dup(fd);
    struct epoll_event event;
    asked_set = epoll_create1(0);
    add(asked_set, fd, EPOLLIN);
    ask(SEND, 10);
    wait_queued(fd, 10);
    CHECK(pthread_create(&thread, NULL, asks, NULL) == 0);
    usleep(1000);
    close(fd);
    asked_enough = 1;
    CHECK(pthread_join(thread, NULL) == 0);
    for (int i = 0; i < 3; i++) EQUAL(epoll_wait(asked_set, &event, 1, 1000), 1);
    take(other, 10);
    EQUAL(epoll_wait(asked_set, &event, 1, 0), 0);
    ask(SEND, 10);
    EQUAL(epoll_wait(asked_set, &event, 1, 5000), 1);
    take(other, 10);
    close(asked_set);
    leave(other);
}

const struct example examples[] = {
    {"number_again", puppet, number_again, 0},
    {"child_closes_number", puppet, child_closes_number, 0},
    {"child_closes_set_before_number", puppet, child_closes_set_before_number, 0},
    {"child_asks", puppet, child_asks, 0},
    {"closed_while_asked", puppet, closed_while_asked, 0},
    {"many_numbers", puppet_when_warm, many_numbers, RAW},
    {0},
};

/* Epoll sets inside sets, and inside poll: level and edge, one-shot, with time limits, changed while a thread sleeps on the outer one. */
#include "epoll_sets.h"
#include <sys/eventfd.h>

static void nested(int fd) {
    int inner = epoll_create1(0), outer = epoll_create1(0), outermost = epoll_create1(0);
    struct epoll_event event;
    add(inner, fd, EPOLLIN);
    add(outer, inner, EPOLLIN);
    add(outermost, outer, EPOLLIN);
    for (int i = 0; i < 20; i++) {
        int set = i % 2 ? outer : outermost;
        EQUAL(epoll_wait(set, &event, 1, 0), 0);
        order(SEND_ASLEEP, 10);
        EQUAL(epoll_wait(set, &event, 1, 20000), 1);
        EQUAL(event.data.fd, i % 2 ? inner : outer);
        EQUAL(epoll_wait(inner, &event, 1, 5000), 1);
        EQUAL(event.data.fd, fd);
        take(fd, 10);
        EQUAL(epoll_wait(set, &event, 1, 0), 0);
    }
    close(inner), close(outer), close(outermost);
    leave(fd);
}

static void inside_poll(int fd) {
    int set = epoll_create1(0);
    struct epoll_event event;
    add(set, fd, EPOLLIN);
    for (int i = 0; i < 20; i++) {
        struct pollfd p = {set, POLLIN, 0};
        EQUAL(poll(&p, 1, 0), 0);
        order(SEND_ASLEEP, 10);
        if (i % 2) {
            EQUAL(poll(&p, 1, 20000), 1);
            EQUAL(p.revents, POLLIN);
        } else {
            fd_set in;
            FD_ZERO(&in);
            FD_SET(set, &in);
            struct timeval t = {20, 0};
            EQUAL(select(set + 1, &in, NULL, NULL, &t), 1);
        }
        EQUAL(epoll_wait(set, &event, 1, 5000), 1);
        EQUAL(event.data.fd, fd);
        take(fd, 10);
    }
    close(set);
    leave(fd);
}

/* A thread adds to, changes and removes from the set in which another sleeps. */
static int slept_set, slept_fd;
static void *waiter(void *unused) {
    (void)unused;
    struct epoll_event event;
    EQUAL(epoll_wait(slept_set, &event, 1, 20000), 1);
    EQUAL(event.data.fd, slept_fd);
    return NULL;
}

static void added_while_asleep(int fd) {
    for (int i = 0; i < 10; i++) {
        pthread_t thread;
        slept_set = epoll_create1(0);
        slept_fd = fd;
        if (i % 2) add(slept_set, fd, 0);
        ask(SEND, 10);
        CHECK(pthread_create(&thread, NULL, waiter, NULL) == 0);
        usleep(1000 * (i % 3)); /* before or after the thread sleeps: both must do */
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        CHECK(epoll_ctl(slept_set, i % 2 ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
        take(fd, 10);
        close(slept_set);
    }
    leave(fd);
}

/* What is ready and stays so is told by the outer set, and by poll, as often as they are asked. */
static void nested_level(int fd) {
    int inner = epoll_create1(0), outer = epoll_create1(0);
    struct epoll_event event;
    add(inner, fd, EPOLLIN);
    add(outer, inner, EPOLLIN);
    for (int i = 0; i < 10; i++) {
        struct pollfd p = {outer, POLLIN, 0}, q = {inner, POLLIN, 0};
        order(SEND_ASLEEP, 10);
        EQUAL(epoll_wait(outer, &event, 1, 20000), 1);
        for (int again = 0; again < 5; again++) {
            EQUAL(epoll_wait(outer, &event, 1, again % 2 ? 0 : 5000), 1);
            EQUAL(event.data.fd, inner);
            EQUAL(epoll_wait(inner, &event, 1, again % 2 ? 0 : 5000), 1);
            EQUAL(event.data.fd, fd);
            EQUAL(poll(&p, 1, again % 2 ? 0 : 5000), 1);
            EQUAL(poll(&q, 1, again % 2 ? 0 : 5000), 1);
            if (again % 2) take(fd, 3);
        }
        take(fd, 4);
        EQUAL(epoll_wait(outer, &event, 1, 0), 0);
        EQUAL(poll(&p, 1, 0), 0);
        EQUAL(poll(&q, 1, 0), 0);
        ask(SEND, 10);
        EQUAL(poll(&p, 1, 5000), 1);
        EQUAL(epoll_wait(inner, &event, 1, 0), 1);
        take(fd, 10);
        EQUAL(epoll_wait(inner, &event, 1, 0), 0);
        EQUAL(epoll_wait(outer, &event, 1, 0), 0);
    }
    close(inner), close(outer);
    leave(fd);
}

/* The outer set is asked, and the inner one by poll, without waiting, over and over, while a message comes and after it was read. */
static void nested_busy(int fd) {
    int inner = epoll_create1(0), outer = epoll_create1(0);
    struct epoll_event event;
    add(inner, fd, EPOLLIN);
    add(outer, inner, EPOLLIN);
    for (int i = 0; i < 200; i++) {
        struct pollfd p = {inner, POLLIN, 0};
        order(SEND, 10);
        double start = now();
        while (i % 2 ? poll(&p, 1, 0) == 0 : epoll_wait(outer, &event, 1, 0) == 0) CHECK(now() - start < 20);
        EQUAL(epoll_wait(inner, &event, 1, 0), 1);
        take(fd, 10);
        for (int again = 0; again < 20; again++) EQUAL(i % 2 ? poll(&p, 1, 0) : epoll_wait(outer, &event, 1, 0), 0);
        hear();
    }
    close(inner), close(outer);
    leave(fd);
}

/* The inner set is edge-triggered in the outer one: each arrival is an edge, also when the bytes before are still unread. */
static void nested_edge(int fd) {
    int inner = epoll_create1(0), outer = epoll_create1(0);
    struct epoll_event event;
    add(inner, fd, EPOLLIN);
    add(outer, inner, EPOLLIN | EPOLLET);
    for (int i = 0; i < 10; i++) {
        EQUAL(epoll_wait(outer, &event, 1, 0), 0);
        order(SEND_ASLEEP, 10);
        EQUAL(epoll_wait(outer, &event, 1, 20000), 1);
        EQUAL(event.data.fd, inner);
        EQUAL(epoll_wait(outer, &event, 1, 0), 0);
        EQUAL(epoll_wait(outer, &event, 1, 20), 0);
        if (i % 2) {
            EQUAL(epoll_wait(inner, &event, 1, 0), 1);
            take(fd, 3);
        }
        order(SEND_ASLEEP, 10);
        EQUAL(epoll_wait(outer, &event, 1, 20000), 1);
        EQUAL(epoll_wait(inner, &event, 1, 5000), 1);
        EQUAL(event.data.fd, fd);
        take(fd, i % 2 ? 17 : 20);
        EQUAL(epoll_wait(inner, &event, 1, 0), 0);
        EQUAL(epoll_wait(outer, &event, 1, 0), 0);
    }
    close(inner), close(outer);
    leave(fd);
}

/* The connection is edge-triggered in the inner set: once reported there, the outer set is quiet until more comes. */
static void nested_edge_member(int fd) {
    int inner = epoll_create1(0), outer = epoll_create1(0);
    struct epoll_event event;
    add(inner, fd, EPOLLIN | EPOLLET);
    add(outer, inner, EPOLLIN);
    for (int i = 0; i < 10; i++) {
        struct pollfd p = {inner, POLLIN, 0};
        EQUAL(epoll_wait(outer, &event, 1, 0), 0);
        order(SEND_ASLEEP, 10);
        EQUAL(epoll_wait(outer, &event, 1, 20000), 1);
        EQUAL(epoll_wait(outer, &event, 1, 0), 1);
        EQUAL(poll(&p, 1, 0), 1);
        EQUAL(epoll_wait(inner, &event, 1, 0), 1);
        EQUAL(event.data.fd, fd);
        EQUAL(epoll_wait(outer, &event, 1, 0), 0);
        EQUAL(poll(&p, 1, 0), 0);
        if (i % 2) take(fd, 10);
        order(SEND_ASLEEP, 10);
        EQUAL(poll(&p, 1, 20000), 1);
        EQUAL(epoll_wait(outer, &event, 1, 0), 1);
        take(fd, i % 2 ? 10 : 20);
        EQUAL(epoll_wait(outer, &event, 1, 0), 0); /* read without having been reported: not ready any more */
        EQUAL(epoll_wait(inner, &event, 1, 0), 0);
    }
    close(inner), close(outer);
    leave(fd);
}

/* The inner set is one-shot in the outer one; and it is put in when it is ready already. */
static void nested_one_shot(int fd) {
    int inner = epoll_create1(0);
    struct epoll_event event;
    add(inner, fd, EPOLLIN);
    for (int i = 0; i < 10; i++) {
        int outer = epoll_create1(0);
        if (i % 2) ask(SEND, 10);
        add(outer, inner, EPOLLIN | EPOLLONESHOT);
        if (!(i % 2)) order(SEND_ASLEEP, 10);
        EQUAL(epoll_wait(outer, &event, 1, 20000), 1);
        EQUAL(event.data.fd, inner);
        EQUAL(epoll_wait(outer, &event, 1, 0), 0);
        ask(SEND, 10);
        EQUAL(epoll_wait(outer, &event, 1, 10), 0);
        event = (struct epoll_event){.events = EPOLLIN | EPOLLONESHOT, .data.fd = 77};
        CHECK(epoll_ctl(outer, EPOLL_CTL_MOD, inner, &event) == 0);
        EQUAL(epoll_wait(outer, &event, 1, 5000), 1);
        EQUAL(event.data.fd, 77);
        take(fd, 20);
        event = (struct epoll_event){.events = EPOLLIN | EPOLLONESHOT, .data.fd = 78};
        CHECK(epoll_ctl(outer, EPOLL_CTL_MOD, inner, &event) == 0);
        EQUAL(epoll_wait(outer, &event, 1, 0), 0);
        order(SEND_ASLEEP, 10);
        EQUAL(epoll_wait(outer, &event, 1, 20000), 1);
        EQUAL(event.data.fd, 78);
        take(fd, 10);
        close(outer);
    }
    close(inner);
    leave(fd);
}

/* Nothing comes: the whole time is waited, not more, whatever was pending; then other members of both sets are told. */
static void nested_timeout(int fd) {
    int pipes[2], inner = epoll_create1(0), outer = epoll_create1(0), event_fd = eventfd(0, EFD_NONBLOCK);
    struct epoll_event events[4];
    uint64_t value = 1;
    char byte;
    CHECK(pipe(pipes) == 0);
    add(inner, fd, EPOLLIN);
    add(inner, pipes[0], EPOLLIN);
    add(outer, inner, EPOLLIN);
    add(outer, event_fd, EPOLLIN);
    for (int i = 0; i < 10; i++) {
        struct pollfd p[3] = {{inner, POLLIN, 0}, {outer, POLLIN, 0}, {fd, POLLIN, 0}};
        ask(SEND, 10);
        EQUAL(epoll_wait(outer, events, 4, 5000), 1);
        EQUAL(poll(p, 3, 5000), 3);
        take(fd, 10);
        double start = now();
        EQUAL(i % 2 ? epoll_wait(outer, events, 4, 40) : poll(p, 2 + i % 4 / 2, 40), 0);
        double waited = now() - start;
        CHECK(waited >= 0.039 && waited < 2);
        write(pipes[1], "x", 1);
        EQUAL(poll(p, 3, 5000), 2);
        CHECK(p[0].revents == POLLIN && p[1].revents == POLLIN && p[2].revents == 0);
        EQUAL(epoll_wait(outer, events, 4, 5000), 1);
        EQUAL(events[0].data.fd, inner);
        only(inner, pipes[0], 5000);
        read(pipes[0], &byte, 1);
        write(event_fd, &value, 8);
        only(outer, event_fd, 5000);
        EQUAL(poll(p, 3, 5000), 1);
        CHECK(p[1].revents == POLLIN);
        read(event_fd, &value, 8);
        value = 1;
        EQUAL(poll(p, 3, 0), 0);
    }
    close(inner), close(outer);
    leave(fd);
}

/* A thread sleeps on the outer set, or in poll on the inner one, while the connection is added, changed, or has room again. */
static int slept_outer, slept_how;
static void *outer_waiter(void *unused) {
    (void)unused;
    struct epoll_event event;
    struct pollfd p = {slept_how ? slept_outer : slept_set, POLLIN, 0};
    if (slept_how == 2) {
        EQUAL(epoll_wait(slept_outer, &event, 1, 20000), 1);
        EQUAL(event.data.fd, slept_set);
    } else {
        EQUAL(poll(&p, 1, 20000), 1);
    }
    return NULL;
}

static void nested_changed_while_asleep(int fd) {
    for (int i = 0; i < 24; i++) {
        pthread_t thread;
        slept_set = epoll_create1(0);
        slept_outer = epoll_create1(0);
        slept_fd = fd;
        slept_how = i % 3;
        if (i & 8) add(slept_outer, slept_set, EPOLLIN);
        if (i & 1) add(slept_set, fd, 0);
        if (!(i & 8)) add(slept_outer, slept_set, EPOLLIN);
        bool send = i & 2;
        if (send) ask(SEND, 10);
        CHECK(pthread_create(&thread, NULL, outer_waiter, NULL) == 0);
        usleep(1000 * (i % 4)); /* before or after the thread sleeps: both must do */
        struct epoll_event event = {.events = send ? EPOLLIN : EPOLLOUT, .data.fd = fd};
        CHECK(epoll_ctl(slept_set, i & 1 ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
        if (send) take(fd, 10);
        close(slept_set), close(slept_outer);
    }
    leave(fd);
}

/* Likewise, through an outer set and in poll. */
static void nested_across_fork(int fd) {
    int inner = epoll_create1(0), outer = epoll_create1(0);
    struct epoll_event event;
    add(inner, fd, EPOLLIN);
    add(outer, inner, EPOLLIN);
    ask(SEND, 10);
    EQUAL(epoll_wait(outer, &event, 1, 5000), 1);
    take(fd, 10);
    for (int i = 0; i < 6; i++) {
        struct pollfd p = {inner, POLLIN, 0};
        bool unread = i % 3 == 2;
        if (unread) ask(SEND, 10);
        if (i % 3) EQUAL(epoll_wait(outer, &event, 1, 0), unread);
        pid_t child = fork();
        if (child == 0) {
            EQUAL(poll(&p, 1, 0), unread);
            if (!unread) order(SEND_ASLEEP, 10);
            EQUAL(epoll_wait(outer, &event, 1, 20000), 1);
            EQUAL(event.data.fd, inner);
            EQUAL(epoll_wait(inner, &event, 1, 5000), 1);
            take(fd, 10);
            EQUAL(epoll_wait(outer, &event, 1, 0), 0);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        EQUAL(status, 0);
        got += 10;
        EQUAL(epoll_wait(outer, &event, 1, 0), 0);
        order(SEND_ASLEEP, 10);
        EQUAL(i % 2 ? epoll_wait(outer, &event, 1, 20000) : poll(&p, 1, 20000), 1);
        EQUAL(epoll_wait(outer, &event, 1, 0), 1);
        take(fd, 10);
    }
    close(inner), close(outer);
    leave(fd);
}

/* A member in a set in a set is ready; the number that it was added by is closed, another one lives on: it stays ready, for whoever asks
 * for one event only, as often as it is asked. */
static void nested_renumbered(int fd) {
    int set = epoll_create1(0), outer = epoll_create1(0);
    struct epoll_event event;
    add(set, fd, EPOLLIN);
    add(outer, set, EPOLLIN);
    ask(SEND, 100);
    wait_queued(fd, 100);
    int other = dup(fd);
    CHECK(other >= 0);
    close(fd);
    for (int i = 0; i < 4; i++) {
        EQUAL(epoll_wait(set, &event, 1, 0), 1);
        EQUAL(epoll_wait(outer, &event, 1, 0), 1);
    }
    take(other, 100);
    for (int i = 0; i < 4; i++) {
        EQUAL(epoll_wait(set, &event, 1, 0), 0);
        EQUAL(epoll_wait(outer, &event, 1, 0), 0);
    }
    close(set);
    close(outer);
    leave(other);
}

const struct example examples[] = {
    {"nested_renumbered", puppet, nested_renumbered, 0},
    {"nested", puppet, nested, 0},
    {"nested_level", puppet, nested_level, 0},
    {"nested_busy", puppet, nested_busy, 0},
    {"nested_edge", puppet, nested_edge, 0},
    {"nested_edge_member", puppet, nested_edge_member, 0},
    {"nested_one_shot", puppet, nested_one_shot, 0},
    {"nested_timeout", puppet, nested_timeout, 0},
    {"nested_changed_while_asleep", puppet, nested_changed_while_asleep, 0},
    {"inside_poll", puppet, inside_poll, 0},
    {"added_while_asleep", puppet, added_while_asleep, 0},
    {"nested_across_fork", puppet, nested_across_fork, 0},
    {0},
};

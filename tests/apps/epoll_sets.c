/* epoll sets with more in them: many threads on one set, all kinds of descriptors in one set, sets inside sets and inside poll,
 * sets that were made before fork(). */
#include "pair.h"
#include <sys/eventfd.h>
#include <sys/timerfd.h>

static void add(int set, int fd, uint32_t events) {
    struct epoll_event event = {.events = events, .data.fd = fd};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
}

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

static void warm_puppet(int listener) {
    int fd = answer(listener);
    warm_server(fd);
    puppet(fd);
}

/* ---- a server: THREADS threads wait on one set for CONNECTIONS connections ---- */

enum { THREADS = 4, CONNECTIONS = 32, REQUESTS = 400, SIZE = 300 };
static int shared_set, outer_set = -1, stop_fd;
static uint32_t shared_mode;
static atomic_int closed_connections;
static struct state {
    pthread_mutex_t mutex;
    char data[SIZE];
    size_t have;
} states[1024];

static void serve_ready(int fd) {
    struct state *s = &states[fd];
    pthread_mutex_lock(&s->mutex);
    for (;;) {
        ssize_t n = recv(fd, s->data + s->have, SIZE - s->have, MSG_DONTWAIT);
        if (n < 0) {
            EQUAL(errno, EAGAIN);
            break;
        }
        if (n == 0) {
            CHECK(epoll_ctl(shared_set, EPOLL_CTL_DEL, fd, NULL) == 0 || errno == ENOENT || errno == EBADF);
            if (shutdown(fd, SHUT_RDWR) == 0 || errno == ENOTCONN) {
                if (s->have != SIZE + 1) atomic_fetch_add(&closed_connections, 1);
                s->have = SIZE + 1;
            }
            break;
        }
        s->have += n;
        if (s->have == SIZE) {
            send_all(fd, s->data, SIZE);
            s->have = 0;
        }
        if (!(shared_mode & EPOLLET)) break;
    }
    if (shared_mode & EPOLLONESHOT && s->have <= SIZE) {
        struct epoll_event event = {.events = EPOLLIN | shared_mode, .data.fd = fd};
        CHECK(epoll_ctl(shared_set, EPOLL_CTL_MOD, fd, &event) == 0);
    }
    pthread_mutex_unlock(&s->mutex);
}

static void *serve_thread(void *unused) {
    (void)unused;
    for (;;) {
        struct epoll_event events[8];
        int n;
        if (outer_set >= 0) {
            EQUAL(epoll_wait(outer_set, events, 1, -1), 1);
            EQUAL(events[0].data.fd, shared_set);
            n = epoll_wait(shared_set, events, 8, 0); /* another thread may have taken it */
            CHECK(n >= 0);
        } else {
            n = epoll_wait(shared_set, events, 8, -1);
            CHECK(n > 0);
        }
        for (int i = 0; i < n; i++) {
            if (events[i].data.fd == stop_fd) return NULL;
            struct state *s = &states[events[i].data.fd];
            if (s->have <= SIZE) serve_ready(events[i].data.fd);
        }
        if (closed_connections == CONNECTIONS) {
            uint64_t one = 1;
            write(stop_fd, &one, 8);
        }
    }
}

static void threads_server(int listener, uint32_t mode) {
    pthread_t threads[THREADS];
    int fds[CONNECTIONS];
    shared_mode = mode;
    shared_set = epoll_create1(0);
    stop_fd = eventfd(0, 0);
    add(shared_set, stop_fd, EPOLLIN);
    if (outer_set >= 0) add(outer_set, shared_set, EPOLLIN);
    for (int i = 0; i < 1024; i++) pthread_mutex_init(&states[i].mutex, NULL);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, serve_thread, NULL) == 0);
    for (int i = 0; i < CONNECTIONS; i++) add(shared_set, fds[i] = answer(listener), EPOLLIN | mode);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < CONNECTIONS; i++) close(fds[i]);
}

static void threads_level(int listener) { threads_server(listener, 0); }
static void threads_edge(int listener) { threads_server(listener, EPOLLET); }
static void threads_one_shot(int listener) { threads_server(listener, EPOLLONESHOT); }
static void threads_edge_one_shot(int listener) { threads_server(listener, EPOLLET | EPOLLONESHOT); }
static void threads_exclusive(int listener) { threads_server(listener, EPOLLEXCLUSIVE); }

static void threads_nested(int listener) {
    outer_set = epoll_create1(0); /* the threads wait on it for the other set */
    threads_server(listener, 0);
}

static void requests_client(int unused) {
    (void)unused;
    int fds[CONNECTIONS];
    char out[SIZE], in[SIZE];
    for (int i = 0; i < CONNECTIONS; i++) fds[i] = dial();
    for (int round = 0; round < REQUESTS; round++) {
        for (int i = 0; i < CONNECTIONS; i++) {
            fill(i, round, out, SIZE);
            send_all(fds[i], out, SIZE);
        }
        for (int i = 0; i < CONNECTIONS; i++) {
            fill(i, round, out, SIZE);
            recv_all(fds[i], in, SIZE);
            CHECK(memcmp(in, out, SIZE) == 0);
        }
    }
    for (int i = 0; i < CONNECTIONS; i++) close(fds[i]);
}

/* ---- all kinds of descriptors ---- */

/* Exactly this descriptor is ready. */
static void only(int set, int fd, int milliseconds) {
    struct epoll_event events[8];
    EQUAL(epoll_wait(set, events, 8, milliseconds), 1);
    EQUAL(events[0].data.fd, fd);
    EQUAL(events[0].events, EPOLLIN);
}

static void mixed_server(int listener) {
    int fd = answer(listener);
    warm_server(fd);
    int pipes[2], set = epoll_create1(0), event = eventfd(0, EFD_NONBLOCK);
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct epoll_event events[8];
    uint64_t value = 1;
    char data[64];
    CHECK(pipe(pipes) == 0);
    add(set, fd, EPOLLIN);
    add(set, pipes[0], EPOLLIN);
    add(set, event, EPOLLIN);
    add(set, timer, EPOLLIN);
    add(set, listener, EPOLLIN);
    EQUAL(epoll_wait(set, events, 8, 0), 0);
    for (int round = 0; round < 30; round++) {
        write(pipes[1], "x", 1);
        only(set, pipes[0], 5000);
        read(pipes[0], data, 1);
        write(event, &value, 8);
        only(set, event, 5000);
        read(event, &value, 8);
        struct itimerspec soon = {{0, 0}, {0, 3000000}};
        CHECK(timerfd_settime(timer, 0, &soon, NULL) == 0);
        only(set, timer, 5000);
        read(timer, &value, 8);
        value = 1;
        tell(1); /* client: a message on the old connection */
        only(set, fd, 20000);
        EQUAL(recv(fd, data, 64, 0), 1);
        tell(2); /* client: a new connection, which says something */
        only(set, listener, 20000);
        int fresh = answer(listener);
        add(set, fresh, EPOLLIN);
        only(set, fresh, 20000);
        EQUAL(recv(fresh, data, 64, 0), 1);
        /* Everything at once: both connections, pipe and event; nothing is starved. */
        write(pipes[1], "x", 1);
        write(event, &value, 8);
        tell(3);
        int seen = 0;
        for (int calls = 0; seen != 15; calls++) {
            CHECK(calls < 20000);
            int n = epoll_wait(set, events, 8, 20000);
            CHECK(n > 0);
            for (int i = 0; i < n; i++) {
                int which = events[i].data.fd;
                seen |= which == fd ? 1 : which == fresh ? 2 : which == pipes[0] ? 4 : which == event ? 8 : 16;
            }
            usleep(200); /* the same rounds would pass without: only gives the client time */
        }
        EQUAL(recv(fd, data, 64, 0), 1);
        EQUAL(recv(fresh, data, 64, 0), 1);
        read(pipes[0], data, 1);
        read(event, &value, 8);
        close(fresh);
    }
    close(fd);
}

static void mixed_client(int unused) {
    (void)unused;
    int fd = dial(), fresh = -1;
    warm_client(fd);
    for (int round = 0; round < 30; round++) {
        EQUAL(hear(), 1);
        send_all(fd, "a", 1);
        EQUAL(hear(), 2);
        fresh = dial();
        send_all(fresh, "b", 1);
        EQUAL(hear(), 3);
        send_all(fresh, "c", 1);
        send_all(fd, "d", 1);
        char byte;
        EQUAL(recv(fresh, &byte, 1, 0), 0);
        close(fresh);
    }
    char byte;
    EQUAL(recv(fd, &byte, 1, 0), 0);
}

/* ---- sets inside sets ---- */

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

/* A set made before fork() is used by the child. */
static void across_fork(int fd) {
    int set = epoll_create1(0);
    struct epoll_event event;
    add(set, fd, EPOLLIN);
    ask(SEND, 10);
    EQUAL(epoll_wait(set, &event, 1, 5000), 1);
    take(fd, 10);
    for (int i = 0; i < 4; i++) {
        pid_t child = fork();
        if (child == 0) {
            order(SEND_ASLEEP, 10);
            EQUAL(epoll_wait(set, &event, 1, 20000), 1);
            EQUAL(event.data.fd, fd);
            take(fd, 10);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        EQUAL(status, 0);
        got += 10;
        order(SEND_ASLEEP, 10);
        EQUAL(epoll_wait(set, &event, 1, 20000), 1);
        take(fd, 10);
    }
    close(set);
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

/* In a second set for a while, and taken out of it again: the first one goes on to be told. */
static void second_set_for_a_while(int fd) {
    int sets[2] = {epoll_create1(0), epoll_create1(0)};
    struct epoll_event event;
    for (int round = 0; round < 6; round++) {
        int first = sets[round % 2], second = sets[1 - round % 2];
        add(first, fd, EPOLLIN);
        EQUAL(epoll_wait(first, &event, 1, 5), 0);
        add(second, fd, EPOLLIN);
        if (round > 1) EQUAL(epoll_wait(second, &event, 1, 5), 0);
        EQUAL(epoll_ctl(second, EPOLL_CTL_DEL, fd, NULL), 0);
        for (int i = 0; i < 4; i++) {
            order(SEND_ASLEEP, 10);
            only(first, fd, 20000);
            take(fd, 10);
            EQUAL(epoll_wait(first, &event, 1, 0), 0);
        }
        EQUAL(epoll_ctl(first, EPOLL_CTL_DEL, fd, NULL), 0);
    }
    close(sets[0]), close(sets[1]);
    leave(fd);
}

/* A set is closed while its members live on, and another one is made: what comes for the old one's members is nothing to those who
 * sleep on the new one, and must not keep from them what comes for theirs. The first set is there so that these are not the only ones. */
static void set_after_set_server(int listener) {
    int sets[3], fds[3];
    struct epoll_event event;
    for (int i = 0; i < 3; i++) {
        sets[i] = epoll_create1(0);
        fds[i] = answer(listener);
        warm_server(fds[i]);
    }
    for (int i = 0; i < 2; i++) {
        add(sets[i], fds[i], EPOLLIN);
        EQUAL(epoll_wait(sets[i], &event, 1, 20), 0);
    }
    close(sets[1]);
    add(sets[2], fds[2], EPOLLIN);
    meet();
    only(sets[2], fds[2], -1);
    meet();
    for (int i = 0; i < 3; i++) close(fds[i]);
}

static void set_after_set_client(int unused) {
    (void)unused;
    int fds[3];
    for (int i = 0; i < 3; i++) {
        fds[i] = dial();
        warm_client(fds[i]);
    }
    meet();
    wait_asleep(getppid(), getppid());
    for (int i = 1; i < 3; i++) EQUAL(send(fds[i], "x", 1, 0), 1);
    meet();
    for (int i = 0; i < 3; i++) close(fds[i]);
}

/* What epoll_ctl() takes of EPOLLEXCLUSIVE, and that an exclusive member must be taken out to be changed. */
static void exclusive_rules(int fd) {
    int set = epoll_create1(0), other = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT};
    static const uint32_t too_much[] = {EPOLLONESHOT, EPOLLRDHUP, EPOLLPRI, EPOLLRDNORM, EPOLLMSG};
    for (size_t i = 0; i < sizeof too_much / sizeof *too_much; i++) {
        event.events = EPOLLIN | EPOLLEXCLUSIVE | too_much[i];
        ERRNO(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), EINVAL);
        ERRNO(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event), EINVAL);
    }
    event.events = EPOLLIN | EPOLLEXCLUSIVE;
    ERRNO(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event), EINVAL); /* before it is seen that it is no member */
    ERRNO(epoll_ctl(set, EPOLL_CTL_ADD, other, &event), EINVAL);
    event.events = EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLET | EPOLLEXCLUSIVE;
    EQUAL(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
    event.events = EPOLLIN;
    ERRNO(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event), EINVAL);
    EQUAL(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL), 0);
    EQUAL(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
    event.events = EPOLLIN | EPOLLEXCLUSIVE;
    ERRNO(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event), EINVAL); /* nor can one become exclusive */
    ERRNO(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), EEXIST);
    ERRNO(epoll_ctl(set, 9, fd, &event), EINVAL);
    ask(SEND, 5);
    EQUAL(epoll_wait(set, &event, 1, 5000), 1);
    EQUAL(event.events, EPOLLIN);
    take(fd, 5);
    close(set);
    close(other);
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
static atomic_int asked_enough;
static void *asks(void *unused) {
    (void)unused;
    struct epoll_event event;
    while (!asked_enough) CHECK(epoll_wait(slept_set, &event, 1, 0) >= 0);
    return NULL;
}

static void closed_while_asked(int fd) {
    pthread_t thread;
    int other = dup(fd);
    struct epoll_event event;
    slept_set = epoll_create1(0);
    add(slept_set, fd, EPOLLIN);
    ask(SEND, 10);
    wait_queued(fd, 10);
    CHECK(pthread_create(&thread, NULL, asks, NULL) == 0);
    usleep(1000);
    close(fd);
    asked_enough = 1;
    CHECK(pthread_join(thread, NULL) == 0);
    for (int i = 0; i < 3; i++) EQUAL(epoll_wait(slept_set, &event, 1, 1000), 1);
    take(other, 10);
    EQUAL(epoll_wait(slept_set, &event, 1, 0), 0);
    ask(SEND, 10);
    EQUAL(epoll_wait(slept_set, &event, 1, 5000), 1);
    take(other, 10);
    close(slept_set);
    leave(other);
}

const struct example examples[] = {
    {"threads_level", threads_level, requests_client, RAW},
    {"threads_edge", threads_edge, requests_client, RAW},
    {"threads_one_shot", threads_one_shot, requests_client, RAW},
    {"threads_edge_one_shot", threads_edge_one_shot, requests_client, RAW},
    {"threads_exclusive", threads_exclusive, requests_client, RAW},
    {"threads_nested", threads_nested, requests_client, RAW},
    {"second_set_for_a_while", puppet, second_set_for_a_while, 0},
    {"set_after_set", set_after_set_server, set_after_set_client, RAW},
    {"exclusive_rules", puppet, exclusive_rules, 0},
    {"number_again", puppet, number_again, 0},
    {"child_closes_number", puppet, child_closes_number, 0},
    {"child_closes_set_before_number", puppet, child_closes_set_before_number, 0},
    {"child_asks", puppet, child_asks, 0},
    {"closed_while_asked", puppet, closed_while_asked, 0},
    {"nested_renumbered", puppet, nested_renumbered, 0},
    {"many_numbers", warm_puppet, many_numbers, RAW},
    {"mixed", mixed_server, mixed_client, RAW},
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
    {"across_fork", puppet, across_fork, 0},
    {"nested_across_fork", puppet, nested_across_fork, 0},
    {0},
};

/* Epoll sets with more in them: many threads on one set, all kinds of descriptors in one set, several sets, sets that were made before fork(). */
#include "epoll_sets.h"
#include <sys/eventfd.h>
#include <sys/timerfd.h>

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
    {"mixed", mixed_server, mixed_client, RAW},
    {"across_fork", puppet, across_fork, 0},
    {0},
};

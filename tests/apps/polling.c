/* poll, ppoll, select and pselect: the same examples for all four. Readiness while asleep, while awake, by data, by room, by
 * the other side's end; timeouts; several descriptors of different kinds in one call. */
#include "pair.h"

/* One face for the four calls: waits on up to 4 descriptors, fills revents, returns their number. */
typedef int waiter(struct pollfd *fds, int count, int milliseconds);

static int by_poll(struct pollfd *fds, int count, int milliseconds) {
    return poll(fds, count, milliseconds);
}

static int by_ppoll(struct pollfd *fds, int count, int milliseconds) {
    struct timespec t = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    return ppoll(fds, count, milliseconds < 0 ? NULL : &t, NULL);
}

static int by_some_select(struct pollfd *fds, int count, int milliseconds, bool p) {
    fd_set in, out, special;
    int top = -1;
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_ZERO(&special);
    for (int i = 0; i < count; i++) {
        if (fds[i].fd < 0) continue;
        if (fds[i].events & POLLIN) FD_SET(fds[i].fd, &in);
        if (fds[i].events & POLLOUT) FD_SET(fds[i].fd, &out);
        FD_SET(fds[i].fd, &special);
        if (fds[i].fd > top) top = fds[i].fd;
    }
    struct timeval t = {milliseconds / 1000, milliseconds % 1000 * 1000};
    struct timespec s = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    int n = p ? pselect(top + 1, &in, &out, &special, milliseconds < 0 ? NULL : &s, NULL)
              : select(top + 1, &in, &out, &special, milliseconds < 0 ? NULL : &t);
    if (n < 0) return n;
    int bits = 0, ready = 0;
    for (int i = 0; i < count; i++) {
        fds[i].revents = 0;
        if (fds[i].fd < 0) continue;
        if (FD_ISSET(fds[i].fd, &in)) bits++, fds[i].revents |= POLLIN;
        if (FD_ISSET(fds[i].fd, &out)) bits++, fds[i].revents |= POLLOUT;
        CHECK(!FD_ISSET(fds[i].fd, &special));
        ready += fds[i].revents != 0;
    }
    EQUAL(n, bits); /* select counts bits, poll counts descriptors */
    return ready;
}

static int by_select(struct pollfd *fds, int count, int milliseconds) {
    return by_some_select(fds, count, milliseconds, false);
}

static int by_pselect(struct pollfd *fds, int count, int milliseconds) {
    return by_some_select(fds, count, milliseconds, true);
}

static int wait_one(waiter *how, int fd, short events, int milliseconds) {
    struct pollfd p = {fd, events, 0};
    int n = how(&p, 1, milliseconds);
    CHECK(n >= 0);
    return n ? p.revents : 0;
}

static void wakes(waiter *how, int fd) {
    EQUAL(wait_one(how, fd, POLLIN, 0), 0);
    for (int i = 0; i < 5; i++) {
        order(SEND_ASLEEP, 100);
        EQUAL(wait_one(how, fd, POLLIN, i % 2 ? -1 : 20000), POLLIN);
        EQUAL(wait_one(how, fd, POLLIN, 0), POLLIN); /* level: until it is read */
        take(fd, 60);
        EQUAL(wait_one(how, fd, POLLIN, 0), POLLIN);
        take(fd, 40);
        EQUAL(wait_one(how, fd, POLLIN, 0), 0);
    }
    leave(fd);
}

static void times_out(waiter *how, int fd) {
    for (int i = 0; i < 3; i++) {
        double start = now();
        EQUAL(wait_one(how, fd, POLLIN, 60), 0);
        double took = now() - start;
        CHECK(took >= 0.059);
        CHECK(took < 2);
        echo_rounds(fd, 20, 64);
    }
    leave(fd);
}

static void room(waiter *how, int fd) {
    EQUAL(wait_one(how, fd, POLLOUT, 0), POLLOUT);
    EQUAL(wait_one(how, fd, POLLIN | POLLOUT, -1), POLLOUT);
    for (int i = 0; i < 3; i++) {
        size_t n = fill_up(fd);
        EQUAL(wait_one(how, fd, POLLOUT, 0), 0);
        EQUAL(wait_one(how, fd, POLLIN | POLLOUT, 30), 0);
        order(DRAIN_ASLEEP, n);
        EQUAL(wait_one(how, fd, POLLOUT, 20000), POLLOUT);
    }
    echo_rounds(fd, 20, 64);
    leave(fd);
}

static void both_ready(waiter *how, int fd) {
    ask(SEND, 10);
    EQUAL(wait_one(how, fd, POLLIN, 5000), POLLIN);
    EQUAL(wait_one(how, fd, POLLIN | POLLOUT, 5000), POLLIN | POLLOUT);
    take(fd, 10);
    leave(fd);
}

static void mixed(waiter *how, int fd) {
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    struct pollfd p[3] = {{fd, POLLIN, 0}, {pipes[0], POLLIN, 0}, {pipes[1], POLLOUT, 0}};
    EQUAL(how(p, 2, 0), 0);
    EQUAL(how(p, 3, 1000), 1);
    EQUAL(p[2].revents, POLLOUT);
    write(pipes[1], "x", 1);
    EQUAL(how(p, 2, 5000), 1);
    EQUAL(p[0].revents, 0);
    EQUAL(p[1].revents, POLLIN);
    ask(SEND, 10);
    EQUAL(wait_one(how, fd, POLLIN, 5000), POLLIN);
    EQUAL(how(p, 3, -1), 3);
    char byte;
    read(pipes[0], &byte, 1);
    take(fd, 10);
    order(SEND_ASLEEP, 10);
    EQUAL(how(p, 2, 20000), 1);
    EQUAL(p[0].revents, POLLIN);
    take(fd, 10);
    close(pipes[0]);
    close(pipes[1]);
    leave(fd);
}

/* A server's loop: nothing but waiting for the next request, thousands of times. */
static void loop(waiter *how, int fd) {
    order(ECHO, (int64_t)3000 << 32 | 200);
    for (int i = 0; i < 3000; i++) {
        put(fd, 200);
        EQUAL(wait_one(how, fd, POLLIN, 20000), POLLIN);
        take(fd, 200);
    }
    hear();
    leave(fd);
}

static void end(waiter *how, int fd) {
    order(HANG_UP_ASLEEP, 0);
    CHECK(wait_one(how, fd, POLLIN, 20000) & POLLIN);
    char byte;
    EQUAL(recv(fd, &byte, 1, 0), 0);
    CHECK(wait_one(how, fd, POLLIN, 20000) & POLLIN);
    close(fd);
}

static void end_server(int fd) {
    EQUAL(hear(), HANG_UP_ASLEEP);
    hear();
    pid_t pid = hear(), tid = hear();
    wait_asleep(pid, tid);
    close(fd);
}

#define FOUR(name)                                                                                                               \
    static void poll_##name(int fd) { name(by_poll, fd); }                                                                       \
    static void ppoll_##name(int fd) { name(by_ppoll, fd); }                                                                     \
    static void select_##name(int fd) { name(by_select, fd); }                                                                   \
    static void pselect_##name(int fd) { name(by_pselect, fd); }
FOUR(wakes)
FOUR(times_out)
FOUR(room)
FOUR(both_ready)
FOUR(mixed)
FOUR(loop)
FOUR(end)

/* What only poll can say. */
static void poll_hang_ups(int fd) {
    ask(END_WR, 0);
    struct pollfd p = {fd, POLLIN | POLLRDHUP | POLLOUT, 0};
    while (p.revents != (POLLIN | POLLRDHUP | POLLOUT)) EQUAL(poll(&p, 1, 5000), 1);
    char byte;
    EQUAL(recv(fd, &byte, 1, 0), 0);
    put(fd, 100);
    ask(READ, 100);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    p.events = 0;
    EQUAL(poll(&p, 1, 5000), 1);
    EQUAL(p.revents, POLLHUP);
    leave(fd);
}

static void poll_reset(int fd) {
    ask(RESET, 0);
    struct pollfd p = {fd, POLLIN, 0};
    EQUAL(poll(&p, 1, 5000), 1);
    CHECK(p.revents & POLLERR);
    CHECK(p.revents & POLLHUP);
    char byte;
    ERRNO(recv(fd, &byte, 1, 0), ECONNRESET);
    EQUAL(recv(fd, &byte, 1, 0), 0);
    close(fd);
}

static void poll_odd_entries(int fd) {
    int closed = dup(fd);
    close(closed);
    struct pollfd p[3] = {{closed, POLLIN, 0}, {-1, POLLIN, 9}, {fd, POLLIN, 0}};
    EQUAL(poll(p, 3, 5000), 1);
    EQUAL(p[0].revents, POLLNVAL);
    EQUAL(p[1].revents, 0);
    EQUAL(p[2].revents, 0);
    EQUAL(poll(NULL, 0, 10), 0);
    struct pollfd twice[2] = {{fd, POLLIN, 0}, {fd, POLLOUT, 0}};
    EQUAL(poll(twice, 2, 5000), 1);
    ask(SEND, 1);
    EQUAL(wait_one(by_poll, fd, POLLIN, 5000), POLLIN);
    EQUAL(poll(twice, 2, 5000), 2);
    take(fd, 1);
    leave(fd);
}

/* Two threads sleep in poll on the same connection; both wake. */
static void *sleeper(void *argument) {
    struct pollfd p = {*(int *)argument, POLLIN, 0};
    EQUAL(poll(&p, 1, 20000), 1);
    return NULL;
}

static void poll_two_threads(int fd) {
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, sleeper, &fd) == 0);
        order(SEND_ASLEEP, 10);
        sleeper(&fd);
        CHECK(pthread_join(thread, NULL) == 0);
        take(fd, 10);
    }
    leave(fd);
}

static volatile sig_atomic_t signals;
static void on_signal(int unused) {
    (void)unused;
    signals++;
}

/* The mask is changed and the wait begun in one step: a signal that was pending ends the call at once. */
static void ppoll_mask(int fd) {
    sigset_t block, none;
    struct sigaction action = {.sa_handler = on_signal};
    sigemptyset(&none), sigemptyset(&block), sigaddset(&block, SIGUSR1);
    sigaction(SIGUSR1, &action, NULL);
    sigprocmask(SIG_BLOCK, &block, NULL);
    for (int i = 1; i <= 5; i++) {
        raise(SIGUSR1);
        struct pollfd p = {fd, POLLIN, 0};
        ERRNO(ppoll(&p, 1, NULL, &none), EINTR);
        EQUAL(signals, i);
        echo_rounds(fd, 20, 64);
    }
    raise(SIGUSR1);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    ERRNO(pselect(fd + 1, &set, NULL, NULL, NULL, &none), EINTR);
    EQUAL(signals, 6);
    sigprocmask(SIG_SETMASK, &none, NULL);
    leave(fd);
}

/* The mask counts, too, for a call that waits for no time: what is pending interrupts it if nothing is ready. */
static void no_time_mask(int fd) {
    sigset_t block, none;
    struct sigaction action = {.sa_handler = on_signal};
    struct timespec no_time = {0, 0};
    sigemptyset(&none), sigemptyset(&block), sigaddset(&block, SIGUSR1);
    sigaction(SIGUSR1, &action, NULL);
    sigprocmask(SIG_BLOCK, &block, NULL);
    for (int i = 0; i < 5; i++) {
        struct pollfd p = {fd, POLLIN, 0};
        fd_set set;
        FD_ZERO(&set);
        FD_SET(fd, &set);
        EQUAL(ppoll(&p, 1, &no_time, &none), 0);
        raise(SIGUSR1);
        ERRNO(ppoll(&p, 1, &no_time, &none), EINTR);
        EQUAL(signals, 3 * i + 1);
        raise(SIGUSR1);
        ERRNO(pselect(fd + 1, &set, NULL, NULL, &no_time, &none), EINTR);
        EQUAL(signals, 3 * i + 2);
        raise(SIGUSR1);
        ask(SEND, 10);
        wait_queued(fd, 10);
        EQUAL(ppoll(&p, 1, &no_time, &none), 1);
        EQUAL(signals, 3 * i + 2);
        take(fd, 10);
        ERRNO(ppoll(&p, 1, &no_time, &none), EINTR);
        EQUAL(signals, 3 * i + 3);
    }
    sigprocmask(SIG_SETMASK, &none, NULL);
    leave(fd);
}

/* That a connection has ended is nothing that a set of select() for urgent data would be told of: it waits on, for others. */
static void select_special_only(int fd) {
    int ends[2], top;
    fd_set in, special;
    EQUAL(pipe(ends), 0);
    ask(RESET, 0);
    top = fd > ends[0] ? fd : ends[0];
    for (int written = 0; written < 2; written++) {
        FD_ZERO(&special);
        FD_SET(fd, &special);
        FD_ZERO(&in);
        FD_SET(ends[0], &in);
        struct timeval t = {0, 100000};
        double start = now();
        EQUAL(select(top + 1, &in, NULL, &special, &t), written);
        if (!written) CHECK(now() - start > 0.09);
        CHECK(!FD_ISSET(fd, &special));
        EQUAL(FD_ISSET(ends[0], &in) != 0, written);
        EQUAL(write(ends[1], "x", 1), 1);
    }
    close(fd);
}

/* Several threads, each with a connection of its own, for which it waits beside a pipe, as servers with a thread for each client do. The others begin when
 * the first has been at it for a while: whatever the two processes agreed on by then must do for them, too. */
enum { TALKERS = 4, ROUNDS = 500 };

struct talk {
    int fd;
    bool speaks_first, by_set;
};

static void wait_beside_pipe(int fd, int pipe_end, int set) {
    struct pollfd polls[] = {{fd, POLLIN, 0}, {pipe_end, POLLIN, 0}};
    struct epoll_event event;
    EQUAL(set < 0 ? poll(polls, 2, 20000) : epoll_wait(set, &event, 1, 20000), 1);
}

static void *talk(void *argument) {
    struct talk with = *(struct talk *)argument;
    int ends[2], set = with.by_set ? epoll_create1(0) : -1;
    char byte = 0;
    EQUAL(pipe(ends), 0);
    for (int i = 0; with.by_set && i < 2; i++) {
        struct epoll_event event = {.events = EPOLLIN};
        EQUAL(epoll_ctl(set, EPOLL_CTL_ADD, i ? ends[0] : with.fd, &event), 0);
    }
    for (int i = 0; i < 2 * ROUNDS; i++) {
        if (with.speaks_first == (i % 2 == 0)) {
            byte = i;
            EQUAL(write(with.fd, &byte, 1), 1);
            continue;
        }
        wait_beside_pipe(with.fd, ends[0], set);
        EQUAL(read(with.fd, &byte, 1), 1);
        EQUAL(byte, (char)i);
    }
    close(ends[0]), close(ends[1]);
    if (with.by_set) close(set);
    return NULL;
}

static void talk_all(int listener, bool by_set) {
    pthread_t threads[TALKERS];
    struct talk talks[TALKERS];
    for (int i = 0; i < TALKERS; i++) {
        talks[i] = (struct talk){is_server ? answer(listener) : dial(), !is_server, by_set};
        if (i == 0) talk(&talks[0]);
    }
    for (int i = 0; i < TALKERS; i++) CHECK(pthread_create(&threads[i], NULL, talk, &talks[i]) == 0);
    for (int i = 0; i < TALKERS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
        close(talks[i].fd);
    }
}

static void threads_poll(int listener) { talk_all(listener, false); }
static void threads_epoll(int listener) { talk_all(listener, true); }

const struct example examples[] = {
    {"poll_wakes", puppet, poll_wakes, 0},
    {"ppoll_wakes", puppet, ppoll_wakes, 0},
    {"select_wakes", puppet, select_wakes, 0},
    {"pselect_wakes", puppet, pselect_wakes, 0},
    {"poll_times_out", puppet, poll_times_out, 0},
    {"ppoll_times_out", puppet, ppoll_times_out, 0},
    {"select_times_out", puppet, select_times_out, 0},
    {"pselect_times_out", puppet, pselect_times_out, 0},
    {"poll_room", puppet, poll_room, 0},
    {"ppoll_room", puppet, ppoll_room, 0},
    {"select_room", puppet, select_room, 0},
    {"pselect_room", puppet, pselect_room, 0},
    {"poll_both_ready", puppet, poll_both_ready, 0},
    {"ppoll_both_ready", puppet, ppoll_both_ready, 0},
    {"select_both_ready", puppet, select_both_ready, 0},
    {"pselect_both_ready", puppet, pselect_both_ready, 0},
    {"poll_mixed", puppet, poll_mixed, 0},
    {"ppoll_mixed", puppet, ppoll_mixed, 0},
    {"select_mixed", puppet, select_mixed, 0},
    {"pselect_mixed", puppet, pselect_mixed, 0},
    {"poll_loop", puppet, poll_loop, 0},
    {"ppoll_loop", puppet, ppoll_loop, 0},
    {"select_loop", puppet, select_loop, 0},
    {"pselect_loop", puppet, pselect_loop, 0},
    {"poll_end", end_server, poll_end, 0},
    {"ppoll_end", end_server, ppoll_end, 0},
    {"select_end", end_server, select_end, 0},
    {"pselect_end", end_server, pselect_end, 0},
    {"poll_hang_ups", puppet, poll_hang_ups, 0},
    {"poll_reset", puppet, poll_reset, 0},
    {"poll_odd_entries", puppet, poll_odd_entries, 0},
    {"poll_two_threads", puppet, poll_two_threads, 0},
    {"no_time_mask", puppet, no_time_mask, 0},
    {"select_special_only", puppet, select_special_only, 0},
    {"ppoll_mask", puppet, ppoll_mask, 0},
    {"threads_poll", threads_poll, threads_poll, RAW},
    {"threads_epoll", threads_epoll, threads_epoll, RAW},
    {0},
};

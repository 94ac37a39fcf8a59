/* How connections end: EOF, half-close both ways, shutdown of reading, reset by SO_LINGER 0, by unread data, by a dead process;
 * EPIPE and SIGPIPE. What was sent before an orderly end still arrives, however much it is. */
#include "pair.h"

static void end_of_file(int fd) {
    char byte;
    ask(SEND, 5000);
    ask(CLOSE, 0);
    take(fd, 5000);
    EQUAL(recv(fd, &byte, 1, 0), 0);
    EQUAL(recv(fd, &byte, 1, 0), 0);
    EQUAL(read(fd, &byte, 1), 0);
    close(fd);
}

static void end_while_asleep(int fd) {
    char byte;
    tell(getpid());
    EQUAL(recv(fd, &byte, 1, 0), 0);
    close(fd);
}

static void end_while_asleep_server(int fd) {
    pid_t pid = hear();
    wait_asleep(pid, pid);
    close(fd);
}

/* Half-close: one side has finished, the other still has much to say. */
static void half_close(int fd) {
    char byte;
    ask(END_WR, 0);
    EQUAL(recv(fd, &byte, 1, 0), 0);
    for (int i = 0; i < 50; i++) {
        put(fd, 10000);
        ask(READ, 10000);
    }
    CHECK(shutdown(fd, SHUT_WR) == 0);
    ERRNO(send(fd, "x", 1, MSG_NOSIGNAL), EPIPE);
    ask(READ_EOF, 0);
    leave(fd);
}

static void half_close_ours(int fd) {
    char byte;
    put(fd, 3000);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    ask(READ, 3000);
    ask(READ_EOF, 0);
    for (int i = 0; i < 50; i++) {
        ask(SEND, 10000);
        take(fd, 10000);
    }
    order(SEND_ASLEEP, 10);
    take(fd, 10);
    ask(END_WR, 0);
    EQUAL(recv(fd, &byte, 1, 0), 0);
    close(fd);
    ask(CLOSE, 0);
}

/* close() right after a large write: all of it arrives. */
static void last_words(int fd) {
    put(fd, 1 << 20);
    close(fd);
}

static void last_words_server(int fd) {
    char byte;
    take(fd, 1 << 20);
    EQUAL(recv(fd, &byte, 1, 0), 0);
}

/* A process that writes and exits at once, without close(). */
static void last_words_exit(int fd) {
    put(fd, 100000);
    _exit(0);
}

static void last_words_exit_server(int fd) {
    char byte;
    take(fd, 100000);
    EQUAL(recv(fd, &byte, 1, 0), 0);
}

static void shut_read(int fd) {
    char byte;
    CHECK(shutdown(fd, SHUT_RD) == 0);
    EQUAL(recv(fd, &byte, 1, 0), 0);
    EQUAL(recv(fd, &byte, 1, 0), 0);
    put(fd, 1000);
    ask(READ, 1000);
    leave(fd);
}

/* At once, whatever is asked, and also while the other side has not read what it was sent. */
static void shut_read_unread(int fd) {
    char byte;
    struct pollfd p = {fd, POLLIN | POLLRDHUP, 0};
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP};
    int set = epoll_create1(0);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    ERRNO(recv(fd, &byte, 1, MSG_DONTWAIT), EAGAIN);
    put(fd, 1000);
    CHECK(shutdown(fd, SHUT_RD) == 0);
    EQUAL(recv(fd, &byte, 1, MSG_DONTWAIT), 0);
    EQUAL(poll(&p, 1, 0), 1);
    EQUAL(p.revents, POLLIN | POLLRDHUP);
    EQUAL(epoll_wait(set, &event, 1, 0), 1);
    EQUAL(event.events, EPOLLIN | EPOLLRDHUP);
    EQUAL(recv(fd, &byte, 1, 0), 0);
    EQUAL(recv(fd, &byte, 1, 0), 0);
    put(fd, 1000);
    EQUAL(recv(fd, &byte, 1, MSG_DONTWAIT), 0);
    ask(READ, 2000);
    close(set);
    leave(fd);
}

/* Shut for reading at one end, the connection goes on: what either end sends comes, whoever sleeps meanwhile. */
static void shut_read_goes_on(int fd) {
    CHECK(shutdown(fd, SHUT_RD) == 0);
    char byte;
    for (int i = 0; i < 200; i++) {
        put(fd, 1 + i * 331 % 20000);
        ask(READ, 1 + i * 331 % 20000);
        ask(SEND, 100); /* comes, although it is shut */
        while (got < (uint64_t)(i + 1) * 100) {
            ssize_t n = recv(fd, &byte, 1, 0);
            CHECK(n >= 0);
            if (n == 0) continue;
            verify(your_key, got++, &byte, 1);
        }
        EQUAL(recv(fd, &byte, 1, 0), 0);
    }
    leave(fd);
}

static void shut_twice(int fd) {
    CHECK(shutdown(fd, SHUT_WR) == 0);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    ERRNO(shutdown(fd, 7), EINVAL);
    ask(READ_EOF, 0);
    leave(fd);
}

static void reset_by_linger(int fd) {
    struct linger linger = {1, 0};
    CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
    close(fd);
    ask(READ_RESET, 0);
    ask(READ_EOF, 0); /* the error is told once */
    ask(CLOSE, 0);
}

static void reset_while_asleep(int fd) {
    char byte;
    tell(getpid());
    ERRNO(recv(fd, &byte, 1, 0), ECONNRESET);
    close(fd);
}

static void reset_while_asleep_server(int fd) {
    pid_t pid = hear();
    struct linger linger = {1, 0};
    wait_asleep(pid, pid);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
    close(fd);
}

/* close() with bytes that nobody read tells the sender that they were lost. */
static void unread(int fd) {
    ask(SEND, 100);
    wait_queued(fd, 100);
    close(fd);
    ask(READ_RESET, 0);
    ask(CLOSE, 0);
}

static void unread_part(int fd) {
    ask(SEND, 1000);
    wait_queued(fd, 1000);
    take(fd, 999);
    close(fd);
    ask(READ_RESET, 0);
    ask(CLOSE, 0);
}

/* Data that comes after close() does the same. */
static void after_close(int fd) {
    CHECK(shutdown(fd, SHUT_WR) == 0);
    ask(READ_EOF, 0);
    close(fd);
    meet();
}

static void after_close_server(int fd) {
    char byte;
    EQUAL(hear(), READ_EOF);
    hear(), hear(), hear();
    EQUAL(recv(fd, &byte, 1, 0), 0);
    tell(0);
    meet();
    /* The first send finds the other side gone and may succeed; the reset comes back and the next ones fail. */
    signal(SIGPIPE, SIG_IGN);
    int tries = 0;
    while (send(fd, "x", 1, 0) == 1) {
        CHECK(++tries < 1000);
        struct pollfd p = {fd, 0, 0};
        poll(&p, 1, 100);
    }
    CHECK(errno == EPIPE || errno == ECONNRESET);
    ERRNO(send(fd, "x", 1, 0), EPIPE);
}

static volatile sig_atomic_t pipes;
static void on_pipe(int unused) {
    (void)unused;
    pipes++;
}

static void broken_pipe(int fd) {
    signal(SIGPIPE, on_pipe);
    ask(CLOSE, 0);
    int tries = 0;
    while (send(fd, "x", 1, 0) == 1) {
        CHECK(++tries < 1000);
        struct pollfd p = {fd, 0, 0};
        poll(&p, 1, 100);
    }
    /* Linux: ECONNRESET is not raised as SIGPIPE, EPIPE is. */
    int before = errno == EPIPE ? 1 : 0;
    EQUAL(pipes, before);
    ERRNO(send(fd, "x", 1, 0), EPIPE);
    EQUAL(pipes, before + 1);
    ERRNO(write(fd, "x", 1), EPIPE);
    EQUAL(pipes, before + 2);
    ERRNO(send(fd, "x", 1, MSG_NOSIGNAL), EPIPE);
    EQUAL(pipes, before + 2);
    struct iovec v = {"x", 1};
    ERRNO(writev(fd, &v, 1), EPIPE);
    EQUAL(pipes, before + 3);
    close(fd);
}

static void pipe_after_shutdown(int fd) {
    signal(SIGPIPE, on_pipe);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    ERRNO(write(fd, "x", 1), EPIPE);
    EQUAL(pipes, 1);
    ERRNO(send(fd, "x", 1, MSG_NOSIGNAL), EPIPE);
    EQUAL(pipes, 1);
    leave(fd);
}

/* A writer that sleeps because there is no room is woken by the reader's end. */
static void blocked_writer(int fd) {
    signal(SIGPIPE, SIG_IGN);
    static char data[64 << 20];
    tell(getpid());
    ssize_t n = send(fd, data, sizeof data, 0);
    CHECK(n < (ssize_t)sizeof data);
    if (n >= 0) n = send(fd, data, sizeof data, 0);
    EQUAL(n, -1);
    CHECK(errno == ECONNRESET || errno == EPIPE);
    close(fd);
}

static void blocked_writer_server(int fd) {
    pid_t pid = hear();
    wait_asleep(pid, pid);
    close(fd);
}

/* What a writer has sent counts where the peer's end cuts it short, and raises no signal; the next call, whichever it is, is told of the reset. */
static void cut_short_before(int fd, bool reads) {
    static char data[64 << 20];
    signal(SIGPIPE, on_pipe);
    tell(getpid());
    ssize_t n = send(fd, data, sizeof data, 0);
    CHECK(n > 0 && n < (ssize_t)sizeof data);
    EQUAL(pipes, 0);
    ERRNO(reads ? recv(fd, data, 1, 0) : send(fd, data, 1, 0), ECONNRESET);
    EQUAL(pipes, 0);
    if (reads) EQUAL(recv(fd, data, 1, 0), 0);
    ERRNO(send(fd, data, 1, 0), EPIPE);
    EQUAL(pipes, 1);
    close(fd);
}

static void cut_short(int fd) { cut_short_before(fd, false); }
static void cut_short_then_read(int fd) { cut_short_before(fd, true); }

/* The one that dies is the client: the server, whose status counts, survives. */
static void dies(int fd) {
    put(fd, 1000);
    meet();
    kill(getpid(), SIGKILL);
}

static void survives(int fd) {
    char byte;
    take(fd, 1000);
    meet();
    double start = now();
    EQUAL(recv(fd, &byte, 1, 0), 0);
    CHECK(now() - start < 5);
    close(fd);
}

static void survives_unread(int fd) {
    char byte;
    put(fd, 500); /* never read by the one that dies */
    take(fd, 1000);
    meet();
    ERRNO(recv(fd, &byte, 1, 0), ECONNRESET);
    close(fd);
}

static void exits(int fd) {
    put(fd, 1000);
    meet();
    _exit(0);
}

/* A process exits while some of its connections are moved, or are being moved: no other end may be told of a reset. */
enum { MANY = 20 };

static void *sees_end(void *fd) {
    char byte;
    EQUAL(recv((int)(intptr_t)fd, &byte, 1, 0), 0);
    return NULL;
}

static void exit_of_many_server(int listener) {
    pthread_t threads[MANY];
    for (intptr_t i = 0; i < MANY; i++) {
        int fd = answer(listener);
        warm_server(fd);
        CHECK(pthread_create(&threads[i], NULL, sees_end, (void *)(intptr_t)fd) == 0);
    }
    tell(0);
    for (int i = 0; i < MANY; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

static void exit_of_many(int unused) {
    (void)unused;
    for (int i = 0; i < MANY; i++) {
        expect_lowest(i);
        warm_client(dial());
    }
    hear();
}

static void survives_write(int fd) {
    signal(SIGPIPE, SIG_IGN);
    take(fd, 1000);
    meet();
    char data[10000] = {0};
    double start = now();
    while (send(fd, data, sizeof data, 0) > 0) CHECK(now() - start < 5);
    CHECK(errno == EPIPE || errno == ECONNRESET);
    close(fd);
}

/* The same, of one that never waits in a call of its own: when there is no room it waits for some. */
static void survives_polling(int fd, bool by_epoll) {
    signal(SIGPIPE, SIG_IGN);
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLOUT | EPOLLET};
    if (by_epoll) EQUAL(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
    take(fd, 1000);
    meet();
    char data[1000] = {0};
    double start = now();
    set_nonblocking(fd, true);
    for (;;) {
        ssize_t n = send(fd, data, sizeof data, 0);
        if (n < 0 && errno != EAGAIN) break;
        if (n < 0) {
            struct pollfd poll_for = {fd, POLLOUT, 0};
            EQUAL(by_epoll ? epoll_wait(set, &event, 1, 5000) : poll(&poll_for, 1, 5000), 1);
        }
        CHECK(now() - start < 5);
    }
    CHECK(errno == EPIPE || errno == ECONNRESET);
    close(fd);
}

static void survives_poll(int fd) {
    survives_polling(fd, false);
}

/* One that looks again and again, and neither waits nor reads: with nothing to do, and with room to write all the time. */
static void survives_looking(int fd, short events) {
    take(fd, 1000);
    meet();
    struct pollfd look = {fd, events, 0};
    double start = now();
    while (poll(&look, 1, 0) >= 0 && !(look.revents & POLLIN)) CHECK(now() - start < 5);
    char byte;
    EQUAL(recv(fd, &byte, 1, 0), 0);
    close(fd);
}

static void nothing(int number) {
    (void)number;
}

/* Told of the end although signals come sooner than anybody would look by itself. */
static void survives_signals(int fd, int flags, bool polls) {
    struct sigaction action = {.sa_handler = nothing, .sa_flags = flags};
    struct itimerval often = {{0, 5000}, {0, 5000}}, off = {{0, 0}, {0, 0}};
    struct pollfd p = {fd, POLLIN, 0};
    char byte;
    ssize_t n;
    take(fd, 1000);
    meet();
    double start = now();
    CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
    while (polls && poll(&p, 1, -1) < 0) CHECK(errno == EINTR && now() - start < 5);
    while ((n = recv(fd, &byte, 1, 0)) < 0) CHECK(errno == EINTR && now() - start < 5);
    CHECK(setitimer(ITIMER_REAL, &off, NULL) == 0);
    EQUAL(n, 0);
    close(fd);
}

static void survives_restarted(int fd) {
    survives_signals(fd, SA_RESTART, false);
}

static void survives_interrupted(int fd) {
    survives_signals(fd, 0, false);
}

static void survives_poll_interrupted(int fd) {
    survives_signals(fd, SA_RESTART, true);
}

static void survives_look(int fd) {
    survives_looking(fd, POLLIN);
}

static void survives_look_both(int fd) {
    survives_looking(fd, POLLIN | POLLOUT);
}

static void survives_epoll(int fd) {
    survives_polling(fd, true);
}

/* Bytes have only gone to the one that dies, so only that direction has changed over: what it leaves unread makes its end a reset, too. */
static void survives_one_way(int listener) {
    char byte;
    int fd = answer(listener);
    for (int i = 0; i < 400; i++) {
        put(fd, 10);
        hear();
    }
    put(fd, 500);
    meet();
    ERRNO(recv(fd, &byte, 1, 0), ECONNRESET);
    close(fd);
}

static void dies_silent(int unused) {
    (void)unused;
    int fd = dial();
    for (int i = 0; i < 400; i++) {
        take(fd, 10);
        tell(0);
    }
    meet();
    kill(getpid(), SIGKILL);
}

const struct example examples[] = {
    {"end_of_file", puppet, end_of_file, 0},
    {"end_while_asleep", end_while_asleep_server, end_while_asleep, 0},
    {"half_close", puppet, half_close, 0},
    {"half_close_ours", puppet, half_close_ours, 0},
    {"last_words", last_words_server, last_words, 0},
    {"last_words_exit", last_words_exit_server, last_words_exit, 0},
    {"shut_read", puppet, shut_read, 0},
    {"shut_read_unread", puppet, shut_read_unread, 0},
    {"shut_read_goes_on", puppet, shut_read_goes_on, 0},
    {"shut_twice", puppet, shut_twice, 0},
    {"reset_by_linger", puppet, reset_by_linger, 0},
    {"reset_while_asleep", reset_while_asleep_server, reset_while_asleep, 0},
    {"unread", puppet, unread, 0},
    {"unread_part", puppet, unread_part, 0},
    {"after_close", after_close_server, after_close, 0},
    {"broken_pipe", puppet, broken_pipe, 0},
    {"pipe_after_shutdown", puppet, pipe_after_shutdown, 0},
    {"blocked_writer", blocked_writer_server, blocked_writer, 0},
    {"cut_short", blocked_writer_server, cut_short, 0},
    {"cut_short_then_read", blocked_writer_server, cut_short_then_read, 0},
    {"peer_killed", survives, dies, DIES},
    {"peer_killed_unread", survives_unread, dies, DIES},
    {"peer_killed_silent", survives_one_way, dies_silent, RAW | DIES},
    {"peer_killed_writing", survives_write, dies, DIES},
    {"peer_killed_polled", survives_poll, dies, DIES},
    {"peer_killed_looked_at", survives_look, dies, DIES},
    {"peer_killed_looked_at_both", survives_look_both, dies, DIES},
    {"peer_killed_in_set", survives_epoll, dies, DIES},
    {"peer_killed_restarted", survives_restarted, dies, DIES},
    {"peer_killed_interrupted", survives_interrupted, dies, DIES},
    {"peer_killed_poll_interrupted", survives_poll_interrupted, dies, DIES},
    {"peer_exits", survives, exits, 0},
    {"exit_of_many", exit_of_many_server, exit_of_many, RAW},
    {0},
};

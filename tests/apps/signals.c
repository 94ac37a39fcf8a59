/* Signals: a blocked call ends with EINTR, or goes on, as the handler asked; handlers may themselves use the connection, or jump out of the
 * call; a storm of them harms nothing. */
#include "pair.h"
#include <setjmp.h>

static volatile sig_atomic_t signals;
static void count_signal(int unused) {
    (void)unused;
    signals++;
}

static void handle(int number, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    CHECK(sigaction(number, &action, NULL) == 0);
}

static void alarm_in(int milliseconds) {
    struct itimerval t = {{0, 0}, {0, milliseconds * 1000}};
    CHECK(setitimer(ITIMER_REAL, &t, NULL) == 0);
}

/* Calls that end by a signal: it comes again, as the first one may come before the call does, if others have the processor meanwhile. */
static void alarms_every(int milliseconds) {
    struct itimerval t = {{0, milliseconds * 1000}, {0, milliseconds * 1000}};
    CHECK(setitimer(ITIMER_REAL, &t, NULL) == 0);
}
#define INTERRUPTED(call)                                                                                                        \
    do {                                                                                                                         \
        int before_ = signals;                                                                                                   \
        alarms_every(30);                                                                                                        \
        ERRNO(call, EINTR);                                                                                                      \
        alarm_in(0);                                                                                                             \
        CHECK(signals > before_);                                                                                                \
    } while (0)

/* Without SA_RESTART. */
static void interrupted(int fd) {
    char byte;
    struct iovec v = {&byte, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    struct pollfd p = {fd, POLLIN, 0};
    handle(SIGALRM, count_signal, 0);
    for (int i = 0; i < 3; i++) {
        INTERRUPTED(recv(fd, &byte, 1, 0));
        INTERRUPTED(read(fd, &byte, 1));
        INTERRUPTED(readv(fd, &v, 1));
        INTERRUPTED(recvmsg(fd, &m, 0));
        INTERRUPTED(poll(&p, 1, -1));
        echo_rounds(fd, 20, 100);
    }
    leave(fd);
}

/* With SA_RESTART recv() goes on; poll, select and epoll_wait never do. */
static void restarted(int fd) {
    char byte;
    struct pollfd p = {fd, POLLIN, 0};
    struct epoll_event event = {.events = EPOLLIN};
    int set = epoll_create1(0);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    handle(SIGALRM, count_signal, SA_RESTART);
    for (int i = 0; i < 3; i++) {
        signals = 0;
        alarm_in(5); /* before the other side has seen us sleep for 10 ms */
        order(SEND_ASLEEP, 1);
        EQUAL(recv(fd, &byte, 1, 0), 1);
        verify(your_key, got++, &byte, 1);
        while (signals == 0) usleep(1000);
        INTERRUPTED(poll(&p, 1, -1));
        INTERRUPTED(epoll_wait(set, &event, 1, -1));
    }
    close(set);
    leave(fd);
}

/* SO_RCVTIMEO makes EINTR come even with SA_RESTART (signal(7)). */
static void timeout_not_restarted(int fd) {
    char byte;
    struct timeval t = {20, 0};
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t) == 0);
    handle(SIGALRM, count_signal, SA_RESTART);
    INTERRUPTED(recv(fd, &byte, 1, 0));
    /* One signal that comes soon, and no other: where others have the processor it may come before the call, which then ends in time. */
    struct timeval soon = {1, 200000};
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon) == 0);
    for (int tries = 1;; tries++) {
        alarm_in(5);
        EQUAL(recv(fd, &byte, 1, 0), -1);
        if (errno == EINTR) break;
        EQUAL(errno, EAGAIN);
        CHECK(tries < 5);
    }
    leave(fd);
}

/* What was received or sent before the signal counts, and ends the call, SA_RESTART or not. */
static void partly_received_with(int fd, int flags) {
    char data[1000];
    handle(SIGALRM, count_signal, flags);
    for (int i = 0; i < 3; i++) {
        ask(SEND, 300);
        wait_queued(fd, 300);
        alarms_every(50);
        EQUAL(recv(fd, data, sizeof data, MSG_WAITALL), 300);
        alarm_in(0);
        verify(your_key, got, data, 300);
        got += 300;
    }
    leave(fd);
}

static void partly_received(int fd) { partly_received_with(fd, 0); }
static void partly_received_restart(int fd) { partly_received_with(fd, SA_RESTART); }

/* The first call takes what fits and is cut short by the signal; a second one, when nothing fits, sends nothing. */
static void partly_sent_with(int fd, int flags) {
    static char data[64 << 20];
    handle(SIGALRM, count_signal, flags);
    fill(my_key, sent, data, sizeof data);
    alarm_in(600);
    ssize_t n = send(fd, data, sizeof data, 0);
    CHECK(n > 0 && n < (ssize_t)sizeof data);
    EQUAL(signals, 1);
    sent += n;
    fill_up(fd);
    if (flags) {
        /* With a time limit any handler ends a call that has sent nothing. */
        struct timeval limit = {20, 0};
        CHECK(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0);
    }
    fill(my_key, sent, data, 1 << 20);
    alarms_every(50);
    n = send(fd, data, 1 << 20, 0);
    CHECK(n > 0 || errno == EINTR); /* the kernel may yet have found room for some */
    alarm_in(0);
    CHECK(signals > 1);
    if (n > 0) sent += n;
    ask(READ, sent);
    leave(fd);
}

static void partly_sent(int fd) { partly_sent_with(fd, 0); }
static void partly_sent_restart(int fd) { partly_sent_with(fd, SA_RESTART); }

/* A thousand signals a second while megabytes go both ways. */
static void storm(int fd, int flags) {
    handle(SIGALRM, count_signal, flags);
    struct itimerval t = {{0, 1000}, {0, 1000}}, off = {{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_REAL, &t, NULL) == 0);
    for (int i = 0; i < 3000 || signals < 50; i++) {
        order(ECHO, (int64_t)1 << 32 | (1 + i * 37 % 5000));
        put(fd, 1 + i * 37 % 5000);
        take(fd, 1 + i * 37 % 5000);
        hear();
    }
    CHECK(setitimer(ITIMER_REAL, &off, NULL) == 0);
    leave(fd);
}

static void storm_restart(int fd) { storm(fd, SA_RESTART); }
static void storm_interrupt(int fd) { storm(fd, 0); }

/* The handler sends on the very connection on which main sleeps in recv(): send() may be called in handlers. */
static int handler_fd;
static void send_in_handler(int unused) {
    (void)unused;
    int saved = errno;
    char byte = 's';
    if (send(handler_fd, &byte, 1, MSG_NOSIGNAL) != 1) _exit(9);
    errno = saved;
}

static void handler_sends(int fd) {
    handler_fd = fd;
    handle(SIGALRM, send_in_handler, SA_RESTART);
    for (int i = 0; i < 200; i++) {
        char byte;
        alarm_in(1 + i % 3);
        EQUAL(recv(fd, &byte, 1, 0), 1); /* the answer to what the handler sends */
        EQUAL(byte, 's');
    }
    close(fd);
}

static void returns_bytes(int fd) {
    char byte;
    while (recv(fd, &byte, 1, 0) == 1) EQUAL(send(fd, &byte, 1, 0), 1);
}

/* A handler that reads from another connection while main is in a call on the first. */
static int other_fd;
static volatile sig_atomic_t handled;
static void echo_in_handler(int unused) {
    (void)unused;
    int saved = errno;
    char data[100];
    memset(data, 'h', sizeof data);
    if (send(other_fd, data, sizeof data, MSG_NOSIGNAL) != sizeof data) _exit(8);
    if (recv(other_fd, data, sizeof data, MSG_WAITALL) != sizeof data) _exit(9);
    handled++;
    errno = saved;
}

static void handler_talks(int unused) {
    (void)unused;
    int fd = dial();
    other_fd = dial();
    struct itimerval t = {{0, 3000}, {0, 3000}}, off = {{0, 0}, {0, 0}};
    handle(SIGALRM, echo_in_handler, SA_RESTART);
    CHECK(setitimer(ITIMER_REAL, &t, NULL) == 0);
    for (int i = 0; i < 3000 || handled < 30; i++) {
        char out[200], in[200];
        fill(1, i, out, sizeof out);
        send_all(fd, out, sizeof out);
        recv_all(fd, in, sizeof in);
        CHECK(memcmp(in, out, sizeof in) == 0);
    }
    CHECK(setitimer(ITIMER_REAL, &off, NULL) == 0);
}

static void *echo_thread(void *argument) {
    int fd = (int)(intptr_t)argument;
    char data[1000];
    ssize_t n;
    while ((n = recv(fd, data, sizeof data, 0)) > 0) send_all(fd, data, n);
    close(fd);
    return NULL;
}

static void two_echoes(int listener) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        intptr_t fd = answer(listener);
        CHECK(pthread_create(&threads[i], NULL, echo_thread, (void *)fd) == 0);
    }
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

/* siglongjmp out of a blocked recv(), the old way to have a timeout. */
static sigjmp_buf jump;
static void jump_out(int unused) {
    (void)unused;
    siglongjmp(jump, 1);
}

static void jumps(int fd) {
    char byte;
    handle(SIGALRM, jump_out, SA_RESTART);
    for (volatile int i = 0; i < 20; i++) {
        if (sigsetjmp(jump, 1) == 0) {
            alarm_in(20);
            recv(fd, &byte, 1, 0);
            CHECK(!"recv returned");
        }
        echo_rounds(fd, 20, 100);
    }
    leave(fd);
}

/* Stopped for a while and continued: nothing happened, for the program. */
static void stopped(int fd) {
    for (int i = 0; i < 10; i++) {
        pid_t us = getpid(), child = fork();
        if (child == 0) {
            wait_asleep(us, us);
            kill(us, SIGSTOP);
            kill(us, SIGCONT);
            _exit(0);
        }
        char byte;
        struct pollfd p = {fd, POLLIN, 0};
        EQUAL(poll(&p, 1, 40), 0);
        ERRNO(recv(fd, &byte, 1, MSG_DONTWAIT), EAGAIN);
        CHECK(waitpid(child, NULL, 0) == child);
        echo_rounds(fd, 20, 100);
    }
    leave(fd);
}

/* alarm() around a blocking read(), the oldest timeout of all: a handler that does nothing but interrupt. */
static void alarm_around_read(int fd) {
    char byte;
    handle(SIGALRM, count_signal, 0);
    for (int i = 0; i < 2; i++) {
        signals = 0;
        double start = now();
        alarm(1);
        ERRNO(read(fd, &byte, 1), EINTR);
        CHECK(now() - start > 0.9);
        EQUAL(signals, 1);
        EQUAL(alarm(0), 0);
        alarm(20); /* in time: nothing happens */
        order(SEND_ASLEEP, 1);
        EQUAL(read(fd, &byte, 1), 1);
        verify(your_key, got++, &byte, 1);
        CHECK(alarm(0) > 0);
        EQUAL(signals, 1);
    }
    leave(fd);
}

/* Signals that come faster than a call can fall asleep: it is interrupted while it still looks around, with and without SA_RESTART. */
static void while_awake(int fd, int flags) {
    struct itimerval t = {{0, 50}, {0, 50}}, off = {{0, 0}, {0, 0}};
    struct pollfd p = {fd, POLLIN, 0};
    struct epoll_event event = {.events = EPOLLIN};
    int set = epoll_create1(0), ended = 0;
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    handle(SIGALRM, count_signal, flags);
    CHECK(setitimer(ITIMER_REAL, &t, NULL) == 0);
    for (int i = 0; i < 300; i++) {
        char byte;
        ssize_t n;
        ERRNO(poll(&p, 1, -1), EINTR);
        ERRNO(epoll_wait(set, &event, 1, -1), EINTR);
        if (!flags) ERRNO(recv(fd, &byte, 1, 0), EINTR);
        order(SEND, 1);
        while ((n = recv(fd, &byte, 1, 0)) < 0 && errno == EINTR) ended++;
        EQUAL(n, 1);
        verify(your_key, got++, &byte, 1);
        hear();
    }
    CHECK(setitimer(ITIMER_REAL, &off, NULL) == 0);
    if (flags) EQUAL(ended, 0);
    close(set);
    leave(fd);
}

static void while_awake_restart(int fd) { while_awake(fd, SA_RESTART); }
static void while_awake_interrupt(int fd) { while_awake(fd, 0); }

/* siglongjmp() out of a blocked send(), poll() and epoll_wait(), again and again; nothing stays locked or counted as asleep. */
static void jumps_elsewhere(int fd) {
    static char data[32 << 20];
    struct pollfd p = {fd, POLLIN, 0};
    struct epoll_event event = {.events = EPOLLIN};
    int set = epoll_create1(0);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    handle(SIGALRM, jump_out, SA_RESTART);
    for (volatile int i = 0; i < 20; i++) {
        if (sigsetjmp(jump, 1) == 0) {
            alarm_in(15);
            if (i % 2) poll(&p, 1, -1);
            else epoll_wait(set, &event, 1, -1);
            CHECK(!"it returned");
        }
        echo_rounds(fd, 20, 100);
    }
    if (sigsetjmp(jump, 1) == 0) {
        alarm_in(200);
        send(fd, data, sizeof data, 0);
        CHECK(!"it returned");
    }
    /* How much has been sent is not known. */
    CHECK(shutdown(fd, SHUT_WR) == 0);
    tell(0);
    char byte;
    EQUAL(recv(fd, &byte, 1, 0), 0);
    close(set);
    close(fd);
}

static void jumps_elsewhere_server(int fd) {
    static char data[1 << 16];
    for (int i = 0; i < 20; i++) {
        EQUAL(hear(), ECHO);
        hear(), hear(), hear();
        for (int round = 0; round < 20; round++) {
            take(fd, 100);
            put(fd, 100);
        }
        tell(0);
    }
    hear();
    ssize_t n;
    while ((n = recv(fd, data, sizeof data, 0)) > 0) continue;
    EQUAL(n, 0);
    close(fd);
}

/* Handlers that make a call on the connection on which main is in the same call: MSG_DONTWAIT finds what main has not taken. */
static volatile sig_atomic_t taken, other_errors;
static void receive_in_handler(int unused) {
    (void)unused;
    int saved = errno;
    char byte;
    if (recv(handler_fd, &byte, 1, MSG_DONTWAIT) == 1) taken++;
    else if (errno != EAGAIN) other_errors = errno;
    struct pollfd p = {handler_fd, POLLIN, 0};
    poll(&p, 1, 0);
    errno = saved;
}

static void handler_receives(int fd) {
    struct itimerval t = {{0, 700}, {0, 700}}, off = {{0, 0}, {0, 0}};
    handler_fd = fd;
    handle(SIGALRM, receive_in_handler, SA_RESTART);
    CHECK(setitimer(ITIMER_REAL, &t, NULL) == 0);
    int read_here = 0;
    char byte;
    while (recv(fd, &byte, 1, 0) == 1) read_here++;
    CHECK(setitimer(ITIMER_REAL, &off, NULL) == 0);
    EQUAL(read_here + taken, 20000);
    EQUAL(other_errors, 0);
    close(fd);
}

static void sends_singly(int fd) {
    for (int i = 0; i < 20000; i++) EQUAL(send(fd, "x", 1, 0), 1);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    char byte;
    EQUAL(recv(fd, &byte, 1, 0), 0);
}

/* Out of calls that do not sleep, wherever they are just then: nothing is there to be received, so nothing can be lost. */
static void jumps_busy(int fd) {
    struct pollfd p = {fd, POLLIN, 0};
    struct epoll_event event = {.events = EPOLLIN};
    int set = epoll_create1(0);
    char byte;
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    handle(SIGALRM, jump_out, SA_RESTART);
    for (volatile int i = 0; i < 2000; i++) {
        if (sigsetjmp(jump, 1) == 0) {
            struct itimerval t = {{0, 0}, {0, 50 + i % 97}};
            CHECK(setitimer(ITIMER_REAL, &t, NULL) == 0);
            for (;;) {
                switch (i % 4) {
                case 0: EQUAL(recv(fd, &byte, 1, MSG_DONTWAIT), -1); break;
                case 1: EQUAL(poll(&p, 1, 0), 0); break;
                case 2: EQUAL(epoll_wait(set, &event, 1, 0), 0); break;
                case 3: EQUAL(recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK), -1); break;
                }
                CHECK(i % 4 == 1 || i % 4 == 2 || errno == EAGAIN);
            }
        }
        if (i % 40 == 39) echo_rounds(fd, 20, 100);
    }
    close(set);
    leave(fd);
}

/* A handler uses the connection while main makes the calls on which a library would move it to another path. */
enum { MOVES = 200, EACH = 60 };
static void handler_while_moving(int fd) {
    struct itimerval t = {{0, 90}, {0, 90}}, off = {{0, 0}, {0, 0}};
    for (int i = 0; i < MOVES; i++) {
        handler_fd = fd = dial();
        int read_here = taken = 0;
        char byte;
        handle(SIGALRM, receive_in_handler, SA_RESTART);
        CHECK(setitimer(ITIMER_REAL, &t, NULL) == 0);
        while (recv(fd, &byte, 1, 0) == 1) read_here++;
        CHECK(setitimer(ITIMER_REAL, &off, NULL) == 0);
        handle(SIGALRM, SIG_IGN, 0);
        EQUAL(read_here + taken, EACH);
        close(fd);
    }
}

static void sends_to_each(int listener) {
    for (int i = 0; i < MOVES; i++) {
        int fd = answer(listener);
        for (int k = 0; k < EACH; k++) {
            EQUAL(send(fd, "x", 1, 0), 1);
            if (k % 8 == 0) usleep(100);
        }
        CHECK(shutdown(fd, SHUT_WR) == 0);
        char byte;
        EQUAL(recv(fd, &byte, 1, 0), 0);
        close(fd);
    }
}

const struct example examples[] = {
    {"interrupted", puppet, interrupted, 0},
    {"restarted", puppet, restarted, 0},
    {"timeout_not_restarted", puppet, timeout_not_restarted, 0},
    {"partly_received", puppet, partly_received, 0},
    {"partly_received_restart", puppet, partly_received_restart, 0},
    {"partly_sent_restart", puppet, partly_sent_restart, 0},
    {"partly_sent", puppet, partly_sent, 0},
    {"storm_restart", puppet, storm_restart, 0},
    {"storm_interrupt", puppet, storm_interrupt, 0},
    {"handler_sends", returns_bytes, handler_sends, 0},
    {"handler_talks", two_echoes, handler_talks, RAW},
    {"jumps", puppet, jumps, 0},
    {"alarm_around_read", puppet, alarm_around_read, 0},
    {"while_awake_restart", puppet, while_awake_restart, 0},
    {"while_awake_interrupt", puppet, while_awake_interrupt, 0},
    {"jumps_elsewhere", jumps_elsewhere_server, jumps_elsewhere, 0},
    {"handler_receives", sends_singly, handler_receives, 0},
    {"jumps_busy", puppet, jumps_busy, 0},
    {"handler_while_moving", sends_to_each, handler_while_moving, RAW},
    {"stopped", puppet, stopped, 0},
    {0},
};

/* pthread_cancel(): in every call that sleeps, deferred and asynchronous, with handlers that clean up; the connection goes on, no byte
 * is lost, and nothing stays locked. Also threads that end while their destructors use the connection. */
#include "pair.h"
#include <sched.h>
#include <sys/syscall.h>

static int the_fd, the_set, the_listener;
static atomic_int cleaned;

static void clean(void *unused) {
    (void)unused;
    atomic_fetch_add(&cleaned, 1);
}

enum call { RECV, READ_, RECVMSG, READV, SEND_, WRITE_, SENDMSG, POLL, PPOLL, SELECT, PSELECT, EPOLL, EPOLL_P, ACCEPT, CALLS };
static enum call which;
static bool asynchronous;

/* What a sender has sent, if the call returns. */
static ssize_t sleeping_call(void) {
    ssize_t n = 0;
    static char data[32 << 20]; /* more than fits anywhere */
    struct iovec v = {data, which == SENDMSG ? sizeof data : 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    struct pollfd p = {the_fd, POLLIN, 0};
    struct epoll_event event;
    fd_set reading;
    FD_ZERO(&reading);
    FD_SET(the_fd, &reading);
    switch (which) {
    case RECV: recv(the_fd, data, 1, 0); break;
    case READ_: read(the_fd, data, 1); break;
    case RECVMSG: recvmsg(the_fd, &m, 0); break;
    case READV: readv(the_fd, &v, 1); break;
    case SEND_: n = send(the_fd, data, sizeof data, 0); break;
    case WRITE_: n = write(the_fd, data, sizeof data); break;
    case SENDMSG: n = sendmsg(the_fd, &m, 0); break;
    case POLL: poll(&p, 1, -1); break;
    case PPOLL: ppoll(&p, 1, NULL, NULL); break;
    case SELECT: select(the_fd + 1, &reading, NULL, NULL, NULL); break;
    case PSELECT: pselect(the_fd + 1, &reading, NULL, NULL, NULL, NULL); break;
    case EPOLL: epoll_wait(the_set, &event, 1, -1); break;
    case EPOLL_P: epoll_pwait(the_set, &event, 1, -1, NULL); break;
    case ACCEPT: accept(the_listener, NULL, NULL); break;
    case CALLS: break;
    }
    return n;
}

static void *sleeper(void *tid) {
    pthread_cleanup_push(clean, NULL);
    if (asynchronous) pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    atomic_store((atomic_int *)tid, (int)syscall(SYS_gettid));
    /* A call that has sent something tells of that (glibc from 2.41 on), and the next one cancels. */
    if (sleeping_call() > 0) pthread_testcancel();
    pthread_cleanup_pop(0);
    return NULL;
}

static void cancelled(enum call call) {
    pthread_t thread;
    void *end;
    atomic_int tid = 0;
    int before = cleaned;
    which = call;
    CHECK(pthread_create(&thread, NULL, sleeper, &tid) == 0);
    while (tid == 0) sched_yield();
    wait_asleep(getpid(), tid);
    CHECK(pthread_cancel(thread) == 0);
    CHECK(pthread_join(thread, &end) == 0);
    CHECK(end == PTHREAD_CANCELED);
    EQUAL(cleaned, before + 1);
}

static void in_all(int fd, enum call first, enum call last) {
    struct epoll_event event = {.events = EPOLLIN};
    the_fd = fd;
    the_set = epoll_create1(0);
    the_listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(listen(the_listener, 5) == 0);
    CHECK(epoll_ctl(the_set, EPOLL_CTL_ADD, fd, &event) == 0);
    for (enum call call = first; call <= last; call++)
        for (int i = 0; i < 3; i++) {
            cancelled(call);
            echo_rounds(fd, 10, 100);
        }
    close(the_set);
    close(the_listener);
}

static void reading(int fd) {
    in_all(fd, RECV, READV);
    leave(fd);
}

static void waiting(int fd) {
    in_all(fd, POLL, ACCEPT);
    leave(fd);
}

/* Glibc's asynchronous cancellation comes at any place, in a call or between; recv() is where a thread sleeps. */
static void reading_asynchronous(int fd) {
    asynchronous = true;
    in_all(fd, RECV, READV);
    leave(fd);
}

static void waiting_asynchronous(int fd) {
    asynchronous = true;
    in_all(fd, POLL, ACCEPT);
    leave(fd);
}

static void *never_asleep(void *started) {
    struct pollfd p = {the_fd, POLLIN, 0};
    char byte;
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    for (atomic_store((atomic_int *)started, 1);;) {
        poll(&p, 1, 0);
        recv(the_fd, &byte, 1, MSG_DONTWAIT);
    }
    return NULL;
}

/* Wherever it comes: the program goes on. By tcp, as in memory a lock may stay behind, as in much of libc; no call but three is safe by POSIX. */
static void anywhere_asynchronous(int fd) {
    the_fd = fd;
    go_by_tcp(fd);
    for (int i = 0; i < 300; i++) {
        pthread_t thread;
        void *end;
        atomic_int started = 0;
        CHECK(pthread_create(&thread, NULL, never_asleep, &started) == 0);
        while (!started) sched_yield();
        usleep(i % 50 * 7);
        CHECK(pthread_cancel(thread) == 0);
        CHECK(pthread_join(thread, &end) == 0);
        CHECK(end == PTHREAD_CANCELED);
        echo_rounds(fd, 1, 100);
    }
    leave(fd);
}

/* A sender that finds no room. What it had sent before it was cancelled counts, and is not known; so the reader throws away. */
static void sending(int fd) {
    the_fd = fd;
    for (enum call call = SEND_; call <= SENDMSG; call++) {
        cancelled(call);
    }
    char byte;
    tell(0);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    EQUAL(recv(fd, &byte, 1, 0), 1);
    EQUAL(byte, 'r');
    EQUAL(recv(fd, &byte, 1, 0), 0);
    tell(0);
    close(fd);
}

static void throws_away(int fd) {
    static char data[1 << 16];
    hear(); /* the last one was cancelled */
    while (recv(fd, data, sizeof data, 0) > 0) continue;
    EQUAL(send(fd, "r", 1, 0), 1);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    hear();
    close(fd);
}

/* Cancelled while much goes back and forth: at any place inside the calls. The next thread does not find anything locked. glibc may lose
 * what a cancelled recv() had read (its bug 12683), so that bytes are not looked at. */
static void *talker(void *unused) {
    (void)unused;
    int old;
    for (;;) {
        char data[64] = {0};
        pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &old);
        pthread_testcancel();
        ssize_t n = recv(the_fd, data, sizeof data, 0);
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
        if (n <= 0) return NULL;
        send_all(the_fd, data, n);
    }
}

static void in_traffic(int fd) {
    the_fd = fd;
    for (int i = 0; i < 50; i++) {
        pthread_t thread;
        void *end;
        CHECK(pthread_create(&thread, NULL, talker, NULL) == 0);
        tell(0);
        for (int k = 0; k < i * 1000; k++) atomic_signal_fence(memory_order_seq_cst);
        CHECK(pthread_cancel(thread) == 0);
        CHECK(pthread_join(thread, &end) == 0);
    }
    tell(1);
    /* What no thread took is still there. */
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, talker, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    close(fd);
}

static void in_traffic_server(int fd) {
    char data[64] = {0};
    while (hear() == 0) {
        send_all(fd, data, sizeof data);
        while (recv(fd, data, sizeof data, MSG_DONTWAIT) > 0) continue;
    }
    CHECK(shutdown(fd, SHUT_WR) == 0);
    ssize_t n;
    while ((n = recv(fd, data, sizeof data, 0)) > 0) continue;
    EQUAL(n, 0);
    close(fd);
}

/* Destructors of a thread's own data, which use the connection when the thread ends, also when it is cancelled. */
static pthread_key_t key;
static void talk_at_end(void *rounds) {
    echo_rounds(the_fd, (int)(intptr_t)rounds, 100);
}

static void *owner(void *asleep) {
    CHECK(pthread_setspecific(key, (void *)(intptr_t)10) == 0);
    echo_rounds(the_fd, 10, 100);
    char byte;
    if (asleep) {
        atomic_store((atomic_int *)asleep, (int)syscall(SYS_gettid));
        recv(the_fd, &byte, 1, 0);
    }
    return NULL;
}

static void at_thread_end(int fd) {
    the_fd = fd;
    CHECK(pthread_key_create(&key, talk_at_end) == 0);
    for (int i = 0; i < 10; i++) {
        pthread_t thread;
        atomic_int tid = 0;
        CHECK(pthread_create(&thread, NULL, owner, i % 2 ? &tid : NULL) == 0);
        if (i % 2) {
            while (tid == 0) sched_yield();
            wait_asleep(getpid(), tid);
            CHECK(pthread_cancel(thread) == 0);
        }
        CHECK(pthread_join(thread, NULL) == 0);
        echo_rounds(fd, 10, 100);
    }
    leave(fd);
}

const struct example examples[] = {
    {"reading", puppet, reading, 0},
    {"waiting", puppet, waiting, 0},
    {"reading_asynchronous", puppet, reading_asynchronous, 0},
    {"waiting_asynchronous", puppet, waiting_asynchronous, 0},
    {"anywhere_asynchronous", puppet, anywhere_asynchronous, 0},
    {"sending", throws_away, sending, 0},
    {"in_traffic", in_traffic_server, in_traffic, 0},
    {"at_thread_end", puppet, at_thread_end, 0},
    {0},
};

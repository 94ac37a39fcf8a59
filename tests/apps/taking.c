/* pidfd_getfd(): a process that was there before the connection, and has nothing of it, takes it from its owner, which sleeps in no call on it. Nothing is
 * lost, doubled or moved, and whoever sleeps wakes up. */
#include "pair.h"
#include <sys/prctl.h>
#include <sys/syscall.h>

static int channel[2]; /* between owner and taker */
struct state {
    int fd;
    uint64_t sent, got;
};

/* -1 if it may not be taken. */
static int try_from(pid_t process, int number) {
    int handle = syscall(SYS_pidfd_open, process, 0);
    CHECK(handle >= 0);
    int fd = syscall(SYS_pidfd_getfd, handle, number, 0);
    if (fd < 0) EQUAL(errno, EPERM);
    close(handle);
    return fd;
}

static int take_from(pid_t process, int number) {
    int fd = try_from(process, number);
    CHECK(fd >= 0);
    return fd;
}

/* A child that takes what it is told, and uses it. */
static pid_t taker(void (*use)(int fd)) {
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channel) == 0);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    pid_t owner = getpid(), child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct state state;
        close(channel[0]);
        EQUAL(read(channel[1], &state, sizeof state), sizeof state);
        int fd = try_from(owner, state.fd);
        sent = state.sent;
        got = state.got;
        EQUAL(write(channel[1], fd < 0 ? "r" : "t", 1), 1);
        if (fd >= 0) use(fd);
        _exit(0);
    }
    close(channel[1]);
    return child;
}

/* False: it was refused. */
static bool may_take(int fd) {
    char byte;
    struct state state = {fd, sent, got};
    EQUAL(write(channel[0], &state, sizeof state), sizeof state);
    EQUAL(read(channel[0], &byte, 1), 1);
    return byte == 't';
}

static void let_take(int fd) {
    CHECK(may_take(fd));
}

static void accept_and_puppet(int listener) {
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    int fd = answer(listener);
    warm_server(fd);
    puppet(fd);
}

static void talk(int fd) {
    echo_rounds(fd, 300, 100);
}

static void talk_and_leave(int fd) {
    talk(fd);
    leave(fd);
}

static void taken_away(int unused) {
    (void)unused;
    pid_t child = taker(talk_and_leave);
    int fd = dial();
    warm_client(fd);
    let_take(fd);
    close(fd);
    ended_well(child);
}

/* Bytes wait unread; the owner sleeps elsewhere as long as the taker lives. */
static void take_and_talk(int fd) {
    take(fd, 5000);
    talk(fd);
}

static void taken_unread(int unused) {
    (void)unused;
    pid_t child = taker(take_and_talk);
    int fd = dial();
    warm_client(fd);
    ask(SEND, 5000);
    wait_queued(fd, 5000);
    let_take(fd);
    ended_well(child);
    leave(fd);
}

/* Both have unread bytes, more than a small ring holds. */
enum { MUCH = 40000 };

static void take_much(int fd) {
    take(fd, MUCH);
    ask(READ, MUCH);
    talk(fd);
}

static void taken_unread_both_ways(int unused) {
    (void)unused;
    pid_t child = taker(take_much);
    int fd = dial();
    warm_client(fd);
    ask(SEND, MUCH);
    wait_queued(fd, MUCH);
    put(fd, MUCH);
    let_take(fd);
    ended_well(child);
    leave(fd);
}

/* Both go on, in turn. */
static void owner_goes_on(int unused) {
    (void)unused;
    pid_t child = taker(talk);
    int fd = dial();
    warm_client(fd);
    let_take(fd);
    ended_well(child);
    sent += 30000, got += 30000;
    talk_and_leave(fd);
}

/* The peer sleeps in send(), as there is no room: what it writes goes on to the taker, or, as long as there is something in memory with something by tcp behind it,
 * nobody but the owner may have the connection. */
enum { STREAM = 24 << 20 };

static void take_stream(int fd) {
    take(fd, STREAM);
    EQUAL(hear(), 0);
    talk(fd);
}

static void peer_waits_for_room(int unused) {
    (void)unused;
    pid_t child = taker(take_stream);
    int fd = dial();
    warm_client(fd);
    order(SEND, STREAM);
    usleep(100000);
    if (!may_take(fd)) take_stream(fd);
    ended_well(child);
    leave(fd);
}

/* It writes while the owner reads, all the time. */
static void peer_writes(int unused) {
    (void)unused;
    pid_t child = taker(take_stream);
    int fd = dial();
    warm_client(fd);
    order(SEND, STREAM + (1 << 20));
    take(fd, 1 << 20);
    if (!may_take(fd)) take_stream(fd);
    ended_well(child);
    leave(fd);
}

/* The owner sleeps in send(), in another thread. */
static void *put_stream(void *fd) {
    put(*(int *)fd, STREAM);
    return NULL;
}

static void read_nothing(int fd) {
    close(fd);
}

static void owner_waits_for_room(int unused) {
    (void)unused;
    pthread_t writer;
    pid_t child = taker(read_nothing);
    int fd = dial();
    warm_client(fd);
    CHECK(pthread_create(&writer, NULL, put_stream, &fd) == 0);
    usleep(100000);
    let_take(fd);
    ask(READ, STREAM);
    CHECK(pthread_join(writer, NULL) == 0);
    talk_and_leave(fd);
    ended_well(child);
}

/* It sleeps in epoll_wait(), or in recv(): what comes by tcp wakes it. */
static void *wait_for_bytes(void *at) {
    int fd = *(int *)at, set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    for (int left = 2; left > 0; left--) {
        EQUAL(epoll_wait(set, &event, 1, 20000), 1);
        take(fd, 1000);
    }
    close(set);
    return NULL;
}

static void *read_bytes(void *at) {
    take(*(int *)at, 1000);
    take(*(int *)at, 1000);
    return NULL;
}

static void owner_waits(void *(*wait)(void *)) {
    pthread_t waiter;
    pid_t child = taker(read_nothing);
    int fd = dial();
    warm_client(fd);
    CHECK(pthread_create(&waiter, NULL, wait, &fd) == 0);
    ask(SEND, 1000);
    usleep(50000);
    let_take(fd);
    ended_well(child);
    ask(SEND, 1000);
    CHECK(pthread_join(waiter, NULL) == 0);
    talk_and_leave(fd);
}

static void owner_waits_in_epoll(int unused) {
    (void)unused;
    owner_waits(wait_for_bytes);
}

static void owner_waits_in_recv(int unused) {
    (void)unused;
    owner_waits(read_bytes);
}

/* From oneself: another number for the same connection. */
static void from_ourselves(int fd) {
    for (int i = 0; i < 20; i++) {
        int again = take_from(getpid(), fd);
        close(fd);
        fd = again;
        echo_rounds(fd, 20, 100);
    }
    leave(fd);
}

const struct example examples[] = {
    {"taken_away", accept_and_puppet, taken_away, RAW},
    {"taken_unread", accept_and_puppet, taken_unread, RAW},
    {"taken_unread_both_ways", accept_and_puppet, taken_unread_both_ways, RAW},
    {"owner_goes_on", accept_and_puppet, owner_goes_on, RAW},
    {"peer_waits_for_room", accept_and_puppet, peer_waits_for_room, RAW},
    {"peer_writes", accept_and_puppet, peer_writes, RAW},
    {"owner_waits_for_room", accept_and_puppet, owner_waits_for_room, RAW},
    {"owner_waits_in_epoll", accept_and_puppet, owner_waits_in_epoll, RAW},
    {"owner_waits_in_recv", accept_and_puppet, owner_waits_in_recv, RAW},
    {"from_ourselves", puppet, from_ourselves, 0},
    {0},
};

/* Linux's asynchronous calls (io_submit) beside the usual ones on one connection: reads, writes and polls that the kernel does by itself,
 * submitted by the system call and by libaio, which makes that call itself. */
#include "pair.h"
#include <libaio.h>
#include <sys/syscall.h>

__attribute__((weak)) int shunt_path(int fd);

static io_context_t context;
static bool by_libaio;

static void start(bool libaio) {
    by_libaio = libaio;
    EQUAL(syscall(SYS_io_setup, 8, &context), 0);
}

static void submit(struct iocb *request) {
    if (by_libaio) EQUAL(io_submit(context, 1, &request), 1);
    else EQUAL(syscall(SYS_io_submit, context, 1, &request), 1);
}

static long done(void) {
    struct io_event event;
    struct timespec most = {5, 0};
    EQUAL(syscall(SYS_io_getevents, context, 1, 1, &event, &most), 1);
    return event.res;
}

/* A poll that is submitted before there is anything ends when something comes. */
static void poll_asleep(int fd) {
    struct iocb request;
    io_prep_poll(&request, fd, POLLIN);
    submit(&request);
    ask(SEND, 5);
    CHECK(done() & POLLIN);
    take(fd, 5);
}

static void all(int fd) {
    char data[100];
    struct iovec pieces[2] = {{data, 40}, {data + 40, 60}};
    struct iocb request;
    ask(SEND, 100); /* unread when the first call is submitted */
    wait_queued(fd, 100);
    set_nonblocking(fd, true);
    io_prep_pread(&request, fd, data, sizeof data, 0);
    submit(&request);
    EQUAL(done(), sizeof data);
    verify(your_key, got, data, sizeof data);
    got += sizeof data;
    for (int i = 0; i < 20; i++) {
        poll_asleep(fd);
        ask(SEND, sizeof data);
        wait_queued(fd, sizeof data);
        if (i % 2) io_prep_pread(&request, fd, data, sizeof data, 0);
        else io_prep_preadv(&request, fd, pieces, 2, 0);
        submit(&request);
        EQUAL(done(), sizeof data);
        verify(your_key, got, data, sizeof data);
        got += sizeof data;
        order(READ, sizeof data);
        fill(my_key, sent, data, sizeof data);
        if (i % 2) io_prep_pwrite(&request, fd, data, sizeof data, 0);
        else io_prep_pwritev(&request, fd, pieces, 2, 0);
        submit(&request);
        EQUAL(done(), sizeof data);
        sent += sizeof data;
        hear();
    }
    if (shunt_path) EQUAL(shunt_path(fd), 0);
    set_nonblocking(fd, false);
    echo_rounds(fd, 50, 100);
    leave(fd);
}

static void by_call(int fd) {
    start(false);
    all(fd);
}

static void by_library(int fd) {
    start(true);
    all(fd);
}

/* A poll of a connection that nothing else was done with yet. */
static void poll_first(int fd) {
    start(false);
    for (int i = 0; i < 20; i++) poll_asleep(fd);
    leave(fd);
}

/* A poll of a set in which the connection is. */
static void poll_of_set(int fd) {
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    EQUAL(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
    start(false);
    for (int i = 0; i < 20; i++) {
        struct iocb request;
        io_prep_poll(&request, set, POLLIN);
        submit(&request);
        ask(SEND, 5);
        CHECK(done() & POLLIN);
        EQUAL(epoll_wait(set, &event, 1, 5000), 1);
        take(fd, 5);
    }
    leave(fd);
}

const struct example examples[] = {
    {"by_call", puppet, by_call, 0},
    {"by_library", puppet, by_library, 0},
    {"poll_first", puppet, poll_first, 0},
    {"poll_of_set", puppet, poll_of_set, 0},
    {0},
};

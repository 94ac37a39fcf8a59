/* io_uring beside the usual calls on one connection. liburing makes its system calls itself, so a library in front of libc sees none
 * of them; what it cannot follow must be the kernel's before the first of them is made. */
#include "pair.h"
#include <liburing.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/utsname.h>

static struct io_uring ring;

static void start(void) {
    int failed = io_uring_queue_init(8, &ring, 0);
    if (failed) fail(__FILE__, __LINE__, "io_uring_queue_init", failed, 0);
}

static int done(void) {
    struct io_uring_cqe *result;
    int submitted = io_uring_submit(&ring);
    /* What the kernel looks at by itself it may not have seen yet, and it is counted again. */
    CHECK(submitted == 1 || (submitted > 1 && ring.flags & IORING_SETUP_SQPOLL));
    EQUAL(io_uring_wait_cqe(&ring, &result), 0);
    int n = result->res;
    io_uring_cqe_seen(&ring, result);
    return n;
}

static void put_by_ring(int fd, size_t length) {
    char data[4096];
    while (length) {
        size_t part = length < sizeof data ? length : sizeof data;
        fill(my_key, sent, data, part);
        io_uring_prep_send(io_uring_get_sqe(&ring), fd, data, part, MSG_NOSIGNAL);
        int n = done();
        CHECK(n > 0);
        sent += n, length -= n;
    }
}

static void take_by_ring(int fd, size_t length) {
    char data[4096];
    while (length) {
        size_t part = length < sizeof data ? length : sizeof data;
        io_uring_prep_recv(io_uring_get_sqe(&ring), fd, data, part, 0);
        int n = done();
        CHECK(n > 0);
        verify(your_key, got, data, n);
        got += n, length -= n;
    }
}

static void both_ways(int fd) {
    for (int i = 0; i < 100; i++) {
        order(ECHO, (int64_t)2 << 32 | 300);
        i % 2 ? put_by_ring(fd, 300) : put(fd, 300);
        i % 3 ? take_by_ring(fd, 300) : take(fd, 300);
        i % 2 ? put(fd, 300) : put_by_ring(fd, 300);
        i % 3 ? take(fd, 300) : take_by_ring(fd, 300);
        hear();
    }
}

/* The ring is made in mid-conversation, with bytes unread. */
static void made_late(int fd) {
    ask(SEND, 5000);
    wait_queued(fd, 5000);
    take(fd, 1000);
    start();
    take_by_ring(fd, 2000);
    take(fd, 2000);
    both_ways(fd);
    io_uring_queue_exit(&ring);
    echo_rounds(fd, 20, 100);
    leave(fd);
}

/* It is there before the connection. */
static void made_early(int unused) {
    (void)unused;
    start();
    int fd = dial();
    warm_client(fd);
    both_ways(fd);
    leave(fd);
}

/* Maps a ring without liburing. */
static void set_up(int number, const struct io_uring_params *p) {
    size_t entries = p->sq_entries * sizeof(struct io_uring_sqe);
    char *sq = mmap(NULL, p->sq_off.array + p->sq_entries * 4, PROT_READ | PROT_WRITE, MAP_SHARED, number, IORING_OFF_SQ_RING);
    char *cq = mmap(NULL, p->cq_off.cqes + p->cq_entries * sizeof(struct io_uring_cqe), PROT_READ | PROT_WRITE, MAP_SHARED, number,
        IORING_OFF_CQ_RING);
    CHECK(sq != MAP_FAILED && cq != MAP_FAILED);
    ring = (struct io_uring){.ring_fd = number, .enter_ring_fd = number};
    ring.sq = (struct io_uring_sq){
        .khead = (void *)(sq + p->sq_off.head), .ktail = (void *)(sq + p->sq_off.tail), .kflags = (void *)(sq + p->sq_off.flags),
        .kdropped = (void *)(sq + p->sq_off.dropped), .array = (void *)(sq + p->sq_off.array),
        .sqes = mmap(NULL, entries, PROT_READ | PROT_WRITE, MAP_SHARED, number, IORING_OFF_SQES),
        .ring_mask = p->sq_entries - 1, .ring_entries = p->sq_entries,
    };
    ring.cq = (struct io_uring_cq){
        .khead = (void *)(cq + p->cq_off.head), .ktail = (void *)(cq + p->cq_off.tail), .kflags = (void *)(cq + p->cq_off.flags),
        .koverflow = (void *)(cq + p->cq_off.overflow), .cqes = (void *)(cq + p->cq_off.cqes),
        .ring_mask = p->cq_entries - 1, .ring_entries = p->cq_entries,
    };
    for (unsigned i = 0; i < p->sq_entries; i++) ring.sq.array[i] = i;
}

/* Made by the system call, as programs that carry their own copy of liburing do. */
static void made_by_syscall(int fd) {
    struct io_uring_params parameters = {0};
    ask(SEND, 100);
    wait_queued(fd, 100);
    int number = (int)syscall(__NR_io_uring_setup, 8, &parameters);
    CHECK(number >= 0);
    set_up(number, &parameters);
    take_by_ring(fd, 100);
    both_ways(fd);
    leave(fd);
}

/* The same from before the connection on, with a system call that no library sees, as a static copy of liburing makes it. */
static void made_unseen(int unused) {
    (void)unused;
    struct io_uring_params parameters = {0};
    long number = __NR_io_uring_setup;
#ifdef __x86_64__
    __asm__ volatile("syscall" : "+a"(number) : "D"(8L), "S"(&parameters) : "rcx", "r11", "memory");
#else
    number = syscall(number, 8, &parameters);
#endif
    CHECK(number >= 0);
    set_up((int)number, &parameters);
    int fd = dial();
    warm_client(fd);
    both_ways(fd);
    leave(fd);
}

/* A request waits in the ring while the program writes by the usual calls. */
static void waiting_request(int fd) {
    char data[100];
    start();
    for (int i = 0; i < 50; i++) {
        struct io_uring_cqe *result;
        io_uring_prep_recv(io_uring_get_sqe(&ring), fd, data, sizeof data, MSG_WAITALL);
        EQUAL(io_uring_submit(&ring), 1);
        order(ECHO, (int64_t)1 << 32 | sizeof data);
        put(fd, sizeof data);
        EQUAL(io_uring_wait_cqe(&ring, &result), 0);
        EQUAL(result->res, sizeof data);
        io_uring_cqe_seen(&ring, result);
        verify(your_key, got, data, sizeof data);
        got += sizeof data;
        hear();
    }
    leave(fd);
}

/* accept and connect by the ring: what comes of it is a connection like any other. */
static void accept_by_ring(int listener) {
    start();
    io_uring_prep_accept(io_uring_get_sqe(&ring), listener, NULL, NULL, 0);
    int fd = done();
    CHECK(fd >= 0);
    warm_server(fd);
    puppet(fd);
}

static void connect_by_ring(int unused) {
    (void)unused;
    start();
    int fd = socket(listener_address.ss_family, SOCK_STREAM, 0);
    io_uring_prep_connect(io_uring_get_sqe(&ring), fd, (void *)&listener_address, listener_length);
    EQUAL(done(), 0);
    warm_client(fd);
    both_ways(fd);
    io_uring_prep_shutdown(io_uring_get_sqe(&ring), fd, SHUT_WR);
    EQUAL(done(), 0);
    ask(READ_EOF, 0);
    order(QUIT, 0);
    io_uring_prep_close(io_uring_get_sqe(&ring), fd);
    EQUAL(done(), 0);
    hear();
}

__attribute__((weak)) int shunt_path(int fd);

static bool since_6_6(void) {
    struct utsname names;
    int major = 0, minor = 0;
    CHECK(uname(&names) == 0 && sscanf(names.release, "%d.%d", &major, &minor) == 2);
    return major > 6 || (major == 6 && minor >= 6);
}

/* An event loop makes a ring beside its set, only to change members by it. It is refused, as it is where an administrator says so; the
 * loop does without, and the connection keeps its way. */
static void of_event_loop(int fd) {
    int before = shunt_path ? shunt_path(fd) : 0, set = epoll_create1(EPOLL_CLOEXEC);
    struct io_uring_params parameters = {.flags = since_6_6() ? 0x10000 /* IORING_SETUP_NO_SQARRAY */ : 0};
    CHECK(set >= 0);
    int number = (int)syscall(__NR_io_uring_setup, 256, &parameters);
    if (before == 3) {
        EQUAL(number, -1);
        EQUAL(errno, EPERM);
    }
    struct epoll_event event = {.events = EPOLLIN};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    for (int i = 0; i < 50; i++) {
        order(SEND_ASLEEP, 100);
        EQUAL(epoll_wait(set, &event, 1, 5000), 1);
        take(fd, 100);
        echo_rounds(fd, 5, 100);
    }
    if (before == 3) EQUAL(shunt_path(fd), 3);
    leave(fd);
}

/* One of the same size that is for something else is made: the set has members, or the program has wishes. */
static void like_event_loop(int fd) {
    struct io_uring_params plain = {0}, parameters = {.flags = IORING_SETUP_CLAMP};
    struct epoll_event event = {.events = EPOLLIN};
    int set = epoll_create1(EPOLL_CLOEXEC);
    int wishes = (int)syscall(__NR_io_uring_setup, 256, &parameters);
    CHECK(wishes >= 0);
    close(wishes);
    if (since_6_6()) {
        int other = epoll_create1(EPOLL_CLOEXEC), usual = (int)syscall(__NR_io_uring_setup, 256, &plain);
        CHECK(usual >= 0);
        close(usual);
        close(other);
        plain = (struct io_uring_params){0};
    }
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    int number = (int)syscall(__NR_io_uring_setup, 256, &plain);
    CHECK(number >= 0);
    set_up(number, &plain);
    both_ways(fd);
    leave(fd);
}

/* ---- a ring for files only, as databases have it ---- */

static int scratch;

static void files_by_ring(void) {
    char data[4096], back[4096];
    struct iovec piece = {back, sizeof back};
    fill(99, 0, data, sizeof data);
    for (int i = 0; i < 4; i++) {
        io_uring_prep_write(io_uring_get_sqe(&ring), scratch, data, sizeof data, i * 4096);
        EQUAL(done(), sizeof data);
        io_uring_prep_fsync(io_uring_get_sqe(&ring), scratch, 0);
        EQUAL(done(), 0);
        if (i % 2) io_uring_prep_readv(io_uring_get_sqe(&ring), scratch, &piece, 1, i * 4096);
        else io_uring_prep_read(io_uring_get_sqe(&ring), scratch, back, sizeof back, i * 4096);
        EQUAL(done(), sizeof back);
        CHECK(memcmp(data, back, sizeof data) == 0);
    }
}

static void open_scratch(void) {
    char name[] = "/tmp/uring-XXXXXX";
    scratch = mkstemp(name);
    CHECK(scratch >= 0);
    unlink(name);
}

/* It costs the connections nothing. */
static void for_files(int fd) {
    int before = shunt_path ? shunt_path(fd) : 0;
    open_scratch();
    start();
    for (int i = 0; i < 10; i++) {
        files_by_ring();
        echo_rounds(fd, 10, 300);
    }
    if (before == 3) EQUAL(shunt_path(fd), 3);
    io_uring_queue_exit(&ring);
    leave(fd);
}

/* Until it is asked for something about one, with bytes unread: read like a file. */
static void for_files_then_more(int fd) {
    open_scratch();
    start();
    files_by_ring();
    ask(SEND, 300);
    wait_queued(fd, 300);
    char data[300];
    io_uring_prep_read(io_uring_get_sqe(&ring), fd, data, sizeof data, 0);
    EQUAL(done(), sizeof data);
    verify(your_key, got, data, sizeof data);
    got += sizeof data;
    if (shunt_path) EQUAL(shunt_path(fd), 0);
    files_by_ring();
    both_ways(fd);
    leave(fd);
}

/* Or the connection is one of its files, and has a number of its own there. */
static void registered(int fd) {
    open_scratch();
    start();
    files_by_ring();
    EQUAL(io_uring_register_files(&ring, &fd, 1), 0);
    char data[300];
    for (int i = 0; i < 20; i++) {
        ask(SEND, sizeof data);
        wait_queued(fd, sizeof data);
        struct io_uring_sqe *request = io_uring_get_sqe(&ring);
        io_uring_prep_read(request, 0, data, sizeof data, 0);
        request->flags |= IOSQE_FIXED_FILE;
        EQUAL(done(), sizeof data);
        verify(your_key, got, data, sizeof data);
        got += sizeof data;
    }
    io_uring_queue_exit(&ring);
    leave(fd);
}

/* A ring that the kernel looks at by itself, so that nothing need be called. */
static void looked_at_by_kernel(int fd) {
    struct io_uring_params parameters = {.flags = IORING_SETUP_SQPOLL, .sq_thread_idle = 10};
    EQUAL(io_uring_queue_init_params(8, &ring, &parameters), 0);
    if (shunt_path) EQUAL(shunt_path(fd), 0);
    both_ways(fd);
    leave(fd);
}

/* Made, and used for files, before the connection. */
static void for_files_early(int unused) {
    (void)unused;
    open_scratch();
    start();
    files_by_ring();
    int fd = dial();
    warm_client(fd);
    files_by_ring();
    echo_rounds(fd, 100, 300);
    leave(fd);
}

const struct example examples[] = {
    {"for_files", puppet, for_files, 0},
    {"for_files_then_more", puppet, for_files_then_more, 0},
    {"for_files_early", puppet_when_warm, for_files_early, RAW},
    {"registered", puppet, registered, 0},
    {"looked_at_by_kernel", puppet, looked_at_by_kernel, 0},
    {"of_event_loop", puppet, of_event_loop, 0},
    {"like_event_loop", puppet, like_event_loop, 0},
    {"made_late", puppet, made_late, 0},
    {"made_early", puppet_when_warm, made_early, RAW | TCP_OK},
    {"made_by_syscall", puppet, made_by_syscall, 0},
    {"made_unseen", puppet_when_warm, made_unseen, RAW | TCP_OK},
    {"waiting_request", puppet, waiting_request, 0},
    {"connect_by_ring", accept_by_ring, connect_by_ring, RAW | TCP_OK},
    {0},
};

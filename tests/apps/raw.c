/* System calls made by syscall(), as libuv, and many old programs do; the second names that libc exports
 * (__read, __poll ...); and what _FORTIFY_SOURCE makes of calls whose buffer it knows. Each family is mixed with the usual calls on
 * the same connection: whatever a library in between does for one, it must do for the other. */
#include "pair.h"
#include <linux/futex.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/syscall.h>

/* ---- reading and writing ---- */

enum { SIZE = 200 };
static struct iovec vector[2];
static struct msghdr message = {.msg_iov = vector, .msg_iovlen = 2};
static struct mmsghdr messages[1];

static void split(char *data) {
    vector[0] = (struct iovec){data, SIZE / 3};
    vector[1] = (struct iovec){data + SIZE / 3, SIZE - SIZE / 3};
    messages[0] = (struct mmsghdr){.msg_hdr = message};
}

static long send_way(int way, int fd, char *data) {
    split(data);
    switch (way) {
    case 0: return syscall(SYS_write, fd, data, SIZE);
    case 1: return syscall(SYS_writev, fd, vector, 2);
    case 2: return syscall(SYS_sendto, fd, data, SIZE, MSG_NOSIGNAL, NULL, 0);
    case 3: return syscall(SYS_sendmsg, fd, &message, MSG_NOSIGNAL);
    case 4: return syscall(SYS_sendmmsg, fd, messages, 1, 0) == 1 ? (long)messages[0].msg_len : -1;
    case 5: return syscall(SYS_pwritev2, fd, vector, 2, -1L, -1L, 0);
    default: return send(fd, data, SIZE, 0);
    }
}

static long receive_way(int way, int fd, char *data) {
    split(data);
    switch (way) {
    case 0: return syscall(SYS_read, fd, data, SIZE);
    case 1: return syscall(SYS_readv, fd, vector, 2);
    case 2: return syscall(SYS_recvfrom, fd, data, SIZE, MSG_WAITALL, NULL, NULL);
    case 3: return syscall(SYS_recvmsg, fd, &message, MSG_WAITALL);
    case 4: return syscall(SYS_recvmmsg, fd, messages, 1, MSG_WAITALL, NULL) == 1 ? (long)messages[0].msg_len : -1;
    case 5: return syscall(SYS_preadv2, fd, vector, 2, -1L, -1L, 0);
    default: return recv(fd, data, SIZE, MSG_WAITALL);
    }
}

static void transfers(int fd) {
    char data[SIZE];
    for (int i = 0; i < 300; i++) {
        order(ECHO, (int64_t)1 << 32 | SIZE);
        fill(my_key, sent, data, SIZE);
        EQUAL(send_way(i % 7, fd, data), SIZE);
        sent += SIZE;
        memset(data, 0, SIZE);
        wait_queued(fd, SIZE);
        EQUAL(receive_way((i / 7 + i) % 7, fd, data), SIZE);
        verify(your_key, got, data, SIZE);
        got += SIZE;
        hear();
    }
    ERRNO(syscall(SYS_recvfrom, fd, data, SIZE, MSG_DONTWAIT, NULL, NULL), EAGAIN);
    ask(END_WR, 0);
    EQUAL(syscall(SYS_read, fd, data, SIZE), 0);
    EQUAL(syscall(SYS_shutdown, fd, SHUT_WR), 0);
    ERRNO(syscall(SYS_sendto, fd, data, SIZE, MSG_NOSIGNAL, NULL, 0), EPIPE);
    leave(fd);
}

static void pauses(int fd) { /* blocked in each of them */
    char data[SIZE];
    for (int i = 0; i < 14; i++) {
        order(SEND_ASLEEP, SIZE);
        EQUAL(receive_way(i % 7, fd, data), SIZE);
        verify(your_key, got, data, SIZE);
        got += SIZE;
    }
    leave(fd);
}

/* ---- waiting ---- */

struct sigset_argument {
    const sigset_t *set;
    size_t size;
};

static int wait_way(int way, int set, int fd, int milliseconds) {
    struct timespec t = {milliseconds / 1000, milliseconds % 1000 * 1000000}, *time = milliseconds < 0 ? NULL : &t;
    struct timeval v = {t.tv_sec, t.tv_nsec / 1000};
    struct pollfd p = {fd, POLLIN, 0};
    struct epoll_event event;
    fd_set reading;
    FD_ZERO(&reading);
    FD_SET(fd, &reading);
    sigset_t none;
    sigemptyset(&none);
    struct sigset_argument mask = {&none, 8};
    long n;
    switch (way) {
#ifdef SYS_poll
    case 0: n = syscall(SYS_poll, &p, 1, milliseconds); break;
    case 1: n = syscall(SYS_select, fd + 1, &reading, NULL, NULL, time ? &v : NULL); break;
    case 2: n = syscall(SYS_epoll_wait, set, &event, 1, milliseconds); break;
#endif
    case 3: n = syscall(SYS_ppoll, &p, 1, time, &none, 8); break;
    case 4: n = syscall(SYS_pselect6, fd + 1, &reading, NULL, NULL, time, &mask); break;
    case 5: n = syscall(SYS_epoll_pwait, set, &event, 1, milliseconds, &none, 8); break;
    case 6: n = syscall(SYS_epoll_pwait2, set, &event, 1, time, &none, 8); break;
    default: n = poll(&p, 1, milliseconds); break;
    }
    (void)v;
    return (int)n;
}

static void waits(int fd) {
    struct epoll_event event = {.events = EPOLLIN};
    int set = (int)syscall(SYS_epoll_create1, 0);
    CHECK(set >= 0);
    EQUAL(syscall(SYS_epoll_ctl, set, EPOLL_CTL_ADD, fd, &event), 0);
    for (int i = 0; i < 64; i++) {
        EQUAL(wait_way(i % 8, set, fd, 0), 0);
        EQUAL(wait_way(i % 8, set, fd, 2), 0);
        order(SEND_ASLEEP, 10);
        EQUAL(wait_way(i % 8, set, fd, -1), 1);
        EQUAL(wait_way((i + 1) % 8, set, fd, 1000), 1);
        take(fd, 10);
    }
    EQUAL(syscall(SYS_close, set), 0);
    leave(fd);
}

/* ---- descriptors ---- */

static void descriptors(int fd) {
    for (int i = 0; i < 20; i++) {
        int copies[5] = {
            (int)syscall(SYS_dup, fd),
#ifdef SYS_dup2
            (int)syscall(SYS_dup2, fd, 60),
#else
            (int)syscall(SYS_dup3, fd, 60, 0),
#endif
            (int)syscall(SYS_dup3, fd, 61, O_CLOEXEC),
            (int)syscall(SYS_fcntl, fd, F_DUPFD, 62),
            (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 63),
        };
        for (int k = 0; k < 5; k++) {
            CHECK(copies[k] >= 0);
            echo_rounds(copies[k], 5, 100);
        }
        EQUAL(syscall(SYS_close, copies[0]), 0);
        ERRNO(send(copies[0], "x", 1, MSG_NOSIGNAL), EBADF);
        EQUAL(syscall(SYS_close_range, 60, 63, 0), 0);
        ERRNO(send(60, "x", 1, MSG_NOSIGNAL), EBADF);
        ERRNO(send(63, "x", 1, MSG_NOSIGNAL), EBADF);
        echo_rounds(fd, 5, 100);
    }
    /* The number goes to another file, without close(). */
    int null = open("/dev/null", O_RDWR), copy = dup(fd);
    EQUAL(syscall(SYS_dup3, null, copy, 0), copy);
    EQUAL(write(copy, "x", 1), 1);
    EQUAL(read(copy, &null, 1), 0);
    close(copy);
    echo_rounds(fd, 5, 100);
    leave(fd);
}

static void modes(int fd) {
    int n, one = 1, zero = 0;
    char byte;
    socklen_t length = sizeof n;
    struct sockaddr_storage name;
    socklen_t name_length = sizeof name;
    for (int i = 0; i < 10; i++) {
        int flags = (int)syscall(SYS_fcntl, fd, F_GETFL);
        EQUAL(syscall(SYS_fcntl, fd, F_SETFL, flags | O_NONBLOCK), 0);
        ERRNO(recv(fd, &byte, 1, 0), EAGAIN);
        ERRNO(syscall(SYS_read, fd, &byte, 1), EAGAIN);
        EQUAL(syscall(SYS_fcntl, fd, F_SETFL, flags & ~O_NONBLOCK), 0);
        order(SEND_ASLEEP, 1);
        take(fd, 1);
        EQUAL(syscall(SYS_ioctl, fd, FIONBIO, &one), 0);
        ERRNO(recv(fd, &byte, 1, 0), EAGAIN);
        EQUAL(syscall(SYS_ioctl, fd, FIONBIO, &zero), 0);
        ask(SEND, 77);
        wait_queued(fd, 77);
        EQUAL(syscall(SYS_ioctl, fd, FIONREAD, &n), 0);
        EQUAL(n, 77);
        take(fd, 77);
        EQUAL(syscall(SYS_setsockopt, fd, IPPROTO_TCP, TCP_NODELAY, i % 2 ? &one : &zero, sizeof one), 0);
        EQUAL(syscall(SYS_getsockopt, fd, IPPROTO_TCP, TCP_NODELAY, &n, &length), 0);
        EQUAL(!!n, i % 2);
        EQUAL(syscall(SYS_getpeername, fd, &name, &name_length), 0);
        struct timeval soon = {0, 20000}, never = {0, 0};
        EQUAL(syscall(SYS_setsockopt, fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon), 0);
        ERRNO(recv(fd, &byte, 1, 0), EAGAIN);
        EQUAL(syscall(SYS_setsockopt, fd, SOL_SOCKET, SO_RCVTIMEO, &never, sizeof never), 0);
        echo_rounds(fd, 10, 100);
    }
    leave(fd);
}

/* ---- connecting, and calls between files ---- */

static void connecting_server(int listener) {
    for (int i = 0; i < 4; i++) {
        int fd = i % 2 ? (int)syscall(SYS_accept, listener, NULL, NULL) : (int)syscall(SYS_accept4, listener, NULL, NULL, SOCK_CLOEXEC);
        CHECK(fd >= 0);
        warm_server(fd);
        puppet(fd);
        sent = got = 0;
    }
}

static void connecting(int unused) {
    (void)unused;
    for (int i = 0; i < 4; i++) {
        int fd = (int)syscall(SYS_socket, listener_address.ss_family, SOCK_STREAM, 0);
        CHECK(fd >= 0);
        EQUAL(syscall(SYS_connect, fd, &listener_address, listener_length), 0);
        warm_client(fd);
        echo_rounds(fd, 50, 100);
        order(QUIT, 0);
        EQUAL(syscall(SYS_close, fd), 0);
        hear();
        sent = got = 0;
    }
}

static void between_files(int fd) {
    char name[] = "/tmp/shunt-test-XXXXXX", data[5000];
    int file = mkstemp(name), pipes[2];
    CHECK(file >= 0 && unlink(name) == 0 && pipe(pipes) == 0);
    for (int i = 0; i < 10; i++) {
        fill(my_key, sent, data, sizeof data);
        EQUAL(pwrite(file, data, sizeof data, 0), sizeof data);
        order(READ, sizeof data);
        loff_t at = 0;
        while (at < (loff_t)sizeof data) CHECK(syscall(SYS_sendfile, fd, file, &at, sizeof data - at) > 0);
        sent += sizeof data;
        hear();
        echo_rounds(fd, 5, 100);
    }
    ERRNO(syscall(SYS_copy_file_range, file, NULL, fd, NULL, 10L, 0), EINVAL);
    ERRNO(syscall(SYS_tee, fd, pipes[1], 10L, 0), EINVAL);
    vector[0] = (struct iovec){data, 10};
    ERRNO(syscall(SYS_vmsplice, fd, vector, 1L, 0), EBADF);
    echo_rounds(fd, 5, 100);
    ask(SEND, 1000);
    for (size_t have = 0; have < 1000;) {
        long n = syscall(SYS_splice, fd, NULL, pipes[1], NULL, 1000 - have, 0);
        CHECK(n > 0);
        EQUAL(read(pipes[0], data + have, n), n);
        have += n;
    }
    verify(your_key, got, data, 1000);
    got += 1000;
    leave(fd);
}

/* What is none of our business passes through, arguments and errors and all. */
static void others(int fd) {
    uint32_t word = 1;
    struct timespec soon = {0, 1000000};
    EQUAL(syscall(SYS_getpid), getpid());
    ERRNO(syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &soon, NULL, 0), EAGAIN);
    ERRNO(syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 1, &soon, NULL, 0), ETIMEDOUT);
    ERRNO(syscall(100000), ENOSYS);
    ERRNO(syscall(SYS_close, 12345), EBADF);
    long page = syscall(SYS_mmap, NULL, 4096L, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1L, 0L);
    CHECK(page != -1);
    EQUAL(syscall(SYS_munmap, page, 4096L), 0);
    echo_rounds(fd, 50, 100);
    leave(fd);
}

/* exit by syscall(): what was written arrives. */
static void raw_exit(int fd) {
    put(fd, 100000);
    syscall(SYS_exit_group, 0);
}

static void raw_exit_server(int fd) {
    char byte;
    take(fd, 100000);
    EQUAL(recv(fd, &byte, 1, 0), 0);
}

/* A handler installed by syscall(): without SA_RESTART it ends a call, with it the call goes on. */
struct kernel_action {
    void (*handler)(int);
    unsigned long flags;
    void (*restorer)(void);
    uint64_t mask;
};

static volatile sig_atomic_t alarms;
static void on_alarm(int unused) {
    (void)unused;
    alarms++;
}

static void raw_handler(int fd) {
    char byte;
    for (int i = 0; i < 6; i++) {
        struct kernel_action action;
        struct sigaction usual = {.sa_handler = on_alarm, .sa_flags = 0};
        struct itimerval soon = {{0, 0}, {0, i % 2 ? 5000 : 30000}};
        CHECK(sigaction(SIGALRM, &usual, NULL) == 0); /* for its restorer */
        EQUAL(syscall(SYS_rt_sigaction, SIGALRM, NULL, &action, 8), 0);
        action.flags = (action.flags & ~(unsigned long)SA_RESTART) | (i % 2 ? SA_RESTART : 0);
        EQUAL(syscall(SYS_rt_sigaction, SIGALRM, &action, NULL, 8), 0);
        int before = alarms;
        CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
        if (i % 2) {
            order(SEND_ASLEEP, 1);
            EQUAL(recv(fd, &byte, 1, 0), 1);
            verify(your_key, got++, &byte, 1);
            while (alarms == before) usleep(1000);
        } else {
            ERRNO(recv(fd, &byte, 1, 0), EINTR);
        }
    }
    leave(fd);
}

/* ---- second names ---- */

extern ssize_t __read(int, void *, size_t), __write(int, const void *, size_t), __send(int, const void *, size_t, int);
extern int __close(int), __dup2(int, int), __poll(struct pollfd *, nfds_t, int), __fcntl(int, int, ...);
extern int __connect(int, const struct sockaddr *, socklen_t), __select(int, fd_set *, fd_set *, fd_set *, struct timeval *);
extern int __sigaction(int, const struct sigaction *, struct sigaction *);
extern pid_t __fork(void);

static void second_names(int unused) {
    (void)unused;
    int fd = socket(listener_address.ss_family, SOCK_STREAM, 0);
    EQUAL(__connect(fd, (void *)&listener_address, listener_length), 0);
    warm_client(fd);
    char data[100];
    for (int i = 0; i < 200; i++) {
        order(ECHO, (int64_t)1 << 32 | sizeof data);
        fill(my_key, sent, data, sizeof data);
        EQUAL(i % 2 ? __write(fd, data, sizeof data) : __send(fd, data, sizeof data, 0), sizeof data);
        sent += sizeof data;
        struct pollfd p = {fd, POLLIN, 0};
        fd_set reading;
        FD_ZERO(&reading);
        FD_SET(fd, &reading);
        EQUAL(i % 3 ? __poll(&p, 1, -1) : __select(fd + 1, &reading, NULL, NULL, NULL), 1);
        hear();
        EQUAL(__read(fd, data, sizeof data), sizeof data);
        verify(your_key, got, data, sizeof data);
        got += sizeof data;
    }
    EQUAL(__dup2(fd, 60), 60);
    echo_rounds(60, 20, 100);
    EQUAL(__close(60), 0);
    int copy = __fcntl(fd, F_DUPFD, 61);
    EQUAL(copy, 61);
    echo_rounds(copy, 20, 100);
    EQUAL(__close(copy), 0);
    EQUAL(__fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    ERRNO(recv(fd, data, 1, 0), EAGAIN);
    EQUAL(__fcntl(fd, F_SETFL, 0), 0);
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = 0};
    CHECK(__sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval soon = {{0, 0}, {0, 30000}};
    CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
    ERRNO(recv(fd, data, 1, 0), EINTR);
    int status;
    pid_t child = __fork();
    if (child == 0) {
        echo_rounds(fd, 20, 100);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    EQUAL(status, 0);
    sent += 2000, got += 2000;
    echo_rounds(fd, 20, 100);
    order(QUIT, 0);
    EQUAL(__close(fd), 0);
    hear();
}

/* ---- fortified ---- */

extern ssize_t __read_chk(int, void *, size_t, size_t), __recv_chk(int, void *, size_t, size_t, int);
extern ssize_t __recvfrom_chk(int, void *, size_t, size_t, int, struct sockaddr *, socklen_t *);
extern int __poll_chk(struct pollfd *, nfds_t, int, size_t);
extern int __ppoll_chk(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *, size_t);
extern long __fdelt_chk(long);
extern int __dprintf_chk(int, int, const char *, ...);
extern int __vdprintf_chk(int, int, const char *, va_list);

__attribute__((format(printf, 2, 3))) static int vprints(int fd, const char *format, ...) {
    va_list list;
    va_start(list, format);
    int n = __vdprintf_chk(fd, 1, format, list);
    va_end(list);
    return n;
}

static void returns(int fd) {
    char data[4096];
    ssize_t n;
    while ((n = recv(fd, data, sizeof data, 0)) > 0) send_all(fd, data, n);
    EQUAL(n, 0);
    close(fd);
}

static void fortified(int fd) {
    char line[64], wanted[64];
    for (int i = 0; i < 300; i++) {
        int n = snprintf(wanted, sizeof wanted, "%d of %s\n", i, "many");
        EQUAL(i % 2 ? __dprintf_chk(fd, 1, "%d of %s\n", i, "many") : vprints(fd, "%d of %s\n", i, "many"), n);
        struct pollfd p = {fd, POLLIN, 0};
        struct timespec time = {5, 0};
        struct sockaddr_storage from;
        socklen_t from_length = sizeof from;
        EQUAL(i % 3 ? __poll_chk(&p, 1, 5000, sizeof p) : __ppoll_chk(&p, 1, &time, NULL, sizeof p), 1);
        EQUAL(__fdelt_chk(fd), fd / 64);
        wait_queued(fd, n);
        switch (i % 4) {
        case 0: EQUAL(__read_chk(fd, line, sizeof line, sizeof line), n); break;
        case 1: EQUAL(__recv_chk(fd, line, sizeof line, sizeof line, 0), n); break;
        case 2: EQUAL(__recvfrom_chk(fd, line, sizeof line, sizeof line, 0, NULL, NULL), n); break;
        default: EQUAL(__recvfrom_chk(fd, line, sizeof line, sizeof line, 0, (void *)&from, &from_length), n); EQUAL(from_length, 0);
        }
        CHECK(memcmp(line, wanted, n) == 0);
    }
    close(fd);
}

/* A length that is larger than the buffer ends the program, as without a library in between. */
static void overflows(int fd) {
    for (int i = 0; i < 5; i++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            char small[8];
            struct pollfd p = {fd, POLLIN, 0};
            volatile size_t much = 100;
            setenv("LIBC_FATAL_STDERR_", "1", 1);
            close(2);
            struct rlimit none = {0, 0};
            setrlimit(RLIMIT_CORE, &none);
            switch (i) {
            case 0: __read_chk(fd, small, much, sizeof small); break;
            case 1: __recv_chk(fd, small, much, sizeof small, 0); break;
            case 2: __recvfrom_chk(fd, small, much, sizeof small, 0, NULL, NULL); break;
            case 3: __poll_chk(&p, 2, 0, sizeof p); break;
            default: __fdelt_chk(100000);
            }
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFSIGNALED(status));
        EQUAL(WTERMSIG(status), SIGABRT);
    }
    echo_rounds(fd, 20, 100);
    leave(fd);
}

const struct example examples[] = {
    {"transfers", puppet, transfers, 0},
    {"pauses", puppet, pauses, 0},
    {"waits", puppet, waits, 0},
    {"descriptors", puppet, descriptors, 0},
    {"modes", puppet, modes, 0},
    {"connecting", connecting_server, connecting, RAW},
    {"between_files", puppet, between_files, 0},
    {"others", puppet, others, 0},
    {"raw_exit", raw_exit_server, raw_exit, 0},
    {"raw_handler", puppet, raw_handler, 0},
    {"second_names", puppet_when_warm, second_names, RAW},
    {"fortified", returns, fortified, 0},
    {"overflows", puppet, overflows, 0},
    {0},
};

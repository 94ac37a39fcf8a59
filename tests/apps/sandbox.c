/* A process that locks itself in (seccomp), as sshd's and vsftpd's do for what strangers send them: a call that its filter does not
 * list ends it, so nobody may make calls in its name that it does not make itself. And one that may write no files (RLIMIT_FSIZE),
 * which ends it likewise. */
#include "pair.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define ALLOW(call) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_##call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

/* What the examples below call after they have locked themselves in. */
static struct sock_filter filter[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    ALLOW(read), ALLOW(write), ALLOW(recvfrom), ALLOW(sendto), ALLOW(recvmsg), ALLOW(sendmsg), ALLOW(ppoll), ALLOW(close),
    ALLOW(shutdown), ALLOW(exit), ALLOW(exit_group), ALLOW(rt_sigreturn), ALLOW(clock_gettime),
    ALLOW(setuid), ALLOW(setgid), ALLOW(execve), ALLOW(futex), ALLOW(munmap), ALLOW(madvise), ALLOW(clock_nanosleep),
#ifdef __NR_poll
    ALLOW(poll),
#endif
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL),
};
static struct sock_fprog program = {sizeof filter / sizeof *filter, filter};

static void lock_in(void) {
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

/* Rounds with echoes(), in no calls but those listed. */
static void rounds(int fd, int count, size_t size) {
    static char data[100000];
    for (int i = 0; i < count; i++) {
        fill(my_key, sent, data, size);
        send_all(fd, data, size);
        memset(data, 0, size);
        recv_all(fd, data, size);
        verify(my_key, sent, data, size);
        sent += size;
    }
}

static void echoes(int fd) {
    char data[65536];
    ssize_t n;
    while ((n = recv(fd, data, sizeof data, 0)) > 0) send_all(fd, data, n);
    EQUAL(n, 0);
    close(fd);
}

static void by_prctl(int fd) {
    lock_in();
    rounds(fd, 300, 100);
    rounds(fd, 3, 50000);
    close(fd);
    _exit(0);
}

static void by_seccomp(int fd) {
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0);
    rounds(fd, 300, 100);
    _exit(0);
}

static void with_bytes_unread(int fd) {
    char data[10000];
    fill(my_key, 0, data, sizeof data);
    send_all(fd, data, sizeof data);
    recv_all(fd, data, 100);
    wait_queued(fd, sizeof data - 100);
    lock_in();
    recv_all(fd, data + 100, sizeof data - 100);
    verify(my_key, 0, data, sizeof data);
    rounds(fd, 100, 100);
    _exit(0);
}

/* The child talks, locked in, and then the parent. */
static void in_child(int fd) {
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        lock_in();
        rounds(fd, 300, 100);
        _exit(0);
    }
    int status;
    EQUAL(waitpid(pid, &status, 0), pid);
    EQUAL(status, 0);
    rounds(fd, 300, 100);
    close(fd);
}

/* It changes its user, and tries to start a program, in these calls alone. */
static void goes_on(int fd) {
    char *argv[] = {"none", NULL}, *env[] = {"NONE=1", NULL};
    gid_t group = getgid();
    uid_t user = getuid();
    lock_in();
    CHECK(setgid(group) == 0);
    CHECK(setuid(user) == 0);
    ERRNO(execve("/nonexistent", argv, env), ENOENT);
    rounds(fd, 100, 100);
    _exit(0);
}

/* Nothing but read, write and exit. */
static void strictly(int fd) {
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        char data[10];
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0);
        bool well = write(fd, "0123456789", 10) == 10 && read(fd, data, 10) == 10;
        syscall(SYS_exit, !well);
    }
    int status;
    EQUAL(waitpid(pid, &status, 0), pid);
    EQUAL(status, 0);
    rounds(fd, 300, 100);
    close(fd);
}

/* Whether the kernel could, is all that is asked. */
static void asks(int fd) {
    ERRNO(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL), EFAULT);
    echo_rounds(fd, 300, 100);
    leave(fd);
}

static void without_files(int fd) {
    struct rlimit none = {0, 0};
    EQUAL(setrlimit(RLIMIT_FSIZE, &none), 0);
    echo_rounds(fd, 1000, 100);
    leave(fd);
}

/* Threads that sleep in a call on the connection while another one locks itself in: they go on, by the kernel. */
enum { IN_RECV, IN_RECV_OF_ALL, IN_POLL, IN_EPOLL, IN_SEND };
static struct {
    int fd, where;
    atomic_int tid;
} sleeper;

static void *asleep(void *unused) {
    static char data[8 << 20];
    int fd = sleeper.fd;
    (void)unused;
    sleeper.tid = gettid();
    switch (sleeper.where) {
    case IN_RECV: EQUAL(recv(fd, data, sizeof data, 0), 100); break;
    case IN_RECV_OF_ALL: EQUAL(recv(fd, data, 150, MSG_WAITALL), 150); break;
    case IN_POLL: EQUAL(poll(&(struct pollfd){fd, POLLIN, 0}, 1, 10000), 1); break;
    case IN_EPOLL: {
        struct epoll_event event = {.events = EPOLLIN};
        int set = epoll_create1(0);
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
        EQUAL(epoll_wait(set, &event, 1, 10000), 1);
        close(set);
        break;
    }
    case IN_SEND: send_all(fd, data, sizeof data); break;
    }
    if (sleeper.where == IN_POLL || sleeper.where == IN_EPOLL) EQUAL(recv(fd, data, sizeof data, 0), 100);
    return NULL;
}

/* It sends `first` bytes when it has got one, and 100 more when the other side is locked in, and reads all that comes then. */
static void sends_late(int fd, size_t first) {
    static char data[65536];
    for (int i = 0; i < 300; i++) recv_all(fd, data, 100), send_all(fd, data, 100);
    recv_all(fd, data, 1);
    send_all(fd, data, first);
    hear();
    send_all(fd, data, 100);
    while (recv(fd, data, sizeof data, 0) > 0) {}
    close(fd);
}

static void late(int fd) { sends_late(fd, 0); }
static void late_rest(int fd) { sends_late(fd, 50); }

/* `gives_up`: rights alone, so that calls are followed as before. */
static void beside(int fd, int where, bool gives_up) {
    pthread_t thread;
    char data[100];
    for (int i = 0; i < 300; i++) send_all(fd, data, 100), recv_all(fd, data, 100);
    sleeper.fd = fd, sleeper.where = where;
    CHECK(pthread_create(&thread, NULL, asleep, NULL) == 0);
    while (!sleeper.tid) usleep(100);
    wait_asleep(getpid(), sleeper.tid);
    if (where != IN_SEND) send_all(fd, "x", 1);
    usleep(50000);
    if (gives_up) CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    else lock_in();
    tell(0);
    CHECK(pthread_join(thread, NULL) == 0);
    _exit(0);
}

static void beside_recv(int fd) { beside(fd, IN_RECV, false); }
static void beside_recv_of_all(int fd) { beside(fd, IN_RECV_OF_ALL, false); }
static void beside_poll(int fd) { beside(fd, IN_POLL, false); }
static void beside_epoll(int fd) { beside(fd, IN_EPOLL, false); }
static void beside_send(int fd) { beside(fd, IN_SEND, false); }
static void with_less_recv(int fd) { beside(fd, IN_RECV, true); }
static void with_less_recv_of_all(int fd) { beside(fd, IN_RECV_OF_ALL, true); }
static void with_less_poll(int fd) { beside(fd, IN_POLL, true); }
static void with_less_epoll(int fd) { beside(fd, IN_EPOLL, true); }
static void with_less_send(int fd) { beside(fd, IN_SEND, true); }

const struct example examples[] = {
    {"by_prctl", echoes, by_prctl, TCP_OK},
    {"by_seccomp", echoes, by_seccomp, TCP_OK},
    {"with_bytes_unread", echoes, with_bytes_unread, TCP_OK},
    {"in_child", echoes, in_child, TCP_OK},
    {"goes_on", echoes, goes_on, TCP_OK},
    {"strictly", echoes, strictly, TCP_OK},
    {"beside_recv", late, beside_recv, TCP_OK},
    {"beside_recv_of_all", late_rest, beside_recv_of_all, TCP_OK},
    {"beside_poll", late, beside_poll, TCP_OK},
    {"beside_epoll", late, beside_epoll, TCP_OK},
    {"beside_send", late, beside_send, TCP_OK},
    {"with_less_recv", late, with_less_recv, TCP_OK},
    {"with_less_recv_of_all", late_rest, with_less_recv_of_all, TCP_OK},
    {"with_less_poll", late, with_less_poll, TCP_OK},
    {"with_less_epoll", late, with_less_epoll, TCP_OK},
    {"with_less_send", late, with_less_send, TCP_OK},
    {"asks", puppet, asks, 0},
    {"without_files", puppet, without_files, 0},
    {NULL, NULL, NULL, 0},
};

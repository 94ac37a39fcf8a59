/* A process that locks itself in (seccomp), as sshd's and vsftpd's do for what strangers send them: a call that its filter does not
 * list ends it, so nobody may make calls in its name that it does not make itself. And one that may write no files (RLIMIT_FSIZE),
 * which ends it likewise. */
#include "pair.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define ALLOW(call) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_##call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

/* What the examples below call after they have locked themselves in. */
static struct sock_filter filter[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    ALLOW(read), ALLOW(write), ALLOW(recvfrom), ALLOW(sendto), ALLOW(recvmsg), ALLOW(sendmsg), ALLOW(ppoll), ALLOW(close),
    ALLOW(shutdown), ALLOW(exit), ALLOW(exit_group), ALLOW(rt_sigreturn), ALLOW(clock_gettime),
    ALLOW(setuid), ALLOW(setgid), ALLOW(execve),
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

const struct example examples[] = {
    {"by_prctl", echoes, by_prctl, TCP_OK},
    {"by_seccomp", echoes, by_seccomp, TCP_OK},
    {"with_bytes_unread", echoes, with_bytes_unread, TCP_OK},
    {"in_child", echoes, in_child, TCP_OK},
    {"goes_on", echoes, goes_on, TCP_OK},
    {"strictly", echoes, strictly, TCP_OK},
    {"asks", puppet, asks, 0},
    {"without_files", puppet, without_files, 0},
    {NULL, NULL, NULL, 0},
};

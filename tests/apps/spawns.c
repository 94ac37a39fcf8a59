/* More ways to give a connection to another process, or to keep it from one: _Fork() and fork by syscall(), which tell nobody; a
 * spawned program that gets it as numbers 0 and 1, or reads what waits unread and ends; addclosefrom. */
#include "pair.h"
#include <sched.h>
#include <spawn.h>
#include <sys/syscall.h>

extern char **environ;

/* ---- children that pthread_atfork() does not hear of ---- */

static pid_t by_Fork(void) { return _Fork(); }
static pid_t by_clone(void) { return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); }
#ifdef SYS_fork
static pid_t by_fork(void) { return (pid_t)syscall(SYS_fork); }
#else
static pid_t by_fork(void) { return by_clone(); }
#endif

/* The child and then the parent use the connection; then the child keeps it alone. */
static void children(int fd, pid_t (*make)(void)) {
    for (int i = 0; i < 5; i++) {
        pid_t child = make();
        CHECK(child >= 0);
        if (child == 0) {
            echo_rounds(fd, 20, 100);
            _exit(0);
        }
        ended_well(child);
        sent += 2000, got += 2000;
        echo_rounds(fd, 20, 100);
    }
    pid_t us = getpid(), child = make();
    if (child == 0) {
        while (getppid() == us) usleep(1000); /* the parent has closed, and gone */
        echo_rounds(fd, 50, 100);
        leave(fd);
        _exit(0);
    }
    close(fd);
    _exit(0);
}

static void fork_Fork(int fd) { children(fd, by_Fork); }
static void fork_clone(int fd) { children(fd, by_clone); }

/* clone() with a copy of the memory: the child runs a function of its own. */
static int clone_fd;
static int clone_body(void *rounds) {
    echo_rounds(clone_fd, (int)(intptr_t)rounds, 100);
    return 7;
}

static void fork_clone_function(int fd) {
    static _Alignas(16) char stack[256 << 10];
    clone_fd = fd;
    for (intptr_t i = 1; i < 10; i++) {
        int status;
        pid_t child = clone(clone_body, stack + sizeof stack, SIGCHLD, (void *)i);
        CHECK(child > 0);
        CHECK(waitpid(child, &status, 0) == child);
        EQUAL(WEXITSTATUS(status), 7);
        sent += i * 100, got += i * 100;
        echo_rounds(fd, 20, 100);
    }
    ERRNO(clone(NULL, stack + sizeof stack, SIGCHLD, NULL), EINVAL);
    leave(fd);
}

static void fork_syscall(int fd) { children(fd, by_fork); }

/* The child sleeps in a call while the parent writes. */
static void one_each(int fd) {
    order(ECHO, (int64_t)1000 << 32 | 500);
    pid_t child = by_Fork();
    CHECK(child >= 0);
    if (child == 0) {
        for (int i = 0; i < 1000; i++) take(fd, 500);
        _exit(0);
    }
    for (int i = 0; i < 1000; i++) put(fd, 500);
    ended_well(child);
    hear();
    leave(fd);
}

/* ---- spawned programs ---- */

static pid_t spawn(const posix_spawn_file_actions_t *actions, char *const argv[]) {
    pid_t child;
    CHECK(posix_spawnp(&child, argv[0], actions, NULL, argv, environ) == 0);
    return child;
}

/* cat gets the connection as 0 and 1; every other number is closed before it starts. */
static void all_but_two(int fd) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, 0);
    posix_spawn_file_actions_adddup2(&actions, fd, 1);
    CHECK(posix_spawn_file_actions_addclosefrom_np(&actions, 3) == 0);
    pid_t child = spawn(&actions, (char *[]){"cat", NULL});
    posix_spawn_file_actions_destroy(&actions);
    close(fd);
    meet();
    ended_well(child);
}

/* A program that has no business with the connection, which close-on-exec or addclosefrom keeps from it. */
static void beside(int fd) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    CHECK(posix_spawn_file_actions_addclosefrom_np(&actions, 3) == 0);
    for (int i = 0; i < 10; i++) {
        CHECK(fcntl(fd, F_SETFD, i % 2 ? FD_CLOEXEC : 0) == 0);
        pid_t child = spawn(&actions, (char *[]){"true", NULL});
        echo_rounds(fd, 20, 100);
        ended_well(child);
        echo_rounds(fd, 20, 100);
    }
    posix_spawn_file_actions_destroy(&actions);
    leave(fd);
}

/* With a close-on-exec connection that an action duplicates onto itself, which takes the mark away (POSIX, glibc 2.29). */
static void onto_itself(int fd) {
    CHECK(fcntl(fd, F_SETFD, FD_CLOEXEC) == 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, fd);
    char command[64];
    snprintf(command, sizeof command, "exec cat <&%d >&%d", fd, fd);
    pid_t child = spawn(&actions, (char *[]){"sh", "-c", command, NULL});
    posix_spawn_file_actions_destroy(&actions);
    close(fd);
    meet();
    ended_well(child);
}

static void talk(int fd) {
    char out[500], in[500], byte;
    meet();
    for (int i = 0; i < 100; i++) {
        fill(1, i * 500, out, sizeof out);
        send_all(fd, out, sizeof out);
        recv_all(fd, in, sizeof in);
        CHECK(memcmp(in, out, sizeof in) == 0);
    }
    CHECK(shutdown(fd, SHUT_WR) == 0);
    EQUAL(recv(fd, &byte, 1, 0), 0);
    close(fd);
}

/* The next program reads what waits, all of it, and ends: an orderly end for the other side, which has written nothing since. */
static void read_by_another(int fd) {
    ask(SEND, 20000);
    wait_queued(fd, 20000);
    order(QUIT, 0);
    CHECK(dup2(fd, 0) == 0);
    close(fd);
    execlp("sh", "sh", "-c", "head -c 20000 >/dev/null", NULL);
    _exit(127);
}

/* It leaves something unread: a reset. */
static void read_in_part(int fd) {
    ask(SEND, 20000);
    wait_queued(fd, 20000);
    order(READ_RESET, 0);
    CHECK(dup2(fd, 0) == 0);
    close(fd);
    execlp("dd", "dd", "bs=1000", "count=1", "of=/dev/null", "status=none", NULL);
    _exit(127);
}

static void reads_reset(int fd) {
    char byte;
    EQUAL(hear(), SEND);
    size_t length = hear();
    hear(), hear();
    put(fd, length);
    tell(0);
    EQUAL(hear(), READ_RESET);
    hear(), hear(), hear();
    ERRNO(recv(fd, &byte, 1, 0), ECONNRESET);
    close(fd);
}

static void quits(int fd) {
    char byte;
    EQUAL(hear(), SEND);
    size_t length = hear();
    hear(), hear();
    put(fd, length);
    tell(0);
    EQUAL(hear(), QUIT);
    hear(), hear(), hear();
    EQUAL(recv(fd, &byte, 1, 0), 0);
    close(fd);
}

const struct example examples[] = {
    {"fork_Fork", puppet, fork_Fork, 0},
    {"fork_clone", puppet, fork_clone, 0},
    {"fork_clone_function", puppet, fork_clone_function, 0},
    {"fork_syscall", puppet, fork_syscall, 0},
    {"one_each", puppet, one_each, 0},
    {"all_but_two", all_but_two, talk, 0},
    {"beside", puppet, beside, 0},
    {"onto_itself", onto_itself, talk, 0},
    {"read_by_another", quits, read_by_another, 0},
    {"read_in_part", reads_reset, read_in_part, 0},
    {0},
};

/* A connection crosses exec(): inetd's way (numbers 0 and 1 of another program), posix_spawn, system(), popen(), a program that
 * replaces itself, a static program and one without the environment, which no library can help. Data that waited unread before
 * the exec is the new program's. Programs started beside a connection must not disturb it, nor keep it open if it is O_CLOEXEC. */
#include "pair.h"
#include <libgen.h>
#include <spawn.h>
#include <sys/syscall.h>

extern char **environ;

static void to_01(int fd) {
    CHECK(dup2(fd, 0) == 0);
    CHECK(dup2(fd, 1) == 1);
    if (fd > 1) close(fd);
}

/* ---- the server side hands the connection to a cat ---- */

static void talk_to_cat(int fd) {
    meet();
    for (int i = 0; i < 200; i++) {
        char out[500], in[500];
        fill(1, i * 500, out, sizeof out);
        send_all(fd, out, sizeof out);
        recv_all(fd, in, sizeof in);
        CHECK(memcmp(in, out, sizeof in) == 0);
    }
    char byte;
    CHECK(shutdown(fd, SHUT_WR) == 0);
    EQUAL(recv(fd, &byte, 1, 0), 0);
    close(fd);
}

/* The client has already sent `size` bytes that the cat must find; with `little`, which the kernel takes by and by. */
static void talk_first(int fd, size_t size, int little) {
    char *out = malloc(size), *in = malloc(size), byte;
    fill(2, 0, out, size);
    send_all(fd, out, size);
    if (little) CHECK(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &little, sizeof little) == 0);
    meet();
    recv_all(fd, in, size);
    CHECK(memcmp(in, out, size) == 0);
    free(out);
    free(in);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    EQUAL(recv(fd, &byte, 1, 0), 0);
    close(fd);
}

static void talk_ahead(int fd) {
    talk_first(fd, 5000, 0);
}

/* More than the kernel takes at once: what waits unread is on its way long after the exec. */
enum { MUCH = 60000 };

static void talk_far_ahead(int fd) {
    talk_first(fd, MUCH, 4096);
}

static void inetd(int fd) {
    pid_t child = fork();
    if (child == 0) {
        to_01(fd);
        execl("/bin/cat", "cat", NULL);
        _exit(127);
    }
    close(fd);
    meet();
    ended_well(child);
}

static void inetd_unread(int fd) {
    wait_queued(fd, 5000);
    inetd(fd);
}

static void instead_of_us(int fd) {
    /* exec without fork: a third process waits for it, since pair.c waits for the client in this one. */
    pid_t child = fork();
    if (child != 0) {
        close(fd);
        ended_well(child);
        return;
    }
    char data[64];
    meet();
    recv_all(fd, data, sizeof data); /* used a little in the process that execs */
    send_all(fd, data, sizeof data);
    to_01(fd);
    execl("/bin/cat", "cat", NULL);
    _exit(127);
}

static char *beside(const char *name) {
    static char path[PATH_MAX];
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    CHECK(n > 0);
    self[n] = 0;
    snprintf(path, sizeof path, "%s/%s", dirname(self), name);
    return path;
}

static void static_program(int fd) {
    char *path = beside("static_cat");
    pid_t child = fork();
    if (child == 0) {
        to_01(fd);
        execl(path, "static_cat", NULL);
        _exit(127);
    }
    close(fd);
    meet();
    ended_well(child);
}

static void static_program_unread(int fd) {
    wait_queued(fd, 5000);
    static_program(fd);
}

static void much_unread(int fd) {
    int little = 4096, pipes[2];
    char byte;
    wait_queued(fd, MUCH);
    meet();
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &little, sizeof little) == 0);
    char *path = beside("static_cat");
    CHECK(pipe(pipes) == 0);
    pid_t child = fork();
    if (child == 0) {
        close(pipes[1]);
        EQUAL(read(pipes[0], &byte, 1), 0); /* until nobody else has the connection */
        to_01(fd);
        execl(path, "static_cat", NULL);
        _exit(127);
    }
    close(fd);
    close(pipes[0]);
    close(pipes[1]);
    ended_well(child);
}

static void empty_environment(int fd) {
    pid_t child = fork();
    if (child == 0) {
        char *argv[] = {"cat", NULL}, *none[] = {NULL};
        to_01(fd);
        execve("/bin/cat", argv, none);
        _exit(127);
    }
    close(fd);
    meet();
    ended_well(child);
}

static void by_syscall(int fd) {
    pid_t child = fork();
    if (child == 0) {
        char *argv[] = {"cat", NULL};
        to_01(fd);
        syscall(SYS_execve, "/bin/cat", argv, environ);
        _exit(127);
    }
    close(fd);
    meet();
    ended_well(child);
}

static void spawn(int fd) {
    pid_t child;
    posix_spawn_file_actions_t actions;
    char *argv[] = {"cat", NULL};
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, 0);
    posix_spawn_file_actions_adddup2(&actions, fd, 1);
    posix_spawn_file_actions_addclose(&actions, fd);
    CHECK(posix_spawn(&child, "/bin/cat", &actions, NULL, argv, environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    close(fd);
    meet();
    ended_well(child);
}

static void spawn_unread(int fd) {
    wait_queued(fd, 5000);
    spawn(fd);
}

static void by_system(int fd) {
    char command[100];
    snprintf(command, sizeof command, "cat <&%d >&%d", fd, fd);
    meet();
    EQUAL(system(command), 0);
    close(fd);
}

static void vfork_exec(int fd) {
    pid_t child = vfork();
    if (child == 0) {
        dup2(fd, 0);
        dup2(fd, 1);
        execl("/bin/cat", "cat", NULL);
        _exit(127);
    }
    close(fd);
    meet();
    ended_well(child);
}

/* A failed exec changes nothing. */
static void failed(int fd) {
    for (int i = 0; i < 20; i++) {
        ERRNO(execl("/nonexistent", "x", NULL), ENOENT);
        echo_rounds(fd, 10, 100);
    }
    leave(fd);
}

/* A child prints into the connection, then the parent goes on. */
static void child_speaks(int fd) {
    char line[16];
    meet();
    for (int i = 0; i < 10; i++) {
        recv_all(fd, line, 6);
        CHECK(memcmp(line, "hello\n", 6) == 0);
        send_all(fd, "ok", 2);
    }
    close(fd);
}

static void child_speaks_server(int fd) {
    char command[100], answer[2];
    snprintf(command, sizeof command, "echo hello >&%d", fd);
    meet();
    for (int i = 0; i < 10; i++) {
        EQUAL(system(command), 0);
        recv_all(fd, answer, 2);
    }
    char byte;
    EQUAL(recv(fd, &byte, 1, 0), 0);
}

/* popen(): a child reads a line from the connection and gives it to the parent by a pipe. */
static void by_popen(int fd) {
    meet();
    for (int i = 0; i < 10; i++) {
        char line[32], back[8];
        snprintf(line, sizeof line, "line %d\n", i);
        send_all(fd, line, strlen(line));
        recv_all(fd, back, 2);
        CHECK(memcmp(back, "ok", 2) == 0);
    }
    close(fd);
}

static void by_popen_server(int fd) {
    char command[100], line[64], wanted[64], byte;
    snprintf(command, sizeof command, "head -c 7 <&%d", fd);
    meet();
    for (int i = 0; i < 10; i++) {
        FILE *f = popen(command, "r");
        CHECK(f != NULL);
        CHECK(fgets(line, sizeof line, f) != NULL);
        EQUAL(pclose(f), 0);
        snprintf(wanted, sizeof wanted, "line %d\n", i);
        CHECK(strcmp(line, wanted) == 0);
        send_all(fd, "ok", 2);
    }
    EQUAL(recv(fd, &byte, 1, 0), 0);
}

/* Programs that have nothing to do with the connection but inherit it. */
static void bystanders(int fd) {
    for (int i = 0; i < 10; i++) {
        EQUAL(system("true"), 0);
        echo_rounds(fd, 20, 100);
        FILE *f = popen("echo x", "r");
        char line[8];
        CHECK(fgets(line, sizeof line, f) != NULL);
        EQUAL(pclose(f), 0);
        echo_rounds(fd, 20, 100);
    }
    leave(fd);
}

/* With O_CLOEXEC a child that lives on does not hold the connection: the other side sees the end at once. */
static void close_on_exec(int fd) {
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    fcntl(pipes[1], F_SETFD, FD_CLOEXEC);
    CHECK(fcntl(fd, F_SETFD, FD_CLOEXEC) == 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(pipes[0], 0);
        execl("/bin/cat", "cat", NULL); /* until the pipe ends */
        _exit(127);
    }
    close(pipes[0]);
    echo_rounds(fd, 200, 100);
    leave(fd);
    EQUAL(waitpid(child, NULL, WNOHANG), 0);
    close(pipes[1]);
    ended_well(child);
}

/* Without O_CLOEXEC it does: the end is seen when the child goes. */
static void held_by_child(int fd) {
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    fcntl(pipes[1], F_SETFD, FD_CLOEXEC);
    pid_t child = fork();
    if (child == 0) {
        dup2(pipes[0], 0);
        execl("/bin/cat", "cat", NULL);
        _exit(127);
    }
    close(pipes[0]);
    put(fd, 100);
    close(fd);
    meet(); /* the other side sees no end yet */
    close(pipes[1]);
    ended_well(child);
    meet();
}

static void held_by_child_server(int fd) {
    char byte;
    take(fd, 100);
    meet();
    EQUAL(recv(fd, &byte, 1, 0), 0);
    meet();
}

const struct example examples[] = {
    {"inetd", inetd, talk_to_cat, 0},
    {"inetd_unread", inetd_unread, talk_ahead, 0},
    {"instead_of_us", instead_of_us, talk_to_cat, 0},
    {"static_program", static_program, talk_to_cat, 0},
    {"static_program_unread", static_program_unread, talk_ahead, 0},
    {"much_unread", much_unread, talk_far_ahead, 0},
    {"empty_environment", empty_environment, talk_to_cat, 0},
    {"by_syscall", by_syscall, talk_to_cat, TCP_OK},
    {"spawn", spawn, talk_to_cat, 0},
    {"spawn_unread", spawn_unread, talk_ahead, 0},
    {"by_system", by_system, talk_to_cat, 0},
    {"vfork_exec", vfork_exec, talk_to_cat, 0},
    {"failed", puppet, failed, 0},
    {"child_speaks", child_speaks_server, child_speaks, 0},
    {"by_popen", by_popen_server, by_popen, 0},
    {"bystanders", puppet, bystanders, 0},
    {"close_on_exec", puppet, close_on_exec, 0},
    {"held_by_child", held_by_child_server, held_by_child, 0},
    {0},
};

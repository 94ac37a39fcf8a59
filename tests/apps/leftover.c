/* What lies unread when a connection crosses into a process that knows nothing of how it got there, and its writer can send no
 * more: it has closed, was killed, has shut its half, or had gone another way before. Not a byte may be lost, what follows comes
 * behind it, the other direction goes on, and the addresses stay. By exec, posix_spawn, dup2 to standard input, SCM_RIGHTS. */
#include "pair.h"
#include <spawn.h>

extern char **environ;

enum { AHEAD = 100000, MORE = 3000 };

/* Until the kernel tells of the end of what the peer sends. */
static void wait_end(int fd) {
    struct pollfd p = {fd, POLLRDHUP, 0};
    do {
        EQUAL(poll(&p, 1, 5000), 1);
    } while (!(p.revents & POLLRDHUP));
}

/* All that comes out of `from`, which must be the peer's next `length` bytes. */
static void take_by(int from, size_t length) {
    static char data[1 << 16];
    size_t done = 0;
    ssize_t n;
    while ((n = read(from, data, sizeof data)) > 0) {
        CHECK(done + n <= length);
        verify(your_key, got + done, data, n);
        done += n;
    }
    EQUAL(n, 0);
    EQUAL(done, length);
    got += done;
}

/* A static program reads the connection, until its end or a reset, and writes to a pipe. */
static void through_cat_until(int fd, size_t length, bool reset) {
    int out[2];
    CHECK(pipe(out) == 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(fd, 0);
        dup2(out[1], 1);
        closefrom(3);
        execl(static_cat(), "static_cat", NULL);
        _exit(127);
    }
    close(fd);
    close(out[1]);
    take_by(out[0], length);
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    EQUAL(WEXITSTATUS(status), reset);
}

static void through_cat(int fd, size_t length) {
    through_cat_until(fd, length, false);
}

/* ---- the writer has closed ---- */

static void sends_and_closes(int fd) {
    put(fd, AHEAD);
    close(fd);
    meet();
}

static void exec_after_close(int fd) {
    wait_queued(fd, AHEAD);
    wait_end(fd);
    through_cat(fd, AHEAD);
    meet();
}

static void spawn_after_close(int fd) {
    int out[2];
    pid_t child;
    posix_spawn_file_actions_t actions;
    char *argv[] = {"static_cat", NULL};
    wait_queued(fd, AHEAD);
    wait_end(fd);
    CHECK(pipe2(out, O_CLOEXEC) == 0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    CHECK(posix_spawn(&child, static_cat(), &actions, NULL, argv, environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    close(fd);
    close(out[1]);
    take_by(out[0], AHEAD);
    ended_well(child);
    meet();
}

static void vfork_after_close(int fd) {
    int out[2];
    char *program = static_cat();
    wait_queued(fd, AHEAD);
    wait_end(fd);
    CHECK(pipe2(out, O_CLOEXEC) == 0);
    pid_t child = vfork();
    if (child == 0) {
        dup2(fd, 0);
        dup2(out[1], 1);
        execl(program, "static_cat", NULL);
        _exit(127);
    }
    close(fd);
    close(out[1]);
    take_by(out[0], AHEAD);
    ended_well(child);
    meet();
}

/* A child that has nothing to do with the connection leaves it to us. */
static void bystander_after_close(int fd) {
    wait_queued(fd, AHEAD);
    wait_end(fd);
    EQUAL(system("true"), 0);
    take(fd, AHEAD / 2);
    pid_t child = fork();
    if (child == 0) {
        execl("/bin/true", "true", NULL);
        _exit(127);
    }
    ended_well(child);
    take_by(fd, AHEAD - AHEAD / 2);
    close(fd);
    meet();
}

/* Standard input as a stream: libc's own reads. */
static void stream_after_close(int fd) {
    static char data[AHEAD + 1];
    wait_queued(fd, AHEAD);
    wait_end(fd);
    CHECK(dup2(fd, 0) == 0);
    EQUAL(fread(data, 1, sizeof data, stdin), AHEAD);
    CHECK(feof(stdin));
    verify(your_key, got, data, AHEAD);
    close(fd);
    meet();
}

static void names_after_close(int fd) {
    struct sockaddr_storage own[2] = {0}, peer[2] = {0};
    socklen_t length = sizeof own[0];
    wait_queued(fd, AHEAD);
    wait_end(fd);
    for (int i = 0; i < 2; i++) {
        length = sizeof own[i];
        CHECK(getsockname(fd, (struct sockaddr *)&own[i], &length) == 0);
        length = sizeof peer[i];
        CHECK(getpeername(fd, (struct sockaddr *)&peer[i], &length) == 0);
        /* What is said to a peer that has closed would come back as a reset. */
        if (i == 0) EQUAL(system("sleep 0.1"), 0);
    }
    CHECK(memcmp(&own[0], &own[1], sizeof own[0]) == 0);
    CHECK(memcmp(&peer[0], &peer[1], sizeof peer[0]) == 0);
    take_by(fd, AHEAD);
    close(fd);
    meet();
}

/* ---- the writer was killed ---- */

static void sends_and_dies(int fd) {
    put(fd, AHEAD);
    kill(getpid(), SIGKILL);
}

static void exec_after_death(int fd) {
    wait_queued(fd, AHEAD);
    wait_end(fd);
    through_cat(fd, AHEAD);
}

/* With bytes of ours unread: a reset, behind what it had sent. */
static void exec_after_death_unread(int fd) {
    put(fd, 100);
    tell(0);
    wait_queued(fd, MORE);
    wait_end(fd);
    through_cat_until(fd, MORE, true);
}

static void sends_and_dies_unread(int fd) {
    hear();
    put(fd, MORE); /* little: the rest would be lost with the reset */
    kill(getpid(), SIGKILL);
}

/* ---- the writer has shut its half, and reads on ---- */

static void sends_and_shuts(int fd) {
    char byte;
    put(fd, AHEAD);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    meet();
    char *all = malloc(AHEAD);
    recv_all(fd, all, AHEAD);
    verify(FROM_CLIENT, sent - AHEAD, all, AHEAD);
    free(all);
    EQUAL(recv(fd, &byte, 1, 0), 0);
    close(fd);
}

static void exec_after_shutdown(int fd) {
    wait_queued(fd, AHEAD);
    wait_end(fd);
    pid_t child = fork();
    if (child == 0) {
        dup2(fd, 0);
        dup2(fd, 1);
        closefrom(3);
        execl(static_cat(), "static_cat", NULL);
        _exit(127);
    }
    close(fd);
    meet();
    ended_well(child);
}

/* ---- the writer had gone back to tcp, and sent on there ---- */

static void sends_both_ways(int fd) {
    put(fd, AHEAD);
    EQUAL(system("true"), 0); /* a child that holds the connection: it goes back to what every program knows */
    put(fd, MORE);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    meet();
    close(fd);
}

static void exec_after_change(int fd) {
    wait_end(fd);
    through_cat(fd, AHEAD + MORE);
    meet();
}

/* ---- passed on ---- */

/* The receiver makes its calls past every library. */
static void passed_after_close(int listener) {
    int channel[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, channel) == 0);
    pid_t child = fork();
    if (child == 0) {
        char byte, control[CMSG_SPACE(sizeof(int))] = {0};
        struct iovec v = {&byte, 1};
        struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        int out[2], fd;
        CHECK(pipe(out) == 0);
        EQUAL(recvmsg(channel[1], &m, 0), 1);
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
        close(channel[1]);
        pid_t cat = fork();
        if (cat == 0) {
            dup2(fd, 0);
            dup2(out[1], 1);
            closefrom(3);
            execl(static_cat(), "static_cat", NULL);
            _exit(127);
        }
        close(fd);
        close(out[1]);
        EQUAL(recv(channel[0], &got, sizeof got, 0), sizeof got);
        take_by(out[0], AHEAD);
        ended_well(cat);
        _exit(0);
    }
    int fd = answer(listener);
    warm_server(fd);
    wait_queued(fd, AHEAD);
    wait_end(fd);
    give(channel[0], fd);
    close(fd);
    EQUAL(send(channel[1], &got, sizeof got, 0), sizeof got);
    ended_well(child);
    meet();
}

static void dials_sends_and_closes(int unused) {
    (void)unused;
    int fd = dial();
    warm_client(fd);
    sends_and_closes(fd);
}

/* What is unread goes back to tcp, and is sent by its writer. The kernel of that one has no room for all of it, and the program goes on to a read: the rest is sent meanwhile. */
static void leaves(int fd, bool until_told) {
    size_t much = (size_t)hear();
    pid_t writer = (pid_t)hear();
    go_by_tcp(fd);
    tell(0);
    if (until_told) hear();
    else wait_asleep(writer, writer);
    take(fd, much);
    put(fd, 1);
    wait_end(fd);
}

static void leaves_and_reads(int fd) {
    leaves(fd, false);
}

static void leaves_and_reads_when_told(int fd) {
    leaves(fd, true);
}

/* Hears of it in calls that send nothing of their own. */
static void writes_much(int fd) {
    int size = 4096;
    struct pollfd nothing = {fd, POLLIN, 0};
    EQUAL(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size), 0);
    set_nonblocking(fd, true);
    size_t much = fill_up(fd);
    set_nonblocking(fd, false);
    tell((int64_t)much);
    tell(getpid());
    while (!is_told()) EQUAL(poll(&nothing, 1, 0), 0);
    hear();
}

static void writes_and_reads(int fd) {
    writes_much(fd);
    take(fd, 1);
    close(fd);
}

/* A time limit holds meanwhile. */
static void writes_and_reads_for_a_while(int fd) {
    char byte;
    struct timeval limit = {0, 50000}, none = {0, 0};
    writes_much(fd);
    EQUAL(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    ERRNO(recv(fd, &byte, 1, 0), EAGAIN);
    EQUAL(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none), 0);
    tell(0);
    take(fd, 1);
    close(fd);
}

/* The same of a writer that is killed before all of it is sent: what it had written is there. In no call that could have sent the rest, or after one that sent some of it. */
static void leaves_and_reads_to_the_end(int fd) {
    static char data[1 << 16];
    int64_t much = hear();
    ssize_t n;
    go_by_tcp(fd);
    tell(0);
    for (; (n = read(fd, data, sizeof data)) > 0; got += (uint64_t)n, much -= n) verify(your_key, got, data, (size_t)n);
    /* A byte that was to wake the writer, and that it never saw, makes a reset of its end. Between hosts what was on its way may be lost with the writer,
     * and never unsaid. */
    CHECK(n == 0 || errno == ECONNRESET);
    if (n == 0 || !getenv("HOSTS")) EQUAL(much, 0);
    close(fd);
}

static void writes_and_dies_after(int fd, bool a_call) {
    static char data[1 << 16]; /* at once, which gets a connection in memory more room than the kernel has */
    int size = 4096;
    int64_t before = (int64_t)sent;
    ssize_t n;
    EQUAL(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size), 0);
    for (fill(my_key, sent, data, sizeof data); (n = send(fd, data, sizeof data, MSG_DONTWAIT)) > 0; fill(my_key, sent, data, sizeof data)) sent += (uint64_t)n;
    EQUAL(errno, EAGAIN);
    tell((int64_t)sent - before);
    hear();
    if (a_call) EQUAL(poll(&(struct pollfd){fd, POLLIN, 0}, 1, 0), 0);
    kill(getpid(), SIGKILL);
}

static void writes_and_dies(int fd) {
    writes_and_dies_after(fd, false);
}

static void writes_sends_some_and_dies(int fd) {
    writes_and_dies_after(fd, true);
}

const struct example examples[] = {
    {"exec_after_close", exec_after_close, sends_and_closes, 0},
    {"spawn_after_close", spawn_after_close, sends_and_closes, 0},
    {"vfork_after_close", vfork_after_close, sends_and_closes, 0},
    {"bystander_after_close", bystander_after_close, sends_and_closes, 0},
    {"stream_after_close", stream_after_close, sends_and_closes, 0},
    {"names_after_close", names_after_close, sends_and_closes, 0},
    {"names_after_close_v6", names_after_close, sends_and_closes, V6},
    {"names_after_close_mapped", names_after_close, sends_and_closes, MAPPED},
    {"exec_after_death", exec_after_death, sends_and_dies, DIES},
    {"exec_after_death_unread", exec_after_death_unread, sends_and_dies_unread, DIES},
    {"exec_after_shutdown", exec_after_shutdown, sends_and_shuts, 0},
    {"exec_after_change", exec_after_change, sends_both_ways, 0},
    {"sent_on_by_read", leaves_and_reads, writes_and_reads, 0},
    {"sent_on_by_timed_read", leaves_and_reads_when_told, writes_and_reads_for_a_while, 0},
    {"unsent_at_death", leaves_and_reads_to_the_end, writes_and_dies, DIES},
    {"partly_unsent_at_death", leaves_and_reads_to_the_end, writes_sends_some_and_dies, DIES},
    {"passed_after_close", passed_after_close, dials_sends_and_closes, RAW},
    {0},
};

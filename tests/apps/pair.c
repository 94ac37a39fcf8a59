/* The two processes of an example, their connection, and the puppet. pair.h says what it is for. */
#include "pair.h"
#include "moving.h"
#include <grp.h>
#include <libgen.h>
#include <sched.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { CONTROL_FD = 900 }; /* out of the way of examples that look at descriptor numbers */

bool is_server;
int family_flags;
uint64_t sent, got;
unsigned my_key, your_key;
struct sockaddr_storage listener_address;
socklen_t listener_length;
const char *self_case;
extern char **environ;

static pid_t client_pid;
/* With HOSTS="A B ADDRESS ADDRESS6" in the environment: files of two network namespaces, one for each process, and the addresses of the server's. */
static char *hosts[4];
static void go_to_a_host(void);
static const struct example *find(const char *name);
static int listen_somewhere(void);
static void run_server(const struct example *example);
static void run_client(const struct example *example, int port);
static bool blocks(int signal);
static void become(const char *user, char **argv);

int main(int argc, char **argv) {
    if (argc < 2) {
        for (const struct example *e = examples; e->name; e++) puts(e->name);
        return 2;
    }
    const struct example *example = find(argv[1]);
    self_case = example->name;
    family_flags = example->flags & (V6 | MAPPED);
    is_server = argc < 3;
    my_key = is_server ? FROM_SERVER : FROM_CLIENT;
    your_key = is_server ? FROM_CLIENT : FROM_SERVER;
    if (getenv("HOSTS")) go_to_a_host();
    if (!is_server && getenv("CLIENT_USER")) become(getenv("CLIENT_USER"), argv);
    if (is_server)
        run_server(example);
    else
        run_client(example, atoi(argv[2]));
    for (int signal = 1; signal < 32; signal++) EQUAL(blocks(signal), 0);
    return 0;
}

static void go_to_a_host(void) {
    char *words = strdup(getenv("HOSTS"));
    for (int i = 0; i < 4; i++) CHECK((hosts[i] = strsep(&words, " ")) != NULL);
    int host = open(hosts[is_server ? 0 : 1], O_RDONLY | O_CLOEXEC);
    EQUAL(setns(host, CLONE_NEWNET), 0);
    close(host);
}

static bool blocks(int signal) {
    sigset_t mask;
    CHECK(sigprocmask(SIG_BLOCK, NULL, &mask) == 0);
    return sigismember(&mask, signal) == 1;
}

static const struct example *find(const char *name) {
    for (const struct example *e = examples; e->name; e++)
        if (!strcmp(e->name, name)) return e;
    fprintf(stderr, "no example is called %s\n", name);
    exit(2);
}

static void set_address(int port) {
    memset(&listener_address, 0, sizeof listener_address);
    if (family_flags) {
        struct sockaddr_in6 *a = (void *)&listener_address;
        a->sin6_family = AF_INET6;
        a->sin6_port = htons(port);
        char mapped[64];
        snprintf(mapped, sizeof mapped, "::ffff:%s", hosts[2] ? hosts[2] : "127.0.0.1");
        CHECK(inet_pton(AF_INET6, family_flags & MAPPED ? mapped : hosts[3] ? hosts[3] : "::1", &a->sin6_addr) == 1);
        listener_length = sizeof *a;
    } else {
        struct sockaddr_in *a = (void *)&listener_address;
        a->sin_family = AF_INET;
        a->sin_port = htons(port);
        CHECK(inet_pton(AF_INET, hosts[2] ? hosts[2] : "127.0.0.1", &a->sin_addr) == 1);
        listener_length = sizeof *a;
    }
}

static int listen_somewhere(void) {
    set_address(0);
    int fd = socket(listener_address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    CHECK(fd >= 0);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
    CHECK(bind(fd, (void *)&listener_address, listener_length) == 0);
    CHECK(listen(fd, 512) == 0);
    CHECK(getsockname(fd, (void *)&listener_address, &listener_length) == 0);
    return fd;
}

static void run_server(const struct example *example) {
    int control[2], listener = listen_somewhere();
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, control) == 0);
    int port = ntohs(((struct sockaddr_in *)&listener_address)->sin_port); /* at the same place for both families */
    char text[16];
    snprintf(text, sizeof text, "%d", port);
    char *argv[] = {(char *)program_invocation_name, (char *)example->name, text, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, control[1], CONTROL_FD);
    CHECK(posix_spawn(&client_pid, "/proc/self/exe", &actions, NULL, argv, environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    close(control[1]);
    CHECK(dup3(control[0], CONTROL_FD, O_CLOEXEC) == CONTROL_FD);
    close(control[0]);

    if (example->flags & RAW) {
        example->server(listener);
        close(listener);
    } else {
        int fd = answer(listener);
        close(listener);
        warm_server(fd);
        example->server(fd);
    }
    int status;
    CHECK(waitpid(client_pid, &status, 0) == client_pid);
    if (example->flags & DIES) {
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    } else {
        EQUAL(status, 0);
    }
}

/* A program that has changed its user gives up what it shares, so the client is started anew. */
static void become(const char *user, char **argv) {
    uid_t id = atoi(user);
    EQUAL(setgroups(0, NULL), 0);
    EQUAL(setresgid(id, id, id), 0);
    EQUAL(setresuid(id, id, id), 0);
    unsetenv("CLIENT_USER");
    execv("/proc/self/exe", argv);
    CHECK(!"execv");
}

static void run_client(const struct example *example, int port) {
    fcntl(CONTROL_FD, F_SETFD, FD_CLOEXEC);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    set_address(port);
    if (example->flags & RAW) {
        example->client(-1);
        return;
    }
    int fd = dial();
    warm_client(fd);
    example->client(fd);
}

/* ---- checks and data ---- */

void fail(const char *file, int line, const char *what, long long wrong, long long wanted) {
    int error = errno;
    const char *name = strrchr(file, '/');
    fprintf(stderr, "%s:%d: %s of '%s' (pid %d): not true: %s", name ? name + 1 : file, line, is_server ? "server" : "client",
            self_case, getpid(), what);
    if (wrong != wanted) fprintf(stderr, ": got %lld, wanted %lld", wrong, wanted);
    fprintf(stderr, " (errno %d %s; sent %llu, got %llu)\n", error, strerror(error), (unsigned long long)sent,
            (unsigned long long)got);
    _exit(1);
}

uint8_t byte_at(unsigned key, uint64_t at) {
    uint64_t x = (at / 8 + 1) * 0x9E3779B97F4A7C15ull + key * 0xD1B54A32D192ED03ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x ^= x >> 27;
    return (uint8_t)(x >> (8 * (at % 8)));
}

void fill(unsigned key, uint64_t at, void *buffer, size_t length) {
    for (size_t i = 0; i < length; i++) ((uint8_t *)buffer)[i] = byte_at(key, at + i);
}

void verify(unsigned key, uint64_t at, const void *buffer, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (((const uint8_t *)buffer)[i] != byte_at(key, at + i)) {
            fprintf(stderr, "byte %llu of the stream is wrong\n", (unsigned long long)(at + i));
            fail(__FILE__, __LINE__, "the byte is the one sent", ((const uint8_t *)buffer)[i], byte_at(key, at + i));
        }
}

void send_all(int fd, const void *data, size_t length) {
    for (size_t done = 0; done < length;) {
        ssize_t n = send(fd, (const char *)data + done, length - done, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        CHECK(n > 0);
        done += n;
    }
}

void recv_all(int fd, void *data, size_t length) {
    for (size_t done = 0; done < length;) {
        ssize_t n = recv(fd, (char *)data + done, length - done, 0);
        if (n < 0 && errno == EINTR) continue;
        CHECK(n > 0);
        done += n;
    }
}

void put(int fd, size_t length) {
    char *data = malloc(length + 1);
    fill(my_key, sent, data, length);
    send_all(fd, data, length);
    sent += length;
    free(data);
}

void take(int fd, size_t length) {
    char *data = malloc(length + 1);
    recv_all(fd, data, length);
    verify(your_key, got, data, length);
    got += length;
    free(data);
}

void echo_rounds(int fd, int rounds, size_t size) {
    order(ECHO, (int64_t)rounds << 32 | (int64_t)size);
    for (int i = 0; i < rounds; i++) {
        put(fd, size);
        take(fd, size);
    }
    hear();
}

/* ---- connections ---- */

static int new_socket(int flags) {
    int fd = socket(listener_address.ss_family, SOCK_STREAM | flags, 0), one = 1;
    CHECK(fd >= 0);
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    return fd;
}

int dial(void) {
    int fd = new_socket(0);
    CHECK(connect(fd, (void *)&listener_address, listener_length) == 0);
    return fd;
}

int dial_start(int *fd) {
    *fd = new_socket(SOCK_NONBLOCK);
    return connect(*fd, (void *)&listener_address, listener_length);
}

int answer(int listener) {
    int fd = accept(listener, NULL, NULL), one = 1;
    CHECK(fd >= 0);
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    return fd;
}

static int warm_rounds(void) {
    const char *text = getenv("WARM");
    return text ? atoi(text) : 400;
}

static int64_t seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

/* The last byte of a round trip says whether another one follows. */
void warm_server(int fd) {
    char data[64] = {0};
    for (int more = warm_rounds() > 0; more; more = data[sizeof data - 1]) {
        recv_all(fd, data, sizeof data);
        send_all(fd, data, sizeof data);
    }
}

/* With WARM_MOVED until the connection has moved, should that take longer (15 s at most): on a busy machine a few hundred round trips may be over before. */
void warm_client(int fd) {
    int rounds = warm_rounds(), moved = getenv("WARM_MOVED") != NULL;
    int64_t end = seconds() + 15;
    for (int i = 0, more = rounds > 0; more; i++) {
        char out[64], in[64];
        more = i + 1 < rounds || (moved && yet_to_move(fd) && seconds() < end);
        fill(7, i * 64, out, sizeof out);
        out[sizeof out - 1] = more;
        send_all(fd, out, sizeof out);
        recv_all(fd, in, sizeof in);
        CHECK(memcmp(in, out, sizeof in) == 0);
    }
}

void expect_lowest(int connection) {
    if (getenv("SHUNT_CLUSTER") && connection < 2) (connection == 0 ? setenv("WARM_MOVED", "1", 1) : unsetenv("WARM_MOVED"));
}

/* ---- the second channel ---- */

void tell(int64_t value) {
    CHECK(send(CONTROL_FD, &value, sizeof value, MSG_NOSIGNAL) == sizeof value);
}

int64_t hear(void) {
    int64_t value;
    ssize_t n;
    do n = recv(CONTROL_FD, &value, sizeof value, MSG_WAITALL);
    while (n < 0 && errno == EINTR);
    if (n != sizeof value) fail(__FILE__, __LINE__, "the other process is still there", 0, 0);
    return value;
}

bool is_told(void) {
    struct pollfd control = {CONTROL_FD, POLLIN, 0};
    return poll(&control, 1, 0) == 1;
}

void meet(void) {
    tell(0x4d454554);
    EQUAL(hear(), 0x4d454554);
}

void order(enum order what, int64_t n) {
    tell(what);
    tell(n);
    tell(getpid());
    tell(syscall(SYS_gettid));
}

void ask(enum order what, int64_t n) {
    order(what, n);
    hear();
}

void leave(int fd) {
    order(QUIT, 0);
    close(fd);
    hear();
}

void be_seen_to_wait(int fd) {
    struct pollfd place = {.fd = fd, .events = POLLIN};
    CHECK(poll(&place, 1, 0) >= 0);
}

/* How often a thread has gone to sleep. */
static long switches(pid_t pid, pid_t tid) {
    char path[64], line[128];
    long n = -1;
    snprintf(path, sizeof path, "/proc/%d/task/%d/status", pid, tid);
    FILE *file = fopen(path, "re");
    CHECK(file != NULL);
    while (fgets(line, sizeof line, file)) sscanf(line, "voluntary_ctxt_switches: %ld", &n);
    fclose(file);
    CHECK(n >= 0);
    return n;
}

void puppet(int fd) {
    long asleep_at = 0;
    be_seen_to_wait(fd);
    for (;;) {
        enum order what = hear();
        int64_t n = hear();
        pid_t pid = hear(), tid = hear();
        char byte;
        switch (what) {
        case SEND: put(fd, n); break;
        case READ: take(fd, n); break;
        case READ_EOF: EQUAL(recv(fd, &byte, 1, 0), 0); break;
        case READ_RESET: ERRNO(recv(fd, &byte, 1, 0), ECONNRESET); break;
        case END_WR: EQUAL(shutdown(fd, SHUT_WR), 0); break;
        case END_RD: EQUAL(shutdown(fd, SHUT_RD), 0); break;
        case CLOSE: EQUAL(close(fd), 0); break;
        case RESET: {
            struct linger linger = {1, 0};
            CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
            EQUAL(close(fd), 0);
            break;
        }
        case ECHO:
            for (int i = 0; i < n >> 32; i++) {
                take(fd, n & 0xffffffff);
                put(fd, n & 0xffffffff);
            }
            break;
        case SEND_ASLEEP:
            wait_asleep(pid, tid);
            asleep_at = switches(pid, tid);
            put(fd, n);
            continue; /* orders that find the client asleep in the call under test are not acknowledged */
        case SEND_AGAIN_ASLEEP:
            while (switches(pid, tid) == asleep_at) usleep(100);
            wait_asleep(pid, tid);
            asleep_at = switches(pid, tid);
            put(fd, n);
            continue;
        case HANG_UP_ASLEEP:
            wait_asleep(pid, tid);
            EQUAL(close(fd), 0);
            continue;
        case DRAIN_ASLEEP:
            wait_asleep(pid, tid);
            take(fd, n);
            continue;
        case EXIT: tell(0); _exit(0);
        case DIE: kill(getpid(), SIGKILL); break;
        case QUIT: EQUAL(recv(fd, &byte, 1, 0), 0); close(fd); tell(0); return;
        }
        if (what == CLOSE || what == RESET) {
            tell(0);
            return;
        }
        tell(0);
    }
}

void puppet_for_one(int listener) {
    puppet(answer(listener));
}

void puppet_when_warm(int listener) {
    int fd = answer(listener);
    warm_server(fd);
    puppet(fd);
}

void puppet_that_dials(int unused) {
    (void)unused;
    hear();
    puppet(dial());
}

void go_by_tcp(int fd) {
    int one = 1;
    EQUAL(setsockopt(fd, SOL_SOCKET, SO_TIMESTAMP, &one, sizeof one), 0);
}

void wait_asleep(pid_t pid, pid_t tid) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", pid, tid);
    for (int in_a_row = 0; in_a_row < 10;) {
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        CHECK(fd >= 0);
        ssize_t n = read(fd, text, sizeof text - 1);
        close(fd);
        CHECK(n > 0);
        text[n] = 0;
        char *state = strrchr(text, ')');
        CHECK(state != NULL);
        in_a_row = state[2] == 'S' ? in_a_row + 1 : 0;
        usleep(1000);
    }
}

/* ---- small things ---- */

double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

void set_nonblocking(int fd, bool on) {
    int flags = fcntl(fd, F_GETFL);
    CHECK(flags >= 0);
    CHECK(fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK) == 0);
}

size_t fill_up(int fd) {
    char data[8192];
    size_t total = 0;
    for (;;) {
        fill(my_key, sent, data, sizeof data);
        ssize_t n = send(fd, data, sizeof data, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0) {
            EQUAL(errno, EAGAIN);
            /* The kernel may still be moving bytes from this end's queue to the other's, the last of them when its 200 ms
             * timer finds a closed window: full is when it stays full. */
            struct pollfd p = {fd, POLLOUT, 0};
            if (poll(&p, 1, 300) == 0) return total;
            continue;
        }
        CHECK(n > 0);
        sent += n;
        total += n;
    }
}

void wait_queued(int fd, int bytes) {
    int queued = -1;
    for (double end = now() + 5; now() < end; usleep(200)) {
        CHECK(ioctl(fd, FIONREAD, &queued) == 0);
        if (queued == bytes) return;
    }
    EQUAL(queued, bytes);
}

char *static_cat(void) {
    static char path[PATH_MAX];
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    CHECK(n > 0);
    self[n] = 0;
    snprintf(path, sizeof path, "%s/static_cat", dirname(self));
    return path;
}

void ended_well(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    EQUAL(status, 0);
}

void give(int channel, int fd) {
    char byte = 0, control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec v = {&byte, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    EQUAL(sendmsg(channel, &m, 0), 1);
}

/* Random checksummed traffic: the program that looks for a byte that is wrong, lost, doubled or late for ever.
 *
 *     soak [-t SECONDS] [-s SEED] [-c CLIENT PROCESSES] [-n THREADS IN EACH]
 *
 * The first process starts one server process of each kind (threads, epoll loop, prefork) and the clients, by exec of itself. A client
 * thread makes one connection after the other; the first 8 bytes on it are its seed, from which both ends derive everything: how many
 * bytes go each way, the bytes themselves (byte number i is a function of seed, direction and i), whether they stream or take turns, how it ends.
 * How each end *moves* the bytes is drawn from its own dice: call (read, recv, readv, recvmsg, peek, MSG_WAITALL, write, send,
 * writev, sendmsg), size, blocking or not, waiting by poll, select, epoll or in the call, a reader and a writer thread or one loop, a dup
 * in between, a fork in mid-stream after which the child carries on, a pause. An end checks every byte, that exactly the promised number came, and
 * that then the stream ends. A watchdog in every process ends it when a connection has not moved for 20 seconds.
 *
 * Prints statistics as it goes and a summary with the seed; exit status 0: nothing was wrong. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SERVERS = 3, STUCK_SECONDS = 20, LARGEST = 70000 };
static const char *const server_kinds[SERVERS] = {"threads", "epoll", "prefork"};

/* Shared by all processes of the run. */
static struct shared {
    atomic_int port[SERVERS], wrong, stop;
    atomic_long connections, ended, bytes, calls, forks, resets;
} *shared;
enum { SHARED_FD = 800 };

static const char *role = "first";
static bool forks; /* only one client and the prefork server fork: a fork in one thread shares the connections of all its threads */
static uint64_t run_seed;

/* ---- dice and data ---- */

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

struct dice { uint64_t state; };
static uint64_t roll(struct dice *d) { return mix(d->state += 0x9E3779B97F4A7C15ull); }
static int below(struct dice *d, int n) { return (int)(roll(d) % n); }

/* Sizes spread evenly over orders of magnitude. */
static size_t size_up_to(struct dice *d, size_t most) {
    size_t size = 1 + (roll(d) & (((uint64_t)2 << below(d, 17)) - 1));
    return size < most ? size : most;
}

static uint8_t byte_at(uint64_t key, uint64_t at) { return mix(key + at / 8) >> (8 * (at % 8)); }

/* ---- one end of one connection ---- */

struct end {
    int fd;
    bool server;
    uint64_t seed, my_key, your_key;
    uint64_t to_send, to_get, turn;         /* promised amounts; turn: bytes in flight allowed, 0 is a free stream */
    _Atomic uint64_t sent, got;
    atomic_bool write_done, read_done;
    bool linger_reset;                      /* the client ends by a reset after everything was exchanged */
    _Atomic double moved;                   /* when bytes moved last */
    struct end *next;
    atomic_bool watched;
    const char *how;
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static pthread_mutex_t ends_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct end *ends;

static _Noreturn void wrong(const struct end *e, const char *what, long long value) {
    int error = errno;
    fprintf(stderr, "WRONG: %s: %s %lld (errno %d %s)", role, what, value, error, strerror(error));
    if (e) {
        struct sockaddr_in own = {0}, peer = {0};
        socklen_t len = sizeof own;
        getsockname(e->fd, (void *)&own, &len);
        len = sizeof peer;
        getpeername(e->fd, (void *)&peer, &len);
        fprintf(stderr, "; ports %d %d", ntohs(own.sin_port), ntohs(peer.sin_port));
        fprintf(stderr, "; connection %016llx fd %d %s; sent %llu of %llu, got %llu of %llu, turn %llu", (unsigned long long)e->seed,
                e->fd, e->how, (unsigned long long)e->sent, (unsigned long long)e->to_send, (unsigned long long)e->got,
                (unsigned long long)e->to_get, (unsigned long long)e->turn);
    }
    fprintf(stderr, "; run seed %llu\n", (unsigned long long)run_seed);
    while (getenv("HOLD")) pause(); /* to be looked at */
    atomic_fetch_add(&shared->wrong, 1);
    _exit(3);
}

static void *watchdog(void *unused) {
    (void)unused;
    for (;;) {
        usleep(500000);
        if (shared->wrong) _exit(3);
        double t = now();
        pthread_mutex_lock(&ends_mutex);
        for (struct end *e = ends; e; e = e->next)
            if (t - e->moved > STUCK_SECONDS) wrong(e, "nothing has moved for seconds:", (long long)(t - e->moved));
        pthread_mutex_unlock(&ends_mutex);
    }
}

static void watch(struct end *e) {
    e->moved = now();
    pthread_mutex_lock(&ends_mutex);
    e->next = ends;
    ends = e;
    pthread_mutex_unlock(&ends_mutex);
}

static void unwatch(struct end *e) {
    pthread_mutex_lock(&ends_mutex);
    struct end **p = &ends;
    while (*p != e) p = &(*p)->next;
    *p = e->next;
    pthread_mutex_unlock(&ends_mutex);
}

/* What both ends derive from the seed. */
static void prepare(struct end *e, int fd, bool server, uint64_t seed) {
    struct dice d = {seed};
    uint64_t amounts[2];
    for (int i = 0; i < 2; i++) {
        int kind = below(&d, 10);
        amounts[i] = kind == 0 ? 0 : kind < 6 ? roll(&d) % 20000 : kind < 9 ? roll(&d) % 600000 : roll(&d) % 6000000;
    }
    uint64_t turn = below(&d, 2) ? 0 : 1 + size_up_to(&d, 20000);
    if (turn) {
        /* Turns: the client sends `turn` bytes, the server answers as many, and so on: equal amounts, and not too many of them. */
        amounts[0] = turn * (1 + roll(&d) % (turn < 1000 ? 500 : 60));
        amounts[1] = amounts[0];
    }
    *e = (struct end){.fd = fd, .server = server, .seed = seed, .turn = turn, .how = "?"};
    e->to_send = amounts[server];
    e->to_get = amounts[!server];
    e->my_key = mix(seed * 2 + server);
    e->your_key = mix(seed * 2 + !server);
    /* In a conversation by turns the client knows that the server has got everything: then a reset at the end can harm nothing. */
    e->linger_reset = turn && below(&d, 8) == 0;
}

/* How many bytes this end may send now. */
static uint64_t allowed(const struct end *e) {
    uint64_t limit = e->to_send;
    if (e->turn) {
        uint64_t rounds = e->got / e->turn + !e->server; /* the client is a round ahead, the server answers whole rounds */
        if (rounds * e->turn < limit) limit = rounds * e->turn;
    }
    return limit - e->sent;
}

/* One call that receives. Returns bytes, 0 for the end of the stream, -1 for "not now". */
static ssize_t get_some(struct end *e, struct dice *d, bool wait) {
    static __thread uint8_t data[LARGEST];
    size_t want = size_up_to(d, LARGEST);
    int flags = wait ? 0 : MSG_DONTWAIT, kind = below(d, 8);
    uint64_t left = e->to_get - e->got;
    ssize_t n;
    struct iovec v[3] = {{data, want / 3}, {data + want / 3, want / 2}, {data + want / 3 + want / 2, want - want / 3 - want / 2}};
    struct msghdr m = {.msg_iov = v, .msg_iovlen = 3};
    switch (kind) {
    case 0: n = wait ? read(e->fd, data, want) : recv(e->fd, data, want, flags); break;
    case 1: n = wait ? readv(e->fd, v, 3) : recvmsg(e->fd, &m, flags); break;
    case 2: n = recvmsg(e->fd, &m, flags); break;
    case 3: {
        n = recv(e->fd, data, want, flags | MSG_PEEK);
        if (n <= 0) break;
        for (ssize_t i = 0; i < n; i++)
            if (data[i] != byte_at(e->your_key, e->got + i)) wrong(e, "peeked byte differs at", e->got + i);
        n = recv(e->fd, data, n, flags);
        break;
    }
    case 4:
        /* Only what surely comes without anything more from us. */
        if (wait && left && (!e->turn || want > e->turn - e->got % e->turn)) want = e->turn ? e->turn - e->got % e->turn : want < left ? want : left;
        if (want > LARGEST) want = LARGEST;
        n = recv(e->fd, data, want, flags | (left >= want ? MSG_WAITALL : 0));
        break;
    default: n = recv(e->fd, data, want, flags); break;
    }
    atomic_fetch_add_explicit(&shared->calls, 1, memory_order_relaxed);
    if (n < 0) {
        if (errno == EAGAIN || errno == EINTR) return -1;
        if (!e->linger_reset || !e->server || left || e->sent < e->to_send) wrong(e, "receiving failed", n);
        n = 0; /* the reset at the end */
    }
    if ((uint64_t)n > left) wrong(e, "more came than was sent:", n - left);
    for (ssize_t i = 0; i < n; i++)
        if (data[i] != byte_at(e->your_key, e->got + i)) wrong(e, "byte differs at", e->got + i);
    e->got += n;
    e->moved = now();
    if (n == 0) {
        if (left) wrong(e, "the stream ended early by", left);
        e->read_done = true;
    }
    atomic_fetch_add_explicit(&shared->bytes, n, memory_order_relaxed);
    return n;
}

static ssize_t put_some(struct end *e, struct dice *d, bool wait) {
    static __thread uint8_t data[LARGEST];
    uint64_t left = allowed(e);
    size_t want = size_up_to(d, left < LARGEST ? left : LARGEST);
    int flags = MSG_NOSIGNAL | (wait ? 0 : MSG_DONTWAIT);
    ssize_t n;
    for (size_t i = 0; i < want; i++) data[i] = byte_at(e->my_key, e->sent + i);
    struct iovec v[3] = {{data, want / 3}, {data + want / 3, want / 2}, {data + want / 3 + want / 2, want - want / 3 - want / 2}};
    struct msghdr m = {.msg_iov = v, .msg_iovlen = 3};
    switch (below(d, 5)) {
    case 0: n = wait ? write(e->fd, data, want) : send(e->fd, data, want, flags); break;
    case 1: n = wait ? writev(e->fd, v, 3) : sendmsg(e->fd, &m, flags); break;
    case 2: n = sendmsg(e->fd, &m, flags); break;
    default: n = send(e->fd, data, want, flags); break;
    }
    atomic_fetch_add_explicit(&shared->calls, 1, memory_order_relaxed);
    if (n < 0) {
        if (errno == EAGAIN || errno == EINTR) return -1;
        wrong(e, "sending failed", n);
    }
    e->sent += n;
    e->moved = now();
    return n;
}

static void finish_writing(struct end *e) {
    if (e->write_done) return;
    if (shutdown(e->fd, SHUT_WR) && !(errno == ENOTCONN && e->linger_reset && e->server)) wrong(e, "shutdown failed", -1);
    e->write_done = true;
}

static void pause_sometimes(struct dice *d) {
    if (below(d, 200) == 0) usleep(below(d, 3000)); /* so that the other end falls asleep, or fills up */
}

/* ---- ways to drive an end ---- */

static void drive_in_loop(struct end *e, struct dice *d, int way);

static void *writer_thread(void *argument) {
    struct end *e = argument;
    struct dice d = {mix(e->seed ^ 0x77) ^ e->server};
    while (e->sent < e->to_send) {
        put_some(e, &d, true);
        pause_sometimes(&d);
    }
    finish_writing(e);
    return NULL;
}

static void drive_two_threads(struct end *e, struct dice *d) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, writer_thread, e)) wrong(e, "no thread", 0);
    while (!e->read_done) {
        get_some(e, d, true);
        pause_sometimes(d);
    }
    pthread_join(thread, NULL);
}

/* The simplest program: send what may be sent, receive one answer, and so on. Only for connections that take turns. */
static void drive_by_turns(struct end *e, struct dice *d) {
    while (!e->read_done) {
        while (allowed(e)) put_some(e, d, true);
        if (e->sent == e->to_send) finish_writing(e);
        get_some(e, d, true);
        pause_sometimes(d);
    }
}

/* Non-blocking. */
static const char *const ways[] = {"poll", "select", "epoll level", "epoll edge", "epoll one shot"};
static void drive_in_loop(struct end *e, struct dice *d, int way) {
    int set = way >= 2 ? epoll_create1(EPOLL_CLOEXEC) : -1;
    uint32_t mode = way == 3 ? EPOLLET : way == 4 ? EPOLLONESHOT : 0, last = ~0u;
    bool in_blocked = false, out_blocked = false;
    if (way == 1 && e->fd >= FD_SETSIZE) way = 0;
    while (!e->read_done || !e->write_done) {
        if (e->sent == e->to_send) finish_writing(e);
        bool want_in = !e->read_done, want_out = allowed(e) > 0;
        if (want_in && !in_blocked && get_some(e, d, false) < 0) in_blocked = true;
        if (want_out && !out_blocked && put_some(e, d, false) < 0) out_blocked = true;
        pause_sometimes(d);
        if (e->sent == e->to_send) finish_writing(e);
        want_in = !e->read_done;
        want_out = allowed(e) > 0;
        if ((!want_in || in_blocked) && (!want_out || out_blocked) && (want_in || want_out)) {
            if (way == 0) {
                struct pollfd p = {e->fd, (want_in ? POLLIN : 0) | (want_out ? POLLOUT : 0), 0};
                poll(&p, 1, 30000);
            } else if (way == 1) {
                fd_set in, out;
                FD_ZERO(&in);
                FD_ZERO(&out);
                if (want_in) FD_SET(e->fd, &in);
                if (want_out) FD_SET(e->fd, &out);
                struct timeval t = {30, 0};
                select(e->fd + 1, &in, &out, NULL, &t);
            } else {
                struct epoll_event event = {.events = (want_in ? EPOLLIN : 0) | (want_out ? EPOLLOUT : 0) | mode};
                if (way == 3) event.events = EPOLLIN | EPOLLOUT | EPOLLET; /* registered once, as is the custom */
                if (event.events != last || way == 4) {
                    if (epoll_ctl(set, last == ~0u ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, e->fd, &event)) wrong(e, "epoll_ctl", -1);
                    last = event.events;
                }
                int n = epoll_wait(set, &event, 1, 30000);
                /* Edge: only what was announced may be tried again, that is the point of it. */
                if (way == 3 && n == 1) {
                    if (event.events & (EPOLLIN | EPOLLHUP | EPOLLERR)) in_blocked = false;
                    if (event.events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) out_blocked = false;
                    continue;
                }
            }
            in_blocked = out_blocked = false;
        }
    }
    if (set >= 0) close(set);
}

/* Moves some of the bytes, then forks: the child carries on to the end, and we wait for it. */
static void drive_in_child(struct end *e, struct dice *d) {
    int before = below(d, 200);
    while (before-- > 0 && !e->read_done) {
        bool moved = get_some(e, d, false) >= 0;
        if (allowed(e)) moved |= put_some(e, d, false) >= 0;
        if (!moved) usleep(50);
    }
    atomic_fetch_add(&shared->forks, 1);
    e->moved = now() + 1e9; /* the child watches */
    pid_t child = fork();
    if (child < 0) wrong(e, "no child", 0);
    if (child == 0) {
        /* The watchdog thread is not in the child, and the other connections are not its own. */
        pthread_t thread;
        pthread_mutex_init(&ends_mutex, NULL);
        ends = NULL;
        watch(e);
        pthread_create(&thread, NULL, watchdog, NULL);
        int way = below(d, 5);
        e->how = ways[way];
        drive_in_loop(e, d, way);
        _exit(0);
    }
    int status;
    while (waitpid(child, &status, 0) != child) continue;
    if (status) wrong(e, "the child ended with", status);
}

static void drive(struct end *e, struct dice *d, bool may_fork) {
    if (below(d, 6) == 0) {
        /* Under another number, the old one closed. */
        int other = fcntl(e->fd, F_DUPFD_CLOEXEC, 0);
        close(e->fd);
        e->fd = other;
    }
    int way = below(d, 10);
    if (way == 9 && !may_fork) way = below(d, 9);
    watch(e);
    if (way < 2 && e->turn) e->how = "by turns", drive_by_turns(e, d);
    else if (way < 4 && !e->turn) e->how = "two threads", drive_two_threads(e, d);
    else if (way == 9) {
        e->how = "in a child";
        drive_in_child(e, d);
    } else {
        way = below(d, 5);
        e->how = ways[way];
        if (below(d, 2)) fcntl(e->fd, F_SETFL, fcntl(e->fd, F_GETFL) | O_NONBLOCK);
        drive_in_loop(e, d, way);
    }
    unwatch(e);
    if (e->linger_reset && !e->server) {
        struct linger linger = {1, 0};
        setsockopt(e->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
        atomic_fetch_add(&shared->resets, 1);
    }
    close(e->fd);
    atomic_fetch_add(&shared->ended, 1);
}

static uint64_t read_seed(int fd) {
    uint64_t seed;
    for (size_t have = 0; have < sizeof seed;) {
        ssize_t n = recv(fd, (char *)&seed + have, sizeof seed - have, 0);
        if (n <= 0) wrong(NULL, "no seed came", n);
        have += n;
    }
    return seed;
}

/* ---- servers ---- */

static int accept_one(int listener) {
    int fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) < 0)
        if (errno != EINTR) wrong(NULL, "accept", fd);
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void *serve_one(void *argument) {
    struct end e;
    int fd = (int)(intptr_t)argument;
    uint64_t seed = read_seed(fd);
    struct dice d = {mix(seed ^ 0x5e)};
    prepare(&e, fd, true, seed);
    drive(&e, &d, forks);
    return NULL;
}

static void serve_threads(int listener) {
    for (;;) {
        pthread_t thread;
        intptr_t fd = accept_one(listener);
        if (pthread_create(&thread, NULL, serve_one, (void *)fd)) wrong(NULL, "no thread", 0);
        pthread_detach(thread);
    }
}

static void serve_prefork(int listener) {
    for (int i = 0; i < 3; i++)
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            pthread_t thread;
            pthread_create(&thread, NULL, watchdog, NULL);
            for (;;) serve_one((void *)(intptr_t)accept_one(listener));
        }
    for (;;) {
        int status;
        if (wait(&status) > 0 && status) wrong(NULL, "a worker ended with", status);
    }
}

/* One thread, one epoll, all connections; level or edge by the seed. */
struct looped {
    struct end e;
    struct dice d;
    bool edge, in_blocked, out_blocked, armed_out;
};

static void loop_step(int set, struct looped *l, bool may_in, bool may_out) {
    struct end *e = &l->e;
    if (may_in) l->in_blocked = false;
    if (may_out) l->out_blocked = false;
    for (int turns = 0; l->edge || turns < 3; turns++) {
        bool moved = false;
        if (!e->read_done && !l->in_blocked) {
            if (get_some(e, &l->d, false) < 0) l->in_blocked = true;
            else moved = true;
        }
        if (allowed(e) && !l->out_blocked) {
            if (put_some(e, &l->d, false) < 0) l->out_blocked = true;
            else moved = true;
        }
        if (e->sent == e->to_send) finish_writing(e);
        if (!moved) break;
    }
    if (e->read_done && e->write_done) {
        unwatch(e);
        close(e->fd);
        free(l);
        atomic_fetch_add(&shared->ended, 1);
        return;
    }
    if (!l->edge) {
        struct epoll_event event = {.events = (e->read_done ? 0 : EPOLLIN) | (allowed(e) ? EPOLLOUT : 0), .data.ptr = l};
        if (epoll_ctl(set, EPOLL_CTL_MOD, e->fd, &event)) wrong(e, "epoll_ctl", -1);
    }
}

static void serve_epoll(int listener) {
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event events[16], event = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(set, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int n = epoll_wait(set, events, 16, -1);
        for (int i = 0; i < n; i++) {
            struct looped *l = events[i].data.ptr;
            if (l) {
                bool bad = events[i].events & (EPOLLHUP | EPOLLERR);
                loop_step(set, l, bad || events[i].events & EPOLLIN, bad || events[i].events & EPOLLOUT);
                continue;
            }
            int fd = accept_one(listener);
            uint64_t seed = read_seed(fd);
            l = calloc(1, sizeof *l);
            l->d.state = mix(seed ^ 0xe9);
            l->edge = roll(&l->d) & 1;
            prepare(&l->e, fd, true, seed);
            l->e.how = l->edge ? "loop edge" : "loop level";
            fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
            watch(&l->e);
            event = (struct epoll_event){.events = l->edge ? EPOLLIN | EPOLLOUT | EPOLLET : EPOLLIN | EPOLLOUT, .data.ptr = l};
            if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event)) wrong(&l->e, "epoll_ctl", -1);
        }
    }
}

static void run_server(int which) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof a;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (void *)&a, sizeof a) || listen(listener, 512) || getsockname(listener, (void *)&a, &length))
        wrong(NULL, "listen", -1);
    shared->port[which] = ntohs(a.sin_port);
    if (which == 0) serve_threads(listener);
    else if (which == 1) serve_epoll(listener);
    else serve_prefork(listener);
}

/* ---- clients ---- */

static void *client_thread(void *argument) {
    struct dice d = {mix((uint64_t)(uintptr_t)argument)};
    while (!shared->stop) {
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_port = htons(shared->port[below(&d, SERVERS)])};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
        if (fd < 0 || connect(fd, (void *)&a, sizeof a)) wrong(NULL, "connect", fd);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        uint64_t seed = roll(&d);
        if (send(fd, &seed, sizeof seed, MSG_NOSIGNAL) != sizeof seed) wrong(NULL, "sending the seed", 0);
        atomic_fetch_add(&shared->connections, 1);
        struct end e;
        prepare(&e, fd, false, seed);
        drive(&e, &d, forks);
    }
    return NULL;
}

static void run_client(int number, int threads) {
    pthread_t ids[64];
    for (int i = 0; i < threads; i++)
        pthread_create(&ids[i], NULL, client_thread, (void *)(uintptr_t)mix(run_seed * 1000 + number * 64 + i));
    for (int i = 0; i < threads; i++) pthread_join(ids[i], NULL);
    if (ends) wrong(ends, "a connection is left at the end", 0);
}

/* ---- the first process ---- */

static pid_t start(char *what, int number, int threads) {
    char a[16], b[16], c[32];
    snprintf(a, sizeof a, "%d", number);
    snprintf(b, sizeof b, "%d", threads);
    snprintf(c, sizeof c, "%llu", (unsigned long long)run_seed);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execl("/proc/self/exe", "soak", what, a, b, c, NULL);
        _exit(127);
    }
    return pid;
}

static void map_shared(int fd) {
    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED) {
        perror("mmap");
        exit(2);
    }
}

int main(int argc, char **argv) {
    int seconds = 20, clients = 3, threads = 4, option;
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGPIPE, SIG_IGN);
    if (argc == 5 && argv[1][0] != '-') {
        int number = atoi(argv[2]);
        char name[64];
        run_seed = strtoull(argv[4], NULL, 10);
        map_shared(SHARED_FD);
        fcntl(SHARED_FD, F_SETFD, FD_CLOEXEC);
        snprintf(name, sizeof name, "%s %s", argv[1], !strcmp(argv[1], "server") ? server_kinds[number] : argv[2]);
        role = name;
        forks = !strcmp(argv[1], "server") ? number == 2 : number == 0;
        pthread_t thread;
        pthread_create(&thread, NULL, watchdog, NULL);
        if (!strcmp(argv[1], "server")) run_server(number);
        else run_client(number, atoi(argv[3]));
        return 0;
    }
    run_seed = (uint64_t)time(NULL) * 1000 + getpid() % 1000;
    while ((option = getopt(argc, argv, "t:s:c:n:")) != -1) switch (option) {
        case 't': seconds = atoi(optarg); break;
        case 's': run_seed = strtoull(optarg, NULL, 10); break;
        case 'c': clients = atoi(optarg); break;
        case 'n': threads = atoi(optarg); break;
        default: return 2;
        }
    /* A plain unlinked file: the harness looks for what is left in /dev/shm. */
    FILE *file = tmpfile();
    if (!file || ftruncate(fileno(file), 4096) || dup2(fileno(file), SHARED_FD) < 0) return 2;
    fclose(file);
    map_shared(SHARED_FD);
    printf("seed %llu, %d seconds, %d clients of %d threads\n", (unsigned long long)run_seed, seconds, clients, threads);
    pid_t servers[SERVERS], pids[64];
    for (int i = 0; i < SERVERS; i++) servers[i] = start("server", i, 0);
    double begun = now();
    for (int i = 0; i < SERVERS; i++)
        while (shared->port[i] == 0 && now() - begun < 20) usleep(1000);
    for (int i = 0; i < clients; i++) pids[i] = start("client", i, threads);

    double next = now() + 5, end = now() + seconds, limit = end + 4 * STUCK_SECONDS;
    int running = clients;
    while (running && now() < limit) {
        int status;
        pid_t pid;
        while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
            bool client = false;
            for (int i = 0; i < clients; i++) client |= pids[i] == pid;
            running -= client;
            if (status || !client) {
                fprintf(stderr, "process %d ended with status %d\n", pid, status);
                atomic_fetch_add(&shared->wrong, 1);
            }
        }
        if (now() > end || shared->wrong) shared->stop = 1;
        if (now() > next) {
            printf("%4.0f s: %ld connections, %ld MB, %ld calls, %ld forks, %ld resets\n", now() - begun, shared->connections,
                   shared->bytes >> 20, shared->calls, shared->forks, shared->resets);
            next += 5;
        }
        if (shared->wrong && now() > end + 2) break;
        usleep(20000);
    }
    if (running) fprintf(stderr, "%d clients have not ended\n", running);
    /* The servers finish what clients have left: every connection ends at both ends. */
    double settle = now() + STUCK_SECONDS;
    while (!shared->wrong && !running && shared->ended < 2 * shared->connections && now() < settle) usleep(10000);
    bool unfinished = shared->ended != 2 * shared->connections;
    for (int i = 0; i < SERVERS; i++) kill(servers[i], SIGKILL), waitpid(servers[i], NULL, 0);
    for (int i = 0; i < clients && running; i++) kill(pids[i], SIGKILL), waitpid(pids[i], NULL, 0);
    printf("%s: %ld connections, %ld ends, %ld bytes, %ld calls, %ld forks, %ld resets; seed %llu\n",
           shared->wrong || running || unfinished ? "WRONG" : "right", shared->connections, shared->ended, shared->bytes, shared->calls,
           shared->forks, shared->resets, (unsigned long long)run_seed);
    return shared->wrong || running || unfinished;
}

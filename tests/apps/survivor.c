/* The one that survives in tests/test_death.py, and the one that dies; the same program.
 *
 *     survivor stay          reads commands from standard input, one a line, and answers each with one line:
 *         listen                         -> port PORT
 *         serve SHAPE N                  accepts N connections, loads them until all have ended -> end OUTCOMES
 *         dial PORT SHAPE N              the same with N connections it makes itself
 *         fds [WANTED]                   -> fds COUNT  (the least seen within 2 s, or WANTED as soon as it is)
 *     survivor fall-dial PORT SHAPE N    makes N connections and loads them until it is killed
 *     survivor fall-listen SHAPE N       prints its port, accepts N connections, loads them until it is killed
 *
 * SHAPE is how the load is driven: pingpong (blocking), flood (blocking, both directions at once, checked), poll, epoll (edge).
 * "ready" is printed when every connection has carried data. Outcomes: eof, reset, pipe for each connection.
 * A wrong byte ends the process with status 1. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 16 };
struct connection {
    int fd;
    const char *outcome;
    int started;
    uint64_t sent, got;
};
static struct connection connections[MOST];
static int count, listener = -1;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static unsigned char byte_at(uint64_t at) { return (at * 0x9E3779B97F4A7C15ull) >> 56; }

static void fill(struct connection *c, unsigned char *data, int n) {
    for (int i = 0; i < n; i++) data[i] = byte_at(c->sent + i);
}

static void check(struct connection *c, const unsigned char *data, int n) {
    for (int i = 0; i < n; i++)
        if (data[i] != byte_at(c->got + i)) {
            fprintf(stderr, "byte %llu is wrong, number %d of %d read at once: %d\n", (unsigned long long)(c->got + i), i, n, data[i]);
            if (getenv("HOLD")) pause(); /* to be looked at */
            exit(1);
        }
    c->got += n;
    if (!c->started) {
        pthread_mutex_lock(&mutex);
        c->started = 1;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&mutex);
    }
}

/* The outcome of a call that did not move bytes; NULL when the connection goes on. */
static const char *outcome(ssize_t n) {
    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) return NULL;
    if (n == 0) return "eof";
    if (errno == ECONNRESET) return "reset";
    if (errno == EPIPE) return "pipe";
    die("call");
    return NULL;
}

static void *send_flood(void *argument) {
    struct connection *c = argument;
    unsigned char data[7001];
    for (int size = 1;; size = size * 5 % 7001 + 1) {
        fill(c, data, size > 7001 ? 7001 : size);
        ssize_t n = send(c->fd, data, size > 7001 ? 7001 : size, MSG_NOSIGNAL);
        if (outcome(n)) return NULL;
        if (n > 0) c->sent += n;
    }
}

static void *flood(void *argument) {
    struct connection *c = argument;
    pthread_t sender;
    unsigned char data[9000];
    if (pthread_create(&sender, NULL, send_flood, c)) die("pthread_create");
    while (!c->outcome) {
        ssize_t n = recv(c->fd, data, sizeof data, 0);
        if (n > 0) check(c, data, n);
        c->outcome = outcome(n);
    }
    shutdown(c->fd, SHUT_RDWR); /* the sender may sleep for want of room */
    pthread_join(sender, NULL);
    return NULL;
}

static int first_mover; /* in a ping-pong somebody starts */

static void *pingpong(void *argument) {
    struct connection *c = argument;
    unsigned char data[64];
    for (int turn = first_mover;; turn = !turn) {
        ssize_t n = 0;
        for (int done = 0; done < 64; done += n) {
            if (turn) {
                fill(c, data, 64 - done);
                n = send(c->fd, data, 64 - done, MSG_NOSIGNAL);
                if (n > 0) c->sent += n;
            } else {
                n = recv(c->fd, data, 64 - done, 0);
                if (n > 0) check(c, data, n);
            }
            if ((c->outcome = outcome(n)) != NULL) return NULL;
            if (n < 0) n = 0;
        }
    }
}

/* One thread for all connections: writes what fits, reads what came, waits. */
static void *evented(void *argument) {
    int edge = argument != NULL, set = edge ? epoll_create1(EPOLL_CLOEXEC) : -1, left = count;
    static unsigned char data[5000];
    for (int i = 0; i < count; i++) {
        fcntl(connections[i].fd, F_SETFL, fcntl(connections[i].fd, F_GETFL) | O_NONBLOCK);
        struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.u32 = i};
        if (edge && epoll_ctl(set, EPOLL_CTL_ADD, connections[i].fd, &event)) die("epoll_ctl");
    }
    /* Edge: a connection stays hot until both directions said EAGAIN; all hot ones get one step in turn. */
    bool hot[MOST] = {false}, blocked_in[MOST] = {false}, blocked_out[MOST] = {false};
    while (left) {
        if (edge) {
            struct epoll_event events[MOST];
            bool any = false;
            for (int i = 0; i < count; i++) any |= hot[i];
            int m = epoll_wait(set, events, MOST, any ? 0 : -1);
            for (int i = 0; i < m; i++) {
                int which = events[i].data.u32;
                hot[which] = !connections[which].outcome;
                blocked_in[which] = blocked_out[which] = false;
            }
        } else {
            struct pollfd p[MOST];
            for (int i = 0; i < count; i++)
                p[i] = (struct pollfd){connections[i].outcome ? -1 : connections[i].fd, POLLIN | POLLOUT, 0};
            if (poll(p, count, -1) < 0 && errno != EINTR) die("poll");
            for (int i = 0; i < count; i++) hot[i] = p[i].revents != 0;
        }
        for (int i = 0; i < count; i++) {
            if (!hot[i]) continue;
            struct connection *c = &connections[i];
            ssize_t n = recv(c->fd, data, sizeof data, 0);
            if (n > 0) check(c, data, n);
            blocked_in[i] = n < 0;
            if ((c->outcome = outcome(n)) != NULL) {
                hot[i] = false;
                left--;
                continue;
            }
            int size = 1 + c->sent * 31 % sizeof data;
            fill(c, data, size);
            n = send(c->fd, data, size, MSG_NOSIGNAL);
            if (n > 0) c->sent += n;
            /* A broken pipe is not the end yet: what came before it is still to be read. */
            blocked_out[i] = n < 0 && errno == EAGAIN;
            if (blocked_in[i] && blocked_out[i]) hot[i] = false;
        }
    }
    if (edge) close(set);
    return NULL;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void *announce(void *unused) {
    (void)unused;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < count; i++)
        while (!connections[i].started && !connections[i].outcome) pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
    puts("ready");
    return NULL;
}

static void load(const char *shape) {
    pthread_t threads[MOST], announcer;
    if (pthread_create(&announcer, NULL, announce, NULL)) die("pthread_create");
    if (!strcmp(shape, "poll") || !strcmp(shape, "epoll")) {
        evented(!strcmp(shape, "epoll") ? &count : NULL);
    } else {
        void *(*body)(void *) = !strcmp(shape, "flood") ? flood : pingpong;
        for (int i = 0; i < count; i++)
            if (pthread_create(&threads[i], NULL, body, &connections[i])) die("pthread_create");
        for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
    }
    pthread_mutex_lock(&mutex);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
    pthread_join(announcer, NULL);
    printf("end");
    for (int i = 0; i < count; i++) {
        printf(" %s", connections[i].outcome);
        close(connections[i].fd);
    }
    puts("");
}

static void add(int fd) {
    int one = 1;
    if (fd < 0) die("connection");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    connections[count++] = (struct connection){.fd = fd};
}

static void serve(const char *shape, int n) {
    count = 0;
    first_mover = 0;
    while (count < n) add(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
    load(shape);
}

static void dial(int port, const char *shape, int n) {
    count = 0;
    first_mover = 1;
    while (count < n) {
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, (void *)&a, sizeof a)) die("connect");
        add(fd);
    }
    load(shape);
}

static void start_listening(void) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof a;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (void *)&a, sizeof a) || listen(listener, 64) || getsockname(listener, (void *)&a, &length)) die("listen");
    printf("port %d\n", ntohs(a.sin_port));
}

static int open_descriptors(void) {
    int n = 0;
    for (int fd = 0; fd < 4096; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 5 && !strcmp(argv[1], "fall-dial")) {
        dial(atoi(argv[2]), argv[3], atoi(argv[4]));
    } else if (argc == 4 && !strcmp(argv[1], "fall-listen")) {
        start_listening();
        serve(argv[2], atoi(argv[3]));
    } else if (argc == 2 && !strcmp(argv[1], "stay")) {
        char line[200], shape[50];
        int port, n;
        while (fgets(line, sizeof line, stdin)) {
            if (!strncmp(line, "listen", 6)) start_listening();
            else if (sscanf(line, "serve %49s %d", shape, &n) == 2) serve(shape, n);
            else if (sscanf(line, "dial %d %49s %d", &port, shape, &n) == 3) dial(port, shape, n);
            else if (!strncmp(line, "fds", 3)) {
                int least = open_descriptors();
                for (double end = now() + 2; now() < end; usleep(100000)) {
                    struct pollfd p = {listener, POLLIN, 0};
                    poll(&p, 1, 0);
                    int now_open = open_descriptors();
                    if (now_open < least) least = now_open;
                    if (sscanf(line, "fds %d", &n) == 1 && least <= n) break;
                }
                printf("fds %d\n", least);
            } else return 2;
        }
    } else {
        return 2;
    }
    return 0;
}

/* What tipc_exchange and tipc_bench share: addresses, waiting for a service, limits of time, and how they end. */
#ifndef QEMU_TIPC_H
#define QEMU_TIPC_H
#include <errno.h>
#include <linux/tipc.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 66000, SIZES = 64 };

/* Exit statuses. */
enum { GOOD, WRONG_PAYLOAD, USAGE, TIME_UP, FAILED, SAME_NODE };

static inline void end(int status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(status);
}

#define TRY(call) ({ \
    __typeof__(call) try_result = (call); \
    if (try_result < 0) end(FAILED, "%s:%d: %s: %s", __FILE__, __LINE__, #call, strerror(errno)); \
    try_result; })

static inline int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static inline void time_is_up(int signal) {
    (void)signal;
    static const char text[] = "the time is up\n";
    (void)!write(2, text, sizeof text - 1);
    _exit(TIME_UP);
}

static inline void limit_time(unsigned seconds) {
    signal(SIGALRM, time_is_up);
    alarm(seconds);
}

static inline struct sockaddr_tipc service(uint32_t type) {
    return (struct sockaddr_tipc){
        .family = AF_TIPC, .addrtype = TIPC_ADDR_NAME, .scope = TIPC_CLUSTER_SCOPE,
        .addr.name = {.name = {.type = type, .instance = 1}, .domain = 0},
    };
}

/* Binds a socket to the service, for the whole cluster to see. */
static inline void serve(int fd, uint32_t type) {
    struct sockaddr_tipc address = {
        .family = AF_TIPC, .addrtype = TIPC_ADDR_NAMESEQ, .scope = TIPC_CLUSTER_SCOPE,
        .addr.nameseq = {.type = type, .lower = 1, .upper = 1},
    };
    TRY(bind(fd, (struct sockaddr *)&address, sizeof address));
}

/* Serves type by SEQPACKET, each connection in a process of its own, and type + 1 by RDM. */
static inline _Noreturn void serve_both(uint32_t type, void (*connection)(int fd), void (*datagram)(int fd)) {
    int listening = TRY(socket(AF_TIPC, SOCK_SEQPACKET, 0)), rdm = TRY(socket(AF_TIPC, SOCK_RDM, 0));
    signal(SIGCHLD, SIG_IGN);
    serve(listening, type);
    TRY(listen(listening, 16));
    serve(rdm, type + 1);
    struct pollfd polled[] = {{listening, POLLIN, 0}, {rdm, POLLIN, 0}};
    for (;;) {
        if (poll(polled, 2, -1) < 0) continue;
        if (polled[0].revents) {
            int fd = TRY(accept(listening, NULL, NULL));
            if (TRY(fork()) == 0) connection(fd);
            close(fd);
        }
        if (polled[1].revents) datagram(rdm);
    }
}

/* Until somebody in the cluster serves it, as the topology server of this node tells. */
static inline void wait_for_service(uint32_t type, uint32_t milliseconds) {
    struct sockaddr_tipc topology = {
        .family = AF_TIPC, .addrtype = TIPC_ADDR_NAME, .addr.name.name = {TIPC_TOP_SRV, TIPC_TOP_SRV},
    };
    struct tipc_subscr wanted = {.seq = {type, 1, 1}, .timeout = milliseconds, .filter = TIPC_SUB_SERVICE};
    struct tipc_event event;
    int fd = TRY(socket(AF_TIPC, SOCK_SEQPACKET, 0));
    TRY(connect(fd, (struct sockaddr *)&topology, sizeof topology));
    TRY(send(fd, &wanted, sizeof wanted, 0));
    if (TRY(recv(fd, &event, sizeof event, 0)) != sizeof event) end(FAILED, "the topology server answers oddly");
    if (event.event != TIPC_PUBLISHED) end(TIME_UP, "nobody serves type %u", type);
    close(fd);
}

static inline uint32_t own_node(int fd) {
    struct sockaddr_tipc address;
    socklen_t length = sizeof address;
    TRY(getsockname(fd, (struct sockaddr *)&address, &length));
    return address.addr.id.node;
}

/* Within one node, or between namespaces of one kernel, TIPC never touches an interface: that would test nothing. */
static inline void want_other_node(int fd, uint32_t peer) {
    if (own_node(fd) == peer) end(SAME_NODE, "the service is on this very node, %x", peer);
}

/* "64,1000,60000" */
static inline int parse_sizes(char *text, size_t least, size_t *sizes) {
    int count = 0;
    for (char *word = strtok(text, ","); word; word = strtok(NULL, ",")) {
        char *rest;
        size_t size = strtoul(word, &rest, 10);
        if (*rest || size < least || size > MOST || count == SIZES)
            end(USAGE, "%s: a list of at most %d sizes from %zu to %d is wanted", word, SIZES, least, MOST);
        sizes[count++] = size;
    }
    return count;
}
#endif

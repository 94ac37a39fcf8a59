/* What every victim program in this folder is made of: two processes, one TCP connection, and a second channel to agree by.
 *
 * A program lists its examples in a table. `./program NAME` runs one of them: this process listens and is the *server*; it
 * starts itself again, by exec, as the *client*, which connects. Both ends exchange WARM (environment, default 400) round trips
 * first, so that a library which moves connections to another path has done so: the example happens in mid-conversation.
 * Then server(fd) and client(fd) run. Exit status 0 means that everything the example checks was right on both sides.
 *
 * Most examples are written from the client's side only; their server is puppet(), which does what it is asked over the second
 * channel (a UNIX socket that is never the subject of a test). So nobody sleeps to win a race: what was asked for has been done
 * when ask() returns. pytest reads the tables with a regular expression (tests/test_sockets.py): keep one example a line. */
#ifndef PAIR_H
#define PAIR_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
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
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    V6 = 1,       /* connect over ::1 */
    MAPPED = 2,   /* an IPv6 socket that connects to ::ffff:127.0.0.1 */
    RAW = 4,      /* no connection is made: server() gets the listener, client() gets -1 and dials itself */
    TCP_OK = 8,   /* for pytest: the example is right whether or not anything is promoted */
    DIES = 16,    /* the client ends by SIGKILL and that is right */
    SLOW = 32,    /* for pytest: needs more than the usual time */
    MEASURES = 64, /* for pytest: measures processor time, so nothing else is to run beside it */
};

struct example {
    const char *name;
    void (*server)(int fd);
    void (*client)(int fd);
    unsigned flags;
};

extern const struct example examples[]; /* ends with a name of NULL */

/* Checks. A failed one says where, in which process, and ends the process with status 1. */
_Noreturn void fail(const char *file, int line, const char *what, long long got, long long wanted);
#define CHECK(cond) ((cond) ? (void)0 : fail(__FILE__, __LINE__, #cond, 0, 0))
#define EQUAL(got, wanted)                                                                                                       \
    do {                                                                                                                         \
        long long got_ = (long long)(got), wanted_ = (long long)(wanted);                                                        \
        if (got_ != wanted_) fail(__FILE__, __LINE__, #got " == " #wanted, got_, wanted_);                                       \
    } while (0)
#define ERRNO(call, wanted)                                                                                                      \
    do {                                                                                                                         \
        errno = 0;                                                                                                               \
        long long got_ = (long long)(call);                                                                                      \
        int errno_ = errno;                                                                                                      \
        if (got_ != -1) fail(__FILE__, __LINE__, #call " fails", got_, -1);                                                      \
        if (errno_ != (wanted)) fail(__FILE__, __LINE__, #call " gives errno " #wanted, errno_, (wanted));                       \
    } while (0)

/* The data: byte number `at` of stream `key` is always the same, so a lost, doubled or moved byte shows. */
uint8_t byte_at(unsigned key, uint64_t at);
void fill(unsigned key, uint64_t at, void *buffer, size_t length);
void verify(unsigned key, uint64_t at, const void *buffer, size_t length);

void send_all(int fd, const void *data, size_t length);
void recv_all(int fd, void *data, size_t length);
/* Sends and receives bytes of this process's numbered streams: what it sent so far and what it got so far are counted, so any
 * way of sending them may be mixed. `sent` and `got` are for examples that move bytes by other calls. */
void put(int fd, size_t length);
void take(int fd, size_t length);
extern uint64_t sent, got;
enum { FROM_CLIENT = 1, FROM_SERVER = 2 };
extern unsigned my_key, your_key;
void echo_rounds(int fd, int rounds, size_t size); /* the client half: put, then take the puppet's answer */

/* Connections. */
int dial(void);                  /* a new connection to the listener, blocking */
int dial_start(int *fd);         /* non-blocking: what connect() returned */
int answer(int listener);        /* accept */
void warm_server(int fd);
void warm_client(int fd);
/* Before each of several connections is warmed by warm_client(), counted from 0, where the numbers of descriptors matter: between hosts a thread opens libfabric when the first
 * connection has been there for a moment. Meanwhile libc opens files for it, whose numbers nobody can choose (docs/cluster.md): that is waited for, until the connection has moved. */
void expect_lowest(int connection);
extern bool is_server;
extern int family_flags;
extern struct sockaddr_storage listener_address;
extern socklen_t listener_length;
extern const char *self_case;    /* the name of the example */

/* The second channel. */
void tell(int64_t value);
int64_t hear(void);
bool is_told(void);              /* whether hear() returns at once */
void meet(void);                 /* both sides arrive before either goes on */

enum order { SEND = 1, READ, READ_EOF, READ_RESET, END_WR, END_RD, CLOSE, RESET, ECHO, SEND_ASLEEP, SEND_AGAIN_ASLEEP, EXIT, DIE, QUIT, HANG_UP_ASLEEP, DRAIN_ASLEEP };
void be_seen_to_wait(int fd);    /* for who reads only what has come already: a library that keeps connections on tcp whose waits it does not see is to see one */
void puppet(int fd);             /* the server half of most examples */
void puppet_for_one(int listener);   /* the same for examples that are RAW */
void puppet_when_warm(int listener); /* the same, once warm_client() has warmed the connection */
void puppet_that_dials(int unused);  /* for those whose server is under test: dials when it has been told to */
void go_by_tcp(int fd);          /* sets an option that only the kernel's tcp has: what follows goes by it */
void ask(enum order what, int64_t n);   /* the client half: returns when it has been done */
void order(enum order what, int64_t n); /* does not wait: for what happens while we sleep in a call (SEND_ASLEEP ...), _AGAIN_ since the last SEND */
void wait_asleep(pid_t pid, pid_t tid);
void leave(int fd);              /* the usual end: says QUIT, closes, and the puppet checks for end of file */

char *static_cat(void);            /* the path of a program that no preloaded library enters */
void ended_well(pid_t child);      /* waits for it */
void give(int channel, int fd);    /* passes it on over a UNIX socket, as SCM_RIGHTS with one byte */

double now(void);                /* seconds, monotonic */
void set_nonblocking(int fd, bool on);
size_t fill_up(int fd);          /* sends without blocking until EAGAIN, counted in `sent`; returns how many bytes */
void wait_queued(int fd, int bytes); /* until FIONREAD says so */
#endif

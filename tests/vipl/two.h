/* What the programs in this folder are made of: two processes with a NIC each, and a second channel to agree by.
 *
 * A program lists its examples in a table. `./program NAME` runs one of them: it forks, both open the NIC, then server() runs in the parent
 * and client() in the child. Exit status 0 means that everything that the example checks was right on both sides. What is checked is what
 * the specification says, or, where it leaves something open, what vipl.h says. pytest reads the tables with a regular expression
 * (tests/test_vipl.py): keep one example a line. */
#ifndef TWO_H
#define TWO_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <vipl.h>

enum {
    ALONE = 1, /* client() is called, in one process, and there is no other */
    DIES = 2,  /* the client ends by SIGKILL and that is right */
    NEAR = 8, /* for pytest: both processes are on one host */
    MEASURES = 4, /* for pytest: measures processor time, so nothing else is to run beside it */
};

struct example {
    const char *name;
    void (*server)(void);
    void (*client)(void);
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
#define OK(call) EQUAL(call, VIP_SUCCESS)

extern bool is_server;
extern pid_t other; /* the other process */
extern bool far;    /* it is on another host: HOSTS=FILE:FILE in the environment, network namespaces of the server and of the client */
extern VIP_NIC_HANDLE nic;
extern VIP_NIC_ATTRIBUTES nic_attributes;

/* The second channel. */
void tell(int64_t value);
int64_t hear(void);
void meet(void); /* both sides arrive before either goes on */
double now(void); /* seconds, monotonic */
double patience(void); /* how many seconds a second is here: $PATIENCE, where valgrind slows everything down */

/* Registered memory with descriptors in it, each with `room` bytes of data right behind it, as programs like to have it. From malloc(), or, with
 * POOLS=allocated in the environment, from VipAllocateMem(). */
bool allocates(void);
struct pool {
    char *base;
    size_t count, room, stride;
    VIP_MEM_HANDLE handle;
};
struct pool make_pool(size_t count, size_t room, VIP_PROTECTION_HANDLE ptag);
void drop_pool(struct pool *pool);
VIP_DESCRIPTOR *descriptor(struct pool *pool, size_t index); /* cleared, with one segment: all of the data */
VIP_DESCRIPTOR *posted(struct pool *pool, size_t index);     /* as it is */
char *data(struct pool *pool, size_t index);
void post_recv(VIP_VI_HANDLE vi, struct pool *pool, size_t index, size_t length);
void post_send(VIP_VI_HANDLE vi, struct pool *pool, size_t index, size_t length);

/* Takes the next descriptor that is done; waits for it as `how` says. Returns what the call returned at last. */
enum how { POLL, WAIT };
VIP_RETURN take_recv(VIP_VI_HANDLE vi, enum how how, VIP_DESCRIPTOR **done);
VIP_RETURN take_send(VIP_VI_HANDLE vi, enum how how, VIP_DESCRIPTOR **done);
void drain(VIP_VI_HANDLE vi, unsigned flushed); /* takes everything back: so many are flushed */

/* Virtual Interfaces. */
extern const VIP_RELIABILITY_LEVEL levels[3];
VIP_VI_ATTRIBUTES attributes(VIP_RELIABILITY_LEVEL level);
VIP_VI_HANDLE make_vi(VIP_RELIABILITY_LEVEL level, VIP_CQ_HANDLE send_cq, VIP_CQ_HANDLE receive_cq);
VIP_VI_STATE state(VIP_VI_HANDLE vi);
void wait_state(VIP_VI_HANDLE vi, VIP_VI_STATE wanted); /* at most a second */

/* Addresses. */
struct address {
    _Alignas(8) char bytes[64];
};
struct address address(const char *discriminator); /* of this host */
struct address there(const char *discriminator);   /* of the other process's */
#define NET(a) ((VIP_NET_ADDRESS *)(a).bytes)

void connect_at(VIP_VI_HANDLE vi, const char *discriminator); /* the server waits, the client requests */
VIP_RETURN request(VIP_VI_HANDLE vi, const char *discriminator, VIP_ULONG timeout); /* asks again while there is no match */
VIP_CONN_HANDLE wait_request(const char *discriminator);

/* Errors that fit no descriptor, as the handler of the NIC has them. */
struct error {
    VIP_ERROR_CODE code;
    VIP_VI_HANDLE vi;
    VIP_DESCRIPTOR *descriptor;
};
void catch_errors(void);
struct error next_error(void); /* waits for it, at most two seconds */
unsigned errors_left(void);
#endif

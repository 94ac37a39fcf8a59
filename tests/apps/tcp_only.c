/* What only the kernel's TCP can do: MSG_ZEROCOPY and its completions, kTLS, time stamps, socket filters, signal-driven input. A
 * library must step aside, in mid-conversation and with bytes unread, and the program must get what it asked for. */
#include "pair.h"
#include <linux/errqueue.h>
#include <linux/filter.h>
#include <linux/net_tstamp.h>

static void set(int fd, int level, int name, int value) {
    EQUAL(setsockopt(fd, level, name, &value, sizeof value), 0);
}

/* ---- MSG_ZEROCOPY ---- */

/* The numbers of sends that the kernel has told to be complete. */
static unsigned completed(int fd) {
    char control[200];
    struct msghdr m = {.msg_control = control, .msg_controllen = sizeof control};
    struct pollfd p = {fd, 0, 0};
    EQUAL(poll(&p, 1, 5000), 1);
    CHECK(p.revents & POLLERR);
    CHECK(recvmsg(fd, &m, MSG_ERRQUEUE) >= 0);
    CHECK(m.msg_flags & MSG_ERRQUEUE);
    struct cmsghdr *part = CMSG_FIRSTHDR(&m);
    CHECK(part != NULL);
    struct sock_extended_err *error = (void *)CMSG_DATA(part);
    EQUAL(error->ee_errno, 0);
    EQUAL(error->ee_origin, SO_EE_ORIGIN_ZEROCOPY);
    return error->ee_data + 1; /* from ee_info on */
}

static void zero_copy(int fd) {
    static char data[100000];
    ask(SEND, 300); /* unread while the option is set */
    wait_queued(fd, 300);
    set(fd, SOL_SOCKET, SO_ZEROCOPY, 1);
    wait_queued(fd, 300);
    for (unsigned i = 0; i < 10; i++) {
        order(READ, sizeof data);
        fill(my_key, sent, data, sizeof data);
        struct iovec v = {data, sizeof data};
        struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
        unsigned calls = 0;
        for (size_t done = 0; done < sizeof data; calls++) {
            v = (struct iovec){data + done, sizeof data - done};
            ssize_t n = i % 2 ? send(fd, v.iov_base, v.iov_len, MSG_ZEROCOPY) : sendmsg(fd, &m, MSG_ZEROCOPY);
            CHECK(n > 0);
            done += n;
        }
        sent += sizeof data;
        hear();
        static unsigned total;
        total += calls;
        while (completed(fd) < total) continue;
    }
    take(fd, 300);
    char byte;
    ERRNO(recv(fd, &byte, 1, MSG_ERRQUEUE), EAGAIN);
    echo_rounds(fd, 20, 100);
    leave(fd);
}

/* Without SO_ZEROCOPY the flag means nothing. */
static void zero_copy_not_asked(int fd) {
    for (int i = 0; i < 20; i++) {
        char data[1000];
        order(READ, sizeof data);
        fill(my_key, sent, data, sizeof data);
        EQUAL(send(fd, data, sizeof data, MSG_ZEROCOPY), sizeof data);
        sent += sizeof data;
        hear();
        echo_rounds(fd, 5, 100);
    }
    leave(fd);
}

/* ---- time stamps ---- */

static bool stamped(struct msghdr *m, int kind) {
    for (struct cmsghdr *part = CMSG_FIRSTHDR(m); part; part = CMSG_NXTHDR(m, part))
        if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == kind) return true;
    return false;
}

static void expect_stamps(int fd, int option) {
    char data[100], control[500];
    struct iovec v = {data, sizeof data};
    double end = now() + 5;
    for (int i = 0; i < 20;) {
        ask(SEND, sizeof data);
        wait_queued(fd, sizeof data);
        struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        EQUAL(recvmsg(fd, &m, 0), sizeof data);
        /* The kernel begins to stamp a moment after it is asked for the first time; what it has not stamped has no stamp. */
        if (stamped(&m, option)) i++;
        else CHECK(i == 0 && now() < end);
        verify(your_key, got, data, sizeof data);
        got += sizeof data;
    }
    leave(fd);
}

static void stamps(int fd, int option, int value) {
    set(fd, SOL_SOCKET, option, value);
    expect_stamps(fd, option);
}

static void time_stamp(int fd) { stamps(fd, SO_TIMESTAMP, 1); }
static void time_stamp_ns(int fd) { stamps(fd, SO_TIMESTAMPNS, 1); }
static void time_stamping(int fd) { stamps(fd, SO_TIMESTAMPING, SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE); }

/* The stamp of what was sent comes by the error queue. */
static void time_stamping_sent(int fd) {
    char control[500], data[2000];
    set(fd, SOL_SOCKET, SO_TIMESTAMPING, SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE | SOF_TIMESTAMPING_OPT_TSONLY);
    for (int i = 0; i < 10; i++) {
        order(READ, 100);
        put(fd, 100);
        hear();
        struct pollfd p = {fd, 0, 0};
        EQUAL(poll(&p, 1, 5000), 1);
        struct iovec v = {data, sizeof data};
        struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        EQUAL(recvmsg(fd, &m, MSG_ERRQUEUE), 0);
        CHECK(stamped(&m, SCM_TIMESTAMPING));
    }
    leave(fd);
}

/* Asked for before the connection is made. */
static void time_stamp_before(int unused) {
    (void)unused;
    int fd = socket(listener_address.ss_family, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    set(fd, SOL_SOCKET, SO_TIMESTAMP, 1);
    CHECK(connect(fd, (void *)&listener_address, listener_length) == 0);
    echo_rounds(fd, 400, 100);
    expect_stamps(fd, SO_TIMESTAMP);
}

/* ---- filters and layers ---- */

static void filter(int fd) {
    struct sock_filter accept_all[] = {BPF_STMT(BPF_RET | BPF_K, 0xffffffff)};
    struct sock_fprog program = {1, accept_all};
    ask(SEND, 500);
    wait_queued(fd, 500);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0);
    take(fd, 500);
    echo_rounds(fd, 50, 100);
    int none = 0;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &none, sizeof none) == 0);
    echo_rounds(fd, 50, 100);
    leave(fd);
}

/* Which ways a connection goes. Only Shunt's library has it. */
__attribute__((weak)) int shunt_path(int fd);

/* What accept() gives has its listener's filter, which sees nothing of what does not go by tcp. */
static void filter_of_listener(int listener) {
    struct sock_filter accept_all[] = {BPF_STMT(BPF_RET | BPF_K, 0xffffffff)};
    struct sock_fprog program = {1, accept_all};
    CHECK(setsockopt(listener, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0);
    tell(0); /* it has what accept() is to give */
    int fd = answer(listener);
    echo_rounds(fd, 400, 100);
    if (shunt_path) EQUAL(shunt_path(fd), 0);
    leave(fd);
}

/* A filter that drops every segment that carries data: nothing comes while it is there, and all of it later. */
static void filter_drops(int fd) {
    struct sock_filter drop_all[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
    struct sock_fprog program = {1, drop_all};
    char byte;
    int none = 0;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0);
    ask(SEND, 100);
    struct pollfd p = {fd, POLLIN, 0};
    EQUAL(poll(&p, 1, 50), 0);
    ERRNO(recv(fd, &byte, 1, MSG_DONTWAIT), EAGAIN);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &none, sizeof none) == 0);
    take(fd, 100); /* sent again by the kernel */
    echo_rounds(fd, 50, 100);
    leave(fd);
}

/* kTLS: ENOENT where the module is not there, else the layer is taken; and without keys it passes everything on. */
static void layer(int fd) {
    char none[] = "no-such-layer";
    ERRNO(setsockopt(fd, IPPROTO_TCP, TCP_ULP, none, sizeof none), ENOENT);
    echo_rounds(fd, 20, 100);
    if (setsockopt(fd, IPPROTO_TCP, TCP_ULP, "tls", 4) != 0) CHECK(errno == ENOENT || errno == EPERM);
    echo_rounds(fd, 50, 100);
    leave(fd);
}

/* ---- signal-driven input ---- */

static volatile sig_atomic_t ready;
static void on_ready(int unused) {
    (void)unused;
    ready++;
}

static void wait_ready(void) {
    for (double end = now() + 5; !ready; usleep(200)) CHECK(now() < end);
    ready = 0;
}

/* SIGIO comes for each arrival, after F_SETOWN and O_ASYNC by the one call or the other. */
static void driven(int fd, bool by_ioctl) {
    int one = 1, zero = 0;
    signal(SIGIO, on_ready);
    CHECK(fcntl(fd, F_SETOWN, getpid()) == 0);
    EQUAL(fcntl(fd, F_GETOWN), getpid());
    CHECK(by_ioctl ? ioctl(fd, FIOASYNC, &one) == 0 : fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_ASYNC) == 0);
    CHECK(fcntl(fd, F_GETFL) & O_ASYNC);
    for (int i = 0; i < 20; i++) {
        ready = 0;
        order(SEND, 100);
        wait_ready();
        take(fd, 100);
        hear();
    }
    CHECK(by_ioctl ? ioctl(fd, FIOASYNC, &zero) == 0 : fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_ASYNC) == 0);
    ready = 0;
    echo_rounds(fd, 20, 100);
    EQUAL(ready, 0);
    leave(fd);
}

static void driven_by_fcntl(int fd) { driven(fd, false); }
static void driven_by_ioctl(int fd) { driven(fd, true); }

/* With bytes that waited unread: they are there, and later ones make signals; F_SETSIG chooses which. */
static void driven_late(int fd) {
    signal(SIGUSR1, on_ready);
    ask(SEND, 5000);
    wait_queued(fd, 5000);
    CHECK(fcntl(fd, F_SETOWN, getpid()) == 0);
    CHECK(fcntl(fd, F_SETSIG, SIGUSR1) == 0);
    CHECK(fcntl(fd, F_SETFL, O_ASYNC | O_NONBLOCK) == 0);
    wait_queued(fd, 5000);
    char data[5000];
    size_t have = 0;
    while (have < sizeof data) {
        ssize_t n = recv(fd, data + have, sizeof data - have, 0);
        if (n > 0) have += n;
        else EQUAL(errno, EAGAIN);
    }
    verify(your_key, got, data, sizeof data);
    got += sizeof data;
    for (int i = 0; i < 10; i++) {
        ready = 0;
        order(SEND, 10);
        wait_ready();
        hear();
        wait_queued(fd, 10);
        take(fd, 10);
    }
    ready = 0;
    order(END_WR, 0);
    wait_ready();
    hear();
    EQUAL(recv(fd, data, 1, 0), 0);
    leave(fd);
}

/* TCP_REPAIR is for root and checkpointing; whoever may not is told so. */
static void repair(int fd) {
    int on = 1, off = 0;
    if (setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &on, sizeof on) == 0) {
        CHECK(setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &off, sizeof off) == 0);
    } else {
        EQUAL(errno, EPERM);
    }
    echo_rounds(fd, 50, 100);
    leave(fd);
}

const struct example examples[] = {
    {"zero_copy", puppet, zero_copy, 0},
    {"zero_copy_not_asked", puppet, zero_copy_not_asked, 0},
    {"time_stamp", puppet, time_stamp, 0},
    {"time_stamp_ns", puppet, time_stamp_ns, 0},
    {"time_stamp_before", puppet_for_one, time_stamp_before, RAW | TCP_OK},
    {"time_stamping", puppet, time_stamping, 0},
    {"time_stamping_sent", puppet, time_stamping_sent, 0},
    {"filter", puppet, filter, 0},
    {"filter_drops", puppet, filter_drops, 0},
    {"filter_of_listener", filter_of_listener, puppet_that_dials, RAW | TCP_OK},
    {"layer", puppet, layer, 0},
    {"driven_by_fcntl", puppet, driven_by_fcntl, 0},
    {"driven_by_ioctl", puppet, driven_by_ioctl, 0},
    {"driven_late", puppet, driven_late, 0},
    {"repair", puppet, repair, 0},
    {0},
};

/* SCM_RIGHTS: a connection in mid-conversation is handed to another process over a UNIX socket, to a child, or to a program that
 * was never related to it by fork; the old owner closes it or keeps it. */
#include "pair.h"

static int receive(int channel) {
    char byte, control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec v = {&byte, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    EQUAL(recvmsg(channel, &m, MSG_CMSG_CLOEXEC), 1);
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    CHECK(c && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof(int)));
    int fd;
    memcpy(&fd, CMSG_DATA(c), sizeof fd);
    return fd;
}

/* A child that was there before the connection receives it; what it inherited is nothing. */
static pid_t receiver(int channel[2], void (*use)(int fd)) {
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channel) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        close(channel[0]);
        use(receive(channel[1]));
        _exit(0);
    }
    close(channel[1]);
    return child;
}

static void talk_and_leave(int fd) {
    echo_rounds(fd, 300, 100);
    leave(fd);
}

static void given_away(int unused) {
    (void)unused;
    int channel[2], fd;
    pid_t child = receiver(channel, talk_and_leave);
    warm_client(fd = dial());
    give(channel[0], fd);
    close(fd);
    ended_well(child);
}

/* Bytes wait unread when it is given. */
static void take_and_leave(int fd) {
    take(fd, 5000);
    talk_and_leave(fd);
}

static void given_unread(int unused) {
    (void)unused;
    int channel[2], fd;
    pid_t child = receiver(channel, take_and_leave);
    warm_client(fd = dial());
    ask(SEND, 5000);
    wait_queued(fd, 5000);
    give(channel[0], fd);
    close(fd);
    ended_well(child);
}

/* A plain program that we only know by a UNIX socket takes over in the middle of a stream, which goes both ways, with bytes unread and the
 * peer writing. Nothing is lost, doubled or moved. */
enum { STREAM = 64 << 20, BEFORE = 3 << 20 };

static void *write_stream(void *fd) {
    for (int done = 0; done < STREAM; done += 1 << 16) put(*(int *)fd, 1 << 16);
    return NULL;
}

static void streams(int listener) {
    static char data[1 << 16];
    int fd = answer(listener);
    pthread_t writer;
    warm_server(fd);
    uint64_t first = sent;
    CHECK(pthread_create(&writer, NULL, write_stream, &fd) == 0);
    for (int done = 0; done < STREAM; done += sizeof data) { /* what a plain program sends back is ours */
        recv_all(fd, data, sizeof data);
        verify(my_key, first + done, data, sizeof data);
    }
    CHECK(pthread_join(writer, NULL) == 0);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    char byte;
    EQUAL(recv(fd, &byte, 1, 0), 0);
    close(fd);
}

static void given_to_plain(int unused) {
    (void)unused;
    int channel[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channel) == 0);
    pid_t plain = fork();
    CHECK(plain >= 0);
    if (plain == 0) {
        dup2(channel[1], 0);
        execl(static_cat(), "static_cat", "passed", NULL);
        _exit(127);
    }
    int fd = dial();
    warm_client(fd);
    for (int done = 0; done < BEFORE; done += 1000) {
        char data[1000];
        recv_all(fd, data, sizeof data);
        send_all(fd, data, sizeof data);
    }
    give(channel[0], fd);
    close(fd);
    ended_well(plain);
}

/* Both keep it and use it in turn. */
static void talk(int fd) {
    echo_rounds(fd, 300, 100);
}

static void shared(int unused) {
    (void)unused;
    int channel[2], fd;
    pid_t child = receiver(channel, talk);
    warm_client(fd = dial());
    give(channel[0], fd);
    ended_well(child);
    sent += 30000, got += 30000;
    echo_rounds(fd, 300, 100);
    leave(fd);
}

/* To oneself: another number for the same connection. */
static void to_ourselves(int fd) {
    int channel[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, channel) == 0);
    for (int i = 0; i < 20; i++) {
        give(channel[0], fd);
        if (i % 2) close(fd);
        int again = receive(channel[1]);
        if (i % 2 == 0) close(fd);
        fd = again;
        echo_rounds(fd, 20, 100);
    }
    leave(fd);
}

/* A server that accepts in one process and hands every connection to a worker (Apache's and Node's way). */
static void echo_all(int fd) {
    char data[100];
    while (recv(fd, data, sizeof data, MSG_WAITALL) == sizeof data) send_all(fd, data, sizeof data);
    close(fd);
}

static void dispatcher(int listener) {
    for (int i = 0; i < 10; i++) {
        int channel[2];
        pid_t worker = receiver(channel, echo_all);
        int fd = answer(listener);
        give(channel[0], fd);
        close(fd);
        close(channel[0]);
        ended_well(worker);
    }
}

static void ten_clients(int unused) {
    (void)unused;
    for (int i = 0; i < 10; i++) {
        int fd = dial();
        for (int round = 0; round < 400; round++) {
            char out[100], in[100];
            fill(i, round, out, sizeof out);
            send_all(fd, out, sizeof out);
            recv_all(fd, in, sizeof in);
            CHECK(memcmp(in, out, sizeof in) == 0);
        }
        close(fd);
    }
}

const struct example examples[] = {
    {"given_away", puppet_when_warm, given_away, RAW},
    {"given_unread", puppet_when_warm, given_unread, RAW},
    {"given_to_plain", streams, given_to_plain, RAW},
    {"shared", puppet_when_warm, shared, RAW},
    {"to_ourselves", puppet, to_ourselves, 0},
    {"dispatcher", dispatcher, ten_clients, RAW | TCP_OK},
    {0},
};

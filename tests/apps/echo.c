/* The plain case: blocking calls, one request, one answer. Also one-way floods, the oldest calls (read, write, recvfrom, sendto)
 * and the three ways to address a neighbour: IPv4, IPv6, and IPv4 in an IPv6 socket. Built twice: once with
 * -D_FORTIFY_SOURCE=2, which makes the compiler call __recv_chk and friends instead of recv. */
#include "pair.h"

static void sizes(int fd) {
    static const int many[] = {1, 2, 7, 63, 64, 65, 100, 1000, 1448, 4095, 4096, 4097, 16383, 16384, 16385, 65536, 100000};
    for (size_t i = 0; i < sizeof many / sizeof *many; i++) echo_rounds(fd, 20, many[i]);
    leave(fd);
}

static void small_messages(int fd) {
    echo_rounds(fd, 5000, 64);
    leave(fd);
}

static void one_way_server(int fd) {
    for (int i = 0; i < 20000; i++) take(fd, 64);
    put(fd, 1);
    take(fd, 3 << 20);
    put(fd, 1);
    char byte;
    EQUAL(recv(fd, &byte, 1, 0), 0);
}

static void one_way_client(int fd) {
    for (int i = 0; i < 20000; i++) put(fd, 64);
    take(fd, 1);
    for (int i = 0; i < 3 << 20; i += 1 << 16) put(fd, 1 << 16);
    take(fd, 1);
    close(fd);
}

/* The length is not known to the compiler, so that fortified builds really check. */
static volatile size_t chunk = 200;

static void old_calls(int fd) {
    char out[256], in[256];
    for (int round = 0; round < 300; round++) {
        order(ECHO, (int64_t)1 << 32 | (int64_t)chunk);
        fill(my_key, sent, out, chunk);
        ssize_t n = round % 2 ? write(fd, out, chunk) : sendto(fd, out, chunk, 0, NULL, 0);
        EQUAL(n, chunk);
        sent += n;
        for (size_t have = 0; have < chunk; have += n, got += n) {
            socklen_t length = sizeof(struct sockaddr_storage);
            struct sockaddr_storage from;
            switch (round % 4) {
            case 0: n = read(fd, in, chunk - have); break;
            case 1: n = recv(fd, in, chunk - have, 0); break;
            case 2: n = recvfrom(fd, in, chunk - have, 0, NULL, NULL); break;
            default: n = recvfrom(fd, in, chunk - have, 0, (void *)&from, &length); break;
            }
            CHECK(n > 0);
            verify(your_key, got, in, n);
        }
        hear();
    }
    leave(fd);
}

/* Many connections between the same two processes, used in turn. */
static void many_server(int listener) {
    int fds[50];
    for (int i = 0; i < 50; i++) fds[i] = answer(listener);
    for (int round = 0; round < 100; round++)
        for (int i = 0; i < 50; i++) {
            char data[100];
            recv_all(fds[i], data, sizeof data);
            send_all(fds[i], data, sizeof data);
        }
    for (int i = 0; i < 50; i++) close(fds[i]);
}

static void many_client(int unused) {
    (void)unused;
    int fds[50];
    for (int i = 0; i < 50; i++) fds[i] = dial();
    for (int round = 0; round < 100; round++)
        for (int i = 0; i < 50; i++) {
            char out[100], in[100];
            fill(i, round, out, sizeof out);
            send_all(fds[i], out, sizeof out);
            recv_all(fds[i], in, sizeof in);
            CHECK(memcmp(in, out, sizeof in) == 0);
        }
    char byte;
    for (int i = 0; i < 50; i++) EQUAL(recv(fds[i], &byte, 1, 0), 0);
}

/* Both ends in one process: whatever happens to such a connection, the bytes must be right. */
static void *echo_thread(void *argument) {
    int fd = answer(*(int *)argument);
    char data[1000];
    for (int i = 0; i < 1000; i++) {
        recv_all(fd, data, sizeof data);
        send_all(fd, data, sizeof data);
    }
    close(fd);
    return NULL;
}

static void within_server(int listener) {
    pthread_t thread;
    char out[1000], in[1000], byte;
    CHECK(pthread_create(&thread, NULL, echo_thread, &listener) == 0);
    int fd = dial();
    for (int i = 0; i < 1000; i++) {
        fill(3, i * 1000, out, sizeof out);
        send_all(fd, out, sizeof out);
        recv_all(fd, in, sizeof in);
        CHECK(memcmp(in, out, sizeof in) == 0);
    }
    EQUAL(recv(fd, &byte, 1, 0), 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

static void nothing(int unused) { (void)unused; }

/* A thousand connections one after another: setting up and taking down must not leak descriptors. */
static int open_descriptors(void) {
    int count = 0;
    for (int fd = 0; fd < 1024; fd++) count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void turnover_server(int listener) {
    int before = 0;
    for (int i = 0; i < 300; i++) {
        int fd = answer(listener);
        char data[64];
        while (recv(fd, data, 64, MSG_WAITALL) == 64) send_all(fd, data, 64);
        close(fd);
        if (i == 20) before = open_descriptors();
    }
    CHECK(open_descriptors() <= before + 2);
}

static void turnover_client(int unused) {
    (void)unused;
    int before = 0;
    for (int i = 0; i < 300; i++) {
        int fd = dial();
        for (int round = 0; round < i % 150; round++) {
            char out[64], in[64];
            fill(i, round, out, 64);
            send_all(fd, out, 64);
            recv_all(fd, in, 64);
            CHECK(memcmp(in, out, 64) == 0);
        }
        close(fd);
        if (i == 20) before = open_descriptors();
    }
    CHECK(open_descriptors() <= before + 2);
}

const struct example examples[] = {
    {"sizes_v4", puppet, sizes, 0},
    {"sizes_v6", puppet, sizes, V6},
    {"sizes_mapped", puppet, sizes, MAPPED},
    {"small_messages", puppet, small_messages, 0},
    {"one_way", one_way_server, one_way_client, 0},
    {"old_calls", puppet, old_calls, 0},
    {"many_connections", many_server, many_client, RAW},
    {"within_one_process", within_server, nothing, RAW | TCP_OK},
    {"turnover", turnover_server, turnover_client, RAW},
    {0},
};

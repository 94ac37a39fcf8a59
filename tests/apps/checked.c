/* A stream of bytes over TCP and back, each of which is looked at: for connections that change their path in the middle.
 *
 *     checked server PORT                   echoes one connection, and ends with it
 *     checked client ADDRESS PORT STOP      until there is a file STOP
 *
 * What stands at a position of the stream follows from the position. The client writes pieces of all sizes, keeps at most WINDOW bytes under way, and
 * reads what comes back meanwhile. At the end both print one line of JSON with the number of bytes. Exit status: 0 good, 1 a wrong byte, or an end too early or too late,
 * 2 wrong usage, 3 nothing came for 60 s, 4 another error. For test_far.py and test_ofi_qemu.py. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { WINDOW = 1 << 18, PIECE = 1 << 15, LIMIT_MS = 60000 };

static unsigned char buffer[PIECE], expected[PIECE];

static void fail(int status, const char *what) {
    fprintf(stderr, "checked: %s: %s\n", what, strerror(errno));
    exit(status);
}

#define TRY(call) ({ __typeof__(call) result = (call); if (result < 0) fail(4, #call); result; })

static unsigned char byte_at(uint64_t position) {
    uint64_t word = (position >> 3) * 0x9e3779b97f4a7c15;
    return (word ^ word >> 29) >> (position & 7) * 8;
}

static void fill(unsigned char *into, uint64_t from, size_t length) {
    for (size_t at = 0; at < length; at++) into[at] = byte_at(from + at);
}

static struct sockaddr_in address(const char *ip, const char *port) {
    struct sockaddr_in made = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    if (inet_pton(AF_INET, ip, &made.sin_addr) != 1) fail(2, ip);
    return made;
}

static void serve(const char *port) {
    struct sockaddr_in own = address("0.0.0.0", port);
    int listening = TRY(socket(AF_INET, SOCK_STREAM, 0)), one = 1;
    TRY(setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one));
    TRY(bind(listening, (struct sockaddr *)&own, sizeof own));
    TRY(listen(listening, 1));
    int fd = TRY(accept(listening, NULL, NULL));
    uint64_t total = 0;
    for (ssize_t got; (got = TRY(read(fd, buffer, PIECE))) > 0; total += got) {
        fill(expected, total, got);
        if (memcmp(buffer, expected, got)) fail(1, "the server got a wrong byte");
        for (ssize_t at = 0; at < got;) at += TRY(write(fd, buffer + at, got - at));
    }
    printf("{\"bytes\": %llu}\n", (unsigned long long)total);
}

static void ask(const char *ip, const char *port, const char *stop) {
    struct sockaddr_in peer = address(ip, port);
    int fd = TRY(socket(AF_INET, SOCK_STREAM, 0));
    TRY(connect(fd, (struct sockaddr *)&peer, sizeof peer));
    uint64_t sent = 0, back = 0, size = 1;
    int stopped = 0;
    while (!stopped || back < sent) {
        if (!stopped && access(stop, F_OK) == 0) {
            TRY(shutdown(fd, SHUT_WR));
            stopped = 1;
        }
        int may_write = !stopped && sent - back < WINDOW;
        struct pollfd polled = {fd, POLLIN | (may_write ? POLLOUT : 0), 0};
        if (TRY(poll(&polled, 1, LIMIT_MS)) == 0) fail(3, "nothing comes");
        if (polled.revents & POLLOUT) {
            size = size * 29 % (PIECE - 19) + 1;
            fill(buffer, sent, size);
            ssize_t put = send(fd, buffer, size, MSG_DONTWAIT);
            if (put < 0 && errno != EAGAIN) fail(4, "send");
            sent += put > 0 ? put : 0;
        }
        if (polled.revents & (POLLIN | POLLHUP | POLLERR)) {
            ssize_t got = TRY(read(fd, buffer, PIECE));
            if (got == 0 && back < sent) fail(1, "the end comes too early");
            fill(expected, back, got);
            if (memcmp(buffer, expected, got)) fail(1, "the client got a wrong byte");
            back += got;
        }
    }
    if (TRY(read(fd, buffer, 1)) != 0) fail(1, "there is more than was sent");
    printf("{\"bytes\": %llu}\n", (unsigned long long)back);
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "server")) serve(argv[2]);
    else if (argc == 5 && !strcmp(argv[1], "client")) ask(argv[2], argv[3], argv[4]);
    else fail(2, "usage: checked server PORT | checked client ADDRESS PORT STOP");
}

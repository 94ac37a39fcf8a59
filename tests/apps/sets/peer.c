/* The other process: has the other ends of the connections, and does what it is told, one thing after the other. */
#include "sets.h"

struct order {
    char what;
    int which, count;
};

static int dial(int port) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    CHECK(connect(fd, (void *)&to, sizeof to) == 0);
    return fd;
}

static void echo(int fd) {
    char data[64];
    do {
        for (size_t have = 0; have < sizeof data;) {
            ssize_t n = recv(fd, data + have, sizeof data - have, 0);
            CHECK(n > 0);
            have += n;
        }
        CHECK(send(fd, data, sizeof data, MSG_NOSIGNAL) == sizeof data);
    } while (data[0]);
}

/* Sends on all connections, a bit here, a bit there, and an end on each. */
static void flood(int *fds, int conns, int rounds) {
    char data[256];
    for (int i = 0; i < rounds; i++) {
        int c = dice(conns), size = 1 + dice(200);
        memset(data, 'x', sizeof data);
        CHECK(send(fds[c], data, size, MSG_NOSIGNAL) == size);
        if (chance(5)) usleep(dice(300));
    }
    for (int c = 0; c < conns; c++) CHECK(send(fds[c], "e", 1, MSG_NOSIGNAL) == 1);
}

void other(int port) {
    int fds[CONNS] = {-1, -1, -1, -1};
    struct order o;
    is_other = true;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (recv(CHANNEL, &o, sizeof o, 0) == sizeof o) {
        int fd = fds[o.which];
        struct linger at_once = {1, 0};
        struct pollfd place = {.fd = fd, .events = POLLIN};
        switch (o.what) {
        case 'd':
            fds[o.which] = dial(port);
            place.fd = fds[o.which];
            poll(&place, 1, 0);
            break;
        case 's': put(fd, o.count); break;
        case 'r': take(fd, o.count); break;
        case 'w': CHECK(shutdown(fd, SHUT_WR) == 0); break;
        case 'c': CHECK(close(fd) == 0); break;
        case 'x': CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) == 0 && close(fd) == 0); break;
        case 'e': echo(fd); break;
        case 'f':
            dice_state = o.count;
            send(CHANNEL, &o, sizeof o, 0);
            flood(fds, o.which, 300);
            continue;
        }
        CHECK(send(CHANNEL, &o, sizeof o, 0) == sizeof o);
    }
    _exit(0);
}

void begin(char what, int which, int count) {
    struct order o = {what, which, count};
    CHECK(send(CHANNEL, &o, sizeof o, MSG_NOSIGNAL) == sizeof o);
}
void done(void) {
    struct order o;
    CHECK(recv(CHANNEL, &o, sizeof o, 0) == sizeof o);
}
void tell(char what, int which, int count) {
    begin(what, which, count);
    done();
}

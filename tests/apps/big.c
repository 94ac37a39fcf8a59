/* Large amounts: megabytes in both directions at once, and the classic that dead-locks on a pipe but not on TCP: both sides write
 * a good deal, blocking, before either reads, because TCP's buffers take it. */
#include "pair.h"

static int the_fd;
static void *two_megabytes(void *unused) {
    (void)unused;
    put(the_fd, 2 << 20);
    return NULL;
}

static void both_ways(int fd) {
    the_fd = fd;
    for (int i = 0; i < 5; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, two_megabytes, NULL) == 0);
        take(fd, 2 << 20);
        CHECK(pthread_join(thread, NULL) == 0);
    }
    meet();
    close(fd);
}

static void write_first(int fd, size_t size) {
    for (int i = 0; i < 10; i++) {
        put(fd, size);
        take(fd, size);
    }
    meet();
    close(fd);
}

static void write_first_16k(int fd) { write_first(fd, 16 << 10); }
static void write_first_64k(int fd) { write_first(fd, 64 << 10); }
static void write_first_150k(int fd) { write_first(fd, 150 << 10); }

/* In small writes, so that the pressure builds slowly. */
static void write_first_in_pieces(int fd) {
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 150; i++) put(fd, 1000);
        meet();
        take(fd, 150000);
    }
    meet();
    close(fd);
}

static void long_stream(int fd) {
    for (int i = 0; i < 300; i++) put(fd, 100000 + i);
    close(fd);
}

static void long_stream_server(int fd) {
    char byte;
    for (int i = 0; i < 300; i++) take(fd, 100000 + i);
    EQUAL(recv(fd, &byte, 1, 0), 0);
}

/* Large and small in turn: the ring, whatever its size, is crossed everywhere. */
static void uneven(int fd) {
    for (int i = 0; i < 400; i++) echo_rounds(fd, 1, 1 + (uint32_t)i * 2654435761u % 50000);
    leave(fd);
}

const struct example examples[] = {
    {"both_ways", both_ways, both_ways, 0},
    {"write_first_16k", write_first_16k, write_first_16k, 0},
    {"write_first_64k", write_first_64k, write_first_64k, 0},
    {"write_first_150k", write_first_150k, write_first_150k, 0},
    {"write_first_in_pieces", write_first_in_pieces, write_first_in_pieces, 0},
    {"long_stream", long_stream_server, long_stream, 0},
    {"uneven", puppet, uneven, 0},
    {0},
};

/* Calls that move bytes between files, pipes and sockets inside the kernel: sendfile, splice, tee. They see only the kernel's
 * side of a connection, so a library must follow each of them or step aside. */
#include "pair.h"
#include <sys/sendfile.h>

static int file_of(size_t size) {
    char name[] = "/tmp/shunt-test-XXXXXX", *data = malloc(size);
    int file = mkstemp(name);
    CHECK(file >= 0);
    unlink(name);
    fill(my_key, sent, data, size);
    for (size_t done = 0; done < size;) {
        ssize_t n = write(file, data + done, size - done);
        CHECK(n > 0);
        done += n;
    }
    free(data);
    return file;
}

static void send_file(int fd) {
    for (int i = 0; i < 10; i++) {
        size_t size = i % 2 ? 5000 : 1 << 20;
        int file = file_of(size);
        order(READ, size);
        off_t offset = 0;
        while ((size_t)offset < size) {
            off_t before = offset;
            ssize_t n = sendfile(fd, file, &offset, size - offset);
            CHECK(n > 0);
            EQUAL(offset - before, n);
        }
        EQUAL(lseek(file, 0, SEEK_CUR), size); /* where write() left it: an offset given leaves the file's own alone */
        EQUAL(sendfile(fd, file, &offset, 100), 0);
        sent += size;
        hear();
        close(file);
        echo_rounds(fd, 20, 100);
    }
    leave(fd);
}

static void send_file_position(int fd) {
    for (int i = 0; i < 10; i++) {
        int file = file_of(50000);
        CHECK(lseek(file, 0, SEEK_SET) == 0);
        order(READ, 50000);
        for (size_t done = 0; done < 50000;) {
            ssize_t n = sendfile(fd, file, NULL, 7000);
            CHECK(n > 0);
            done += n;
            EQUAL(lseek(file, 0, SEEK_CUR), done);
        }
        sent += 50000;
        hear();
        close(file);
    }
    leave(fd);
}

/* A header by send(MSG_MORE), then the file: order is kept. Non-blocking, as nginx does. */
static void header_and_file(int fd) {
    set_nonblocking(fd, true);
    for (int i = 0; i < 10; i++) {
        size_t size = 3 << 20;
        char header[200];
        order(READ, sizeof header + size);
        fill(my_key, sent, header, sizeof header);
        EQUAL(send(fd, header, sizeof header, MSG_MORE), sizeof header);
        sent += sizeof header;
        int file = file_of(size);
        off_t offset = 0;
        while ((size_t)offset < size) {
            ssize_t n = sendfile(fd, file, &offset, size - offset);
            if (n < 0) {
                EQUAL(errno, EAGAIN);
                struct pollfd p = {fd, POLLOUT, 0};
                EQUAL(poll(&p, 1, 20000), 1);
                continue;
            }
            CHECK(n > 0);
        }
        sent += size;
        hear();
        close(file);
    }
    set_nonblocking(fd, false);
    echo_rounds(fd, 20, 100);
    leave(fd);
}

static void splice_out(int fd) {
    int pipes[2];
    char data[4000];
    CHECK(pipe(pipes) == 0);
    for (int i = 0; i < 50; i++) {
        fill(my_key, sent, data, sizeof data);
        EQUAL(write(pipes[1], data, sizeof data), sizeof data);
        order(READ, sizeof data);
        for (size_t done = 0; done < sizeof data;) {
            ssize_t n = splice(pipes[0], NULL, fd, NULL, sizeof data - done, SPLICE_F_MOVE);
            CHECK(n > 0);
            done += n;
        }
        sent += sizeof data;
        hear();
        echo_rounds(fd, 5, 100);
    }
    leave(fd);
}

static void splice_in(int fd) {
    int pipes[2];
    char data[4000];
    CHECK(pipe(pipes) == 0);
    for (int i = 0; i < 50; i++) {
        ask(SEND, sizeof data);
        for (size_t have = 0; have < sizeof data;) {
            ssize_t n = splice(fd, NULL, pipes[1], NULL, sizeof data - have, 0);
            CHECK(n > 0);
            EQUAL(read(pipes[0], data + have, n), n);
            have += n;
        }
        verify(your_key, got, data, sizeof data);
        got += sizeof data;
        echo_rounds(fd, 5, 100);
    }
    ask(END_WR, 0);
    EQUAL(splice(fd, NULL, pipes[1], NULL, 100, 0), 0);
    leave(fd);
}

/* A splice that sleeps until data comes. */
static void splice_asleep(int fd) {
    int pipes[2];
    char data[100];
    CHECK(pipe(pipes) == 0);
    for (int i = 0; i < 10; i++) {
        order(SEND_ASLEEP, sizeof data);
        EQUAL(splice(fd, NULL, pipes[1], NULL, 4096, 0), sizeof data);
        EQUAL(read(pipes[0], data, sizeof data), sizeof data);
        verify(your_key, got, data, sizeof data);
        got += sizeof data;
    }
    leave(fd);
}

const struct example examples[] = {
    {"send_file", puppet, send_file, 0},
    {"send_file_position", puppet, send_file_position, 0},
    {"header_and_file", puppet, header_and_file, 0},
    {"splice_out", puppet, splice_out, 0},
    {"splice_in", puppet, splice_in, 0},
    {"splice_asleep", puppet, splice_asleep, 0},
    {0},
};

/* Calls that move bytes between files, pipes and sockets inside the kernel: sendfile, splice, tee. They see only the kernel's
 * side of a connection, so a library must follow each of them or step aside. */
#include "pair.h"
#include <sys/mman.h>
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
        sent += sizeof header;
        int file = file_of(size);
        off_t offset = 0;
        for (bool begun = false; (size_t)offset < size;) {
            ssize_t n = begun ? sendfile(fd, file, &offset, size - offset) : send(fd, header, sizeof header, MSG_MORE);
            if (n < 0) {
                /* Also at its beginning: that the last file has been read is heard by another way, maybe sooner. */
                EQUAL(errno, EAGAIN);
                struct pollfd p = {fd, POLLOUT, 0};
                EQUAL(poll(&p, 1, 20000), 1);
                continue;
            }
            CHECK(n > 0);
            if (!begun) EQUAL(n, sizeof header);
            begun = true;
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

/* What the other end sent before it went another way, or shut its half, is spliced before all that came later; by one that waits with epoll, as proxies do. */
static void splice_in_waited_for(int fd) {
    char data[15000];
    int pipes[2], set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP};
    CHECK(pipe(pipes) == 0);
    EQUAL(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
    for (int round = 0; round < 2; round++) {
        hear();
        wait_queued(fd, sizeof data);
        for (size_t have = 0; have < sizeof data;) {
            EQUAL(epoll_wait(set, &event, 1, 20000), 1);
            ssize_t n = splice(fd, NULL, pipes[1], NULL, sizeof data - have, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
            CHECK(n > 0);
            EQUAL(read(pipes[0], data, n), n);
            verify(your_key, got, data, n);
            got += n;
            have += n;
        }
        tell(0);
    }
    EQUAL(splice(fd, NULL, pipes[1], NULL, 100, 0), 0);
    close(set);
    meet();
    close(fd);
}

static void two_rounds(int fd, bool other_way) {
    put(fd, 10000);
    if (other_way) go_by_tcp(fd);
    put(fd, 5000);
    tell(0);
    hear();
    put(fd, 15000);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    tell(0);
    hear();
    meet();
    close(fd);
}

static void splice_in_other_way_server(int fd) { two_rounds(fd, true); }
static void splice_in_ended_server(int fd) { two_rounds(fd, false); }

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

/* Files that are not in memory, or only in part; and such as never are anywhere else. */
static void send_file_cold(int fd) {
    for (int i = 0; i < 6; i++) {
        size_t size = 300000;
        int file = file_of(size), kept = -1;
        char byte;
        CHECK(fsync(file) == 0);
        CHECK(posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0);
        if (i % 3 == 1) EQUAL(pread(file, &byte, 1, size / 2), 1);
        if (i % 3 == 2) {
            CHECK((kept = memfd_create("kept", 0)) >= 0);
            char data[10000];
            for (size_t at = 0; at < size; at += sizeof data) {
                EQUAL(pread(file, data, sizeof data, at), sizeof data);
                EQUAL(pwrite(kept, data, sizeof data, at), sizeof data);
            }
        }
        order(READ, size);
        off_t offset = 0;
        while ((size_t)offset < size) CHECK(sendfile(fd, kept >= 0 ? kept : file, &offset, size) > 0);
        sent += size;
        hear();
        close(file);
        if (kept >= 0) close(kept);
    }
    leave(fd);
}

/* Less in the file than was asked for; an offset at its end, or behind; sendfile64; offsets that are not at a page's start. */
static void send_file_short(int fd) {
    for (int i = 0; i < 10; i++) {
        int file = file_of(3333);
        off64_t offset = 0;
        order(READ, 3333);
        EQUAL(sendfile64(fd, file, &offset, 1000000), 3333);
        EQUAL(offset, 3333);
        sent += 3333;
        hear();
        EQUAL(sendfile64(fd, file, &offset, 100), 0);
        offset = 99999;
        EQUAL(sendfile(fd, file, &offset, 100), 0);
        EQUAL(offset, 99999);
        EQUAL(sendfile(fd, file, NULL, 100), 0); /* where writing left it: the end */
        EQUAL(sendfile(fd, file, NULL, 0), 0);
        offset = -1;
        ERRNO(sendfile(fd, file, &offset, 10), EINVAL);
        close(file);
        file = file_of(200); /* the last 123 bytes of it */
        offset = 77;
        char part[123];
        fill(my_key, sent, part, 123);
        EQUAL(pwrite(file, part, 123, 77), 123);
        order(READ, 123);
        EQUAL(sendfile(fd, file, &offset, 1000), 123);
        EQUAL(offset, 200);
        sent += 123;
        hear();
        close(file);
        echo_rounds(fd, 5, 100);
    }
    leave(fd);
}

/* What sendfile() cannot read from. */
static void send_file_refused(int fd) {
    int pipes[2], folder = open("/tmp", O_RDONLY), closed = dup(folder), writing = open("/dev/null", O_WRONLY);
    off_t offset = 0;
    CHECK(pipe(pipes) == 0);
    close(closed);
    for (int i = 0; i < 5; i++) {
        ERRNO(sendfile(fd, closed, NULL, 100), EBADF);
        ERRNO(sendfile(fd, writing, NULL, 100), EBADF);
        ERRNO(sendfile(fd, pipes[0], &offset, 100), ESPIPE);
        ERRNO(sendfile(fd, fd, &offset, 100), ESPIPE);
        CHECK(sendfile(fd, folder, NULL, 100) == -1);
        echo_rounds(fd, 5, 100);
    }
    close(pipes[0]), close(pipes[1]), close(folder), close(writing);
    leave(fd);
}

/* After the other side has gone: EPIPE and SIGPIPE, as by write(). */
static volatile sig_atomic_t pipes_broken;
static void on_pipe(int unused) {
    (void)unused;
    pipes_broken++;
}

static void send_file_broken(int fd) {
    signal(SIGPIPE, on_pipe);
    int file = file_of(1000);
    off_t offset = 0;
    CHECK(shutdown(fd, SHUT_WR) == 0);
    ERRNO(sendfile(fd, file, &offset, 1000), EPIPE);
    EQUAL(offset, 0);
    EQUAL(pipes_broken, 1);
    close(file);
    leave(fd);
}

/* From one connection to another, through a pipe, as proxies do; the other side reads what it has sent. */
static void splice_through(int fd) {
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    for (int i = 0; i < 20; i++) {
        size_t size = 1 + i * 1000;
        ask(SEND, size);
        order(READ_EOF, size); /* see spliced_server */
        for (size_t done = 0; done < size;) {
            ssize_t in = splice(fd, NULL, pipes[1], NULL, size - done, SPLICE_F_MOVE | SPLICE_F_MORE);
            CHECK(in > 0);
            for (ssize_t out = 0; out < in;) {
                ssize_t n = splice(pipes[0], NULL, fd, NULL, in - out, SPLICE_F_MOVE);
                CHECK(n > 0);
                out += n;
            }
            done += in;
        }
        hear();
    }
    set_nonblocking(fd, true);
    ERRNO(splice(fd, NULL, pipes[1], NULL, 100, 0), EAGAIN);
    set_nonblocking(fd, false);
    ERRNO(splice(fd, NULL, fd, NULL, 100, 0), EINVAL);
    loff_t at = 0;
    EQUAL(splice(fd, &at, pipes[1], NULL, 100, 0), -1); /* ESPIPE, or EINVAL since Linux 6.5 */
    order(QUIT, 0);
    close(fd);
    hear();
}

static void spliced_server(int fd) {
    uint64_t back = 0;
    char data[20000], byte;
    for (;;) {
        enum order what = hear();
        size_t size = hear();
        hear(), hear();
        if (what == QUIT) break;
        if (what == SEND) put(fd, size);
        if (what == READ_EOF) {
            recv_all(fd, data, size);
            verify(my_key, back, data, size);
            back += size;
        }
        tell(0);
    }
    EQUAL(recv(fd, &byte, 1, 0), 0);
    tell(0);
}

/* tee() and vmsplice() work on pipes, copy_file_range() on files: a connection is refused, and unharmed. */
static void refused(int fd) {
    int pipes[2], file = file_of(1000);
    char data[100] = {0};
    struct iovec v = {data, sizeof data};
    CHECK(pipe(pipes) == 0);
    for (int i = 0; i < 5; i++) {
        ERRNO(tee(fd, pipes[1], 100, 0), EINVAL);
        ERRNO(tee(pipes[0], fd, 100, 0), EINVAL);
        ERRNO(vmsplice(fd, &v, 1, 0), EBADF);
        ERRNO(copy_file_range(fd, NULL, file, NULL, 100, 0), EINVAL);
        ERRNO(copy_file_range(file, NULL, fd, NULL, 100, 0), EINVAL);
        echo_rounds(fd, 10, 100);
    }
    /* What vmsplice() puts into a pipe goes on to the connection, a tee() of it to another pipe. */
    int more[2];
    CHECK(pipe(more) == 0);
    for (int i = 0; i < 10; i++) {
        fill(my_key, sent, data, sizeof data);
        EQUAL(vmsplice(pipes[1], &v, 1, 0), sizeof data);
        EQUAL(tee(pipes[0], more[1], sizeof data, 0), sizeof data);
        order(READ, sizeof data);
        EQUAL(splice(pipes[0], NULL, fd, NULL, sizeof data, 0), sizeof data);
        sent += sizeof data;
        hear();
        char copy[100];
        EQUAL(read(more[0], copy, sizeof copy), sizeof copy);
        CHECK(memcmp(copy, data, sizeof copy) == 0);
    }
    close(file);
    leave(fd);
}

const struct example examples[] = {
    {"send_file", puppet, send_file, 0},
    {"send_file_position", puppet, send_file_position, 0},
    {"header_and_file", puppet, header_and_file, 0},
    {"splice_out", puppet, splice_out, 0},
    {"splice_in", puppet, splice_in, 0},
    {"splice_in_other_way", splice_in_other_way_server, splice_in_waited_for, 0},
    {"splice_in_ended", splice_in_ended_server, splice_in_waited_for, 0},
    {"splice_asleep", puppet, splice_asleep, 0},
    {"send_file_short", puppet, send_file_short, 0},
    {"send_file_cold", puppet, send_file_cold, 0},
    {"send_file_refused", puppet, send_file_refused, 0},
    {"send_file_broken", puppet, send_file_broken, 0},
    {"splice_through", spliced_server, splice_through, 0},
    {"refused", puppet, refused, 0},
    {0},
};

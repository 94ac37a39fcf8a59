/* Calls with many buffers or many messages: readv, writev, sendmsg, recvmsg, sendmmsg, recvmmsg, preadv's cousins that sockets
 * refuse. Lengths are odd and some are 0, so that boundaries fall everywhere. */
#include "pair.h"

enum { PARTS = 7 };
static const size_t lengths[PARTS] = {1, 0, 333, 64, 0, 2000, 17};
static const size_t total = 1 + 333 + 64 + 2000 + 17;
static char buffers[PARTS][2000];
static struct iovec vector[PARTS];

static void fill_vector(void) {
    uint64_t at = sent;
    for (int i = 0; i < PARTS; i++) {
        vector[i] = (struct iovec){buffers[i], lengths[i]};
        fill(my_key, at, buffers[i], lengths[i]);
        at += lengths[i];
    }
}

static void clear_vector(void) {
    memset(buffers, 0, sizeof buffers);
    for (int i = 0; i < PARTS; i++) vector[i] = (struct iovec){buffers[i], lengths[i]};
}

static void verify_vector(size_t n) {
    for (int i = 0; i < PARTS && n; i++) {
        size_t m = lengths[i] < n ? lengths[i] : n;
        verify(your_key, got, buffers[i], m);
        got += m;
        n -= m;
    }
}

static void by_writev(int fd) {
    for (int i = 0; i < 200; i++) {
        fill_vector();
        order(READ, total);
        EQUAL(writev(fd, vector, PARTS), total);
        sent += total;
        hear();
        ask(SEND, total);
        wait_queued(fd, total);
        clear_vector();
        EQUAL(readv(fd, vector, PARTS), total);
        verify_vector(total);
        ask(SEND, 100); /* less than there is room for */
        wait_queued(fd, 100);
        clear_vector();
        EQUAL(readv(fd, vector, PARTS), 100);
        verify_vector(100);
    }
    EQUAL(writev(fd, vector, 0), 0);
    volatile int minus_one = -1; /* volatile: the compiler would see through it and warn */
    ERRNO(writev(fd, vector, minus_one), EINVAL);
    leave(fd);
}

static void by_msg(int fd) {
    for (int i = 0; i < 200; i++) {
        struct msghdr m = {.msg_iov = vector, .msg_iovlen = PARTS};
        fill_vector();
        order(READ, total);
        EQUAL(sendmsg(fd, &m, MSG_NOSIGNAL), total);
        sent += total;
        hear();
        ask(SEND, total);
        clear_vector();
        struct sockaddr_storage name;
        char control[200];
        m = (struct msghdr){.msg_name = &name, .msg_namelen = sizeof name, .msg_iov = vector, .msg_iovlen = PARTS,
            .msg_control = control, .msg_controllen = sizeof control};
        EQUAL(recvmsg(fd, &m, MSG_WAITALL), total);
        EQUAL(m.msg_namelen, 0);    /* TCP names nobody */
        EQUAL(m.msg_controllen, 0);
        EQUAL(m.msg_flags & ~MSG_CMSG_CLOEXEC, 0);
        verify_vector(total);
        ask(SEND, total);
        wait_queued(fd, total);
        clear_vector();
        m = (struct msghdr){.msg_iov = vector, .msg_iovlen = PARTS};
        EQUAL(recvmsg(fd, &m, MSG_PEEK), total);
        uint64_t before = got;
        verify_vector(total);
        got = before;
        clear_vector();
        EQUAL(recvmsg(fd, &m, 0), total);
        verify_vector(total);
        ERRNO(recvmsg(fd, &m, MSG_DONTWAIT), EAGAIN);
    }
    leave(fd);
}

static void by_mmsg(int fd) {
    for (int i = 0; i < 100; i++) {
        struct mmsghdr m[3];
        struct iovec v[3];
        static char data[3][500];
        for (int k = 0; k < 3; k++) {
            fill(my_key, sent + k * 500, data[k], 500);
            v[k] = (struct iovec){data[k], 500};
            m[k] = (struct mmsghdr){.msg_hdr = {.msg_iov = &v[k], .msg_iovlen = 1}};
        }
        order(READ, 1500);
        EQUAL(sendmmsg(fd, m, 3, 0), 3);
        for (int k = 0; k < 3; k++) EQUAL(m[k].msg_len, 500);
        sent += 1500;
        hear();
        ask(SEND, 1200);
        wait_queued(fd, 1200);
        memset(data, 0, sizeof data);
        EQUAL(recvmmsg(fd, m, 3, MSG_WAITFORONE, NULL), 3);
        EQUAL(m[0].msg_len, 500);
        EQUAL(m[1].msg_len, 500);
        EQUAL(m[2].msg_len, 200);
        for (int k = 0; k < 3; k++) {
            verify(your_key, got, data[k], m[k].msg_len);
            got += m[k].msg_len;
        }
        ERRNO(recvmmsg(fd, m, 3, MSG_DONTWAIT, NULL), EAGAIN);
    }
    leave(fd);
}

static void big_vector(int fd) {
    static struct iovec v[1025];
    static char data[1024][700];
    for (int i = 0; i < 1024; i++) {
        fill(my_key, sent + i * 700, data[i], 700);
        v[i] = (struct iovec){data[i], 700};
    }
    order(READ, sizeof data);
    for (size_t done = 0; done < sizeof data;) {
        struct iovec rest[1024];
        int count = 0;
        for (size_t i = done / 700; i < 1024; i++) rest[count++] = v[i];
        rest[0].iov_base = (char *)rest[0].iov_base + done % 700;
        rest[0].iov_len -= done % 700;
        ssize_t n = writev(fd, rest, count);
        CHECK(n > 0);
        done += n;
    }
    sent += sizeof data;
    hear();
    ERRNO(writev(fd, v, 1025), EINVAL); /* IOV_MAX + 1 */
    leave(fd);
}

/* preadv2() and pwritev2() with an offset of -1 are readv() and writev(), and take flags. */
static void by_v2(int fd) {
    for (int i = 0; i < 200; i++) {
        fill_vector();
        order(READ, total);
        EQUAL(pwritev2(fd, vector, PARTS, -1, 0), total);
        sent += total;
        hear();
        clear_vector();
        ERRNO(preadv2(fd, vector, PARTS, -1, RWF_NOWAIT), EAGAIN);
        ask(SEND, total);
        wait_queued(fd, total);
        EQUAL(preadv2(fd, vector, PARTS, -1, i % 2 ? RWF_NOWAIT : 0), total);
        verify_vector(total);
    }
    order(SEND_ASLEEP, total);
    clear_vector();
    EQUAL(preadv2(fd, vector, PARTS, -1, 0), total);
    verify_vector(total);
    leave(fd);
}

/* recvmmsg() waits for all its messages, up to its time; MSG_WAITFORONE for the first. */
static void mmsg_waits(int fd) {
    static char data[3][500];
    struct iovec v[3];
    struct mmsghdr m[3];
    for (int k = 0; k < 3; k++) {
        v[k] = (struct iovec){data[k], 500};
        m[k] = (struct mmsghdr){.msg_hdr = {.msg_iov = &v[k], .msg_iovlen = 1}};
    }
    for (int i = 0; i < 5; i++) {
        order(SEND_ASLEEP, 100);
        order(SEND_AGAIN_ASLEEP, 100);
        order(SEND_AGAIN_ASLEEP, 100);
        EQUAL(recvmmsg(fd, m, 3, 0, NULL), 3);
        for (int k = 0; k < 3; k++) {
            EQUAL(m[k].msg_len, 100);
            verify(your_key, got, data[k], 100);
            got += 100;
        }
        order(SEND_ASLEEP, 100);
        EQUAL(recvmmsg(fd, m, 3, MSG_WAITFORONE, NULL), 1);
        got += 100;
        /* The time is looked at after each message. */
        struct timespec none = {0, 0};
        ask(SEND, 900);
        wait_queued(fd, 900);
        EQUAL(recvmmsg(fd, m, 3, 0, &none), 1);
        EQUAL(m[0].msg_len, 500);
        got += 500;
        EQUAL(recvmmsg(fd, m, 1, 0, NULL), 1);
        EQUAL(m[0].msg_len, 400);
        got += 400;
    }
    ask(END_WR, 0);
    EQUAL(recvmmsg(fd, m, 2, 0, NULL), 2);
    EQUAL(m[0].msg_len, 0);
    leave(fd);
}

static void refused(int fd) {
    char data[10] = {0};
    ERRNO(pread(fd, data, 10, 0), ESPIPE);
    ERRNO(pwrite(fd, data, 10, 0), ESPIPE);
    ERRNO(lseek(fd, 0, SEEK_CUR), ESPIPE);
    struct iovec v[2] = {{data, 5}, {data + 5, 5}};
    ERRNO(preadv(fd, v, 2, 0), ESPIPE);
    ERRNO(pwritev(fd, v, 2, 0), ESPIPE);
    ERRNO(preadv2(fd, v, 2, 0, 0), ESPIPE);
    ERRNO(pwritev2(fd, v, 2, 0, 0), ESPIPE);
    ERRNO(preadv(fd, v, 2, -1), EINVAL);
    ERRNO(pwritev(fd, v, 2, -1), EINVAL);
    ERRNO(pread64(fd, data, 10, 0), ESPIPE);
    ERRNO(preadv2(fd, v, 2, -1, 0x40000000), EOPNOTSUPP);
    /* A length below zero: nothing moves. */
    v[1].iov_len = -1;
    struct msghdr message = {.msg_iov = v, .msg_iovlen = 2};
    ERRNO(writev(fd, v, 2), EINVAL);
    ERRNO(readv(fd, v, 2), EINVAL);
    ERRNO(sendmsg(fd, &message, MSG_NOSIGNAL), EINVAL);
    ERRNO(recvmsg(fd, &message, MSG_DONTWAIT), EINVAL);
    echo_rounds(fd, 20, 64);
    leave(fd);
}

/* One thread sleeps in recvmmsg(), the other one sends: the connection may move meanwhile, and the sleeper still gets its answer. */
static pthread_barrier_t answered;

static void *by_mmsg_asleep(void *argument) {
    int fd = *(int *)argument;
    for (int i = 0; i < 500; i++) {
        char data[64] = {0};
        struct iovec v = {data, sizeof data};
        struct mmsghdr m = {.msg_hdr = {.msg_iov = &v, .msg_iovlen = 1}};
        EQUAL(recvmmsg(fd, &m, 1, MSG_WAITALL, NULL), 1);
        EQUAL(m.msg_len, 64);
        verify(your_key, got, data, 64);
        got += 64;
        pthread_barrier_wait(&answered);
    }
    return NULL;
}

static void mmsg_asleep(int fd) {
    pthread_t thread;
    CHECK(pthread_barrier_init(&answered, NULL, 2) == 0);
    order(ECHO, (int64_t)500 << 32 | 64);
    CHECK(pthread_create(&thread, NULL, by_mmsg_asleep, &fd) == 0);
    for (int i = 0; i < 500; i++) {
        char data[64];
        fill(my_key, sent, data, 64);
        EQUAL(send(fd, data, 64, 0), 64);
        sent += 64;
        pthread_barrier_wait(&answered);
    }
    CHECK(pthread_join(thread, NULL) == 0);
    hear();
    leave(fd);
}

const struct example examples[] = {
    {"by_writev", puppet, by_writev, 0},
    {"by_msg", puppet, by_msg, 0},
    {"by_mmsg", puppet, by_mmsg, 0},
    {"big_vector", puppet, big_vector, 0},
    {"by_v2", puppet, by_v2, 0},
    {"mmsg_asleep", puppet, mmsg_asleep, 0},
    {"mmsg_waits", puppet, mmsg_waits, 0},
    {"refused", puppet, refused, 0},
    {0},
};

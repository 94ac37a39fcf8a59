/* Two processes at each end of one connection: parent and child both write, under a lock, and both read, under another one, both ways at
 * once: 1 GB each way, every byte compared. With `dies` children are killed between their turns, and
 * others take their place. */
#include "pair.h"
#include <sys/file.h>
#include <sys/mman.h>

enum { TABLE = 1000003, MOST = 65536 };

/* What the processes of one end share. The locks are files: the kernel gives back what somebody had who was killed. */
struct end {
    int writing, reading;
    uint64_t written, seen, total;
};

static uint8_t *tables[2]; /* the streams: by client, by server */

/* A hold of its own on a lock, for one thread. */
static int open_lock(int file) {
    char path[40];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    int own = open(path, O_RDWR | O_CLOEXEC);
    CHECK(own >= 0);
    return own;
}

static void lock(int own) {
    while (flock(own, LOCK_EX) != 0) EQUAL(errno, EINTR);
}

static void unlock(int own) {
    CHECK(flock(own, LOCK_UN) == 0);
}

static struct end *make_end(void) {
    struct end *end = mmap(NULL, sizeof *end, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(end != MAP_FAILED);
    end->total = 1 << 30;
    end->writing = memfd_create("writing", MFD_CLOEXEC);
    end->reading = memfd_create("reading", MFD_CLOEXEC);
    for (int side = 0; side < 2; side++) {
        tables[side] = malloc(TABLE + MOST);
        fill(side + 7, 0, tables[side], TABLE);
        memcpy(tables[side] + TABLE, tables[side], MOST);
    }
    return end;
}

struct task {
    struct end *end;
    int fd;
    unsigned seed;
};

static void *write_part(void *argument) {
    struct task *task = argument;
    struct end *end = task->end;
    int own = open_lock(end->writing);
    for (;;) {
        lock(own);
        size_t size = 1 + rand_r(&task->seed) % MOST;
        if (size > end->total - end->written) size = end->total - end->written;
        send_all(task->fd, tables[is_server] + end->written % TABLE, size);
        end->written += size;
        bool done = end->written == end->total;
        unlock(own);
        if (done) break;
    }
    close(own);
    return NULL;
}

static void read_part(struct task *task) {
    struct end *end = task->end;
    static uint8_t data[MOST];
    int own = open_lock(end->reading);
    for (;;) {
        lock(own);
        size_t left = end->total - end->seen, size = 1 + rand_r(&task->seed) % MOST;
        ssize_t got = left ? recv(task->fd, data, size < left ? size : left, 0) : 0;
        if (left) CHECK(got > 0);
        CHECK(memcmp(data, tables[!is_server] + end->seen % TABLE, got) == 0);
        end->seen += got;
        bool done = end->seen == end->total;
        unlock(own);
        if (done) break;
    }
    close(own);
}

static void both(struct end *end, int fd, unsigned seed) {
    struct task writer = {end, fd, seed}, reader = {end, fd, seed + 1};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, write_part, &writer) == 0);
    read_part(&reader);
    CHECK(pthread_join(thread, NULL) == 0);
}

static void together(int fd) {
    struct end *end = make_end();
    pid_t child = fork();
    CHECK(child >= 0);
    both(end, fd, child == 0 ? 100 : 200);
    if (child == 0) _exit(0);
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    EQUAL(status, 0);
    EQUAL(end->written, end->total);
    EQUAL(end->seen, end->total);
    meet();
    close(fd);
}

/* A child that is killed while it waits for a lock, or has just given one back, takes nothing with it. (None is killed that has one: half
 * of what it writes or reads would be gone with tcp, too.) */
static void dies(int fd) {
    struct end *end = make_end();
    end->total /= 4;
    struct task task = {end, fd, 300};
    pthread_t writer;
    int writing = open_lock(end->writing), reading = open_lock(end->reading);
    CHECK(pthread_create(&writer, NULL, write_part, &task) == 0);
    for (unsigned generation = 0; generation < 10; generation++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            both(end, fd, generation);
            _exit(0);
        }
        usleep(3000);
        for (;;) { /* both, or none: who holds one keeps the other end waiting */
            lock(reading);
            if (flock(writing, LOCK_EX | LOCK_NB) == 0) break;
            EQUAL(errno, EWOULDBLOCK);
            unlock(reading);
        }
        kill(child, SIGKILL);
        CHECK(waitpid(child, NULL, 0) == child);
        unlock(reading);
        unlock(writing);
    }
    struct task reader = {end, fd, 400};
    read_part(&reader);
    CHECK(pthread_join(writer, NULL) == 0);
    EQUAL(end->written, end->total);
    meet();
    close(fd);
}

const struct example examples[] = {
    {"together", together, together, 0},
    {"dies", dies, dies, TCP_OK},
    {0},
};

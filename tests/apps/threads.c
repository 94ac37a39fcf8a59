/* Threads: one reads while one writes; several read, several write; one closes or shuts down while another sleeps in a call;
 * a number is closed and used again while others work on their own. */
#include "pair.h"
#include <sched.h>
#include <sys/syscall.h>

static int the_fd;

static void *writer(void *unused) {
    (void)unused;
    for (int i = 0; i < 3000; i++) put(the_fd, 1 + i * 37 % 3000);
    return NULL;
}

static void full_duplex(int fd) {
    pthread_t thread;
    the_fd = fd;
    CHECK(pthread_create(&thread, NULL, writer, NULL) == 0);
    for (int i = 0; i < 3000; i++) take(fd, 1 + i * 37 % 3000);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    char byte;
    EQUAL(recv(fd, &byte, 1, 0), 0);
    close(fd);
}

/* Four threads send records of 64 equal bytes in one send() each: every record arrives whole. */
static void *record_writer(void *argument) {
    char data[64];
    memset(data, (int)(intptr_t)argument, sizeof data);
    for (int i = 0; i < 2000; i++) EQUAL(send(the_fd, data, sizeof data, 0), sizeof data);
    return NULL;
}

static void many_writers(int fd) {
    pthread_t threads[4];
    the_fd = fd;
    for (intptr_t i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, record_writer, (void *)('a' + i)) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    close(fd);
}

static void many_writers_server(int fd) {
    int count[256] = {0};
    char data[64];
    while (recv(fd, data, sizeof data, MSG_WAITALL) == sizeof data) {
        for (int i = 1; i < 64; i++) EQUAL(data[i], data[0]);
        count[(unsigned char)data[0]]++;
    }
    for (int i = 0; i < 4; i++) EQUAL(count['a' + i], 2000);
}

/* Four threads read; each byte is given to exactly one of them. */
static atomic_long sum, count;
static void *byte_reader(void *unused) {
    (void)unused;
    unsigned char data[100];
    ssize_t n;
    while ((n = recv(the_fd, data, sizeof data, 0)) > 0) {
        atomic_fetch_add(&count, n);
        for (ssize_t i = 0; i < n; i++) atomic_fetch_add(&sum, data[i]);
    }
    EQUAL(n, 0);
    return NULL;
}

static void many_readers(int fd) {
    pthread_t threads[4];
    the_fd = fd;
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, byte_reader, NULL) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    tell(count);
    tell(sum);
    hear();
    close(fd);
}

static void many_readers_server(int fd) {
    long total = 0;
    for (int i = 0; i < 20000; i++) {
        unsigned char data[50];
        memset(data, i, sizeof data);
        send_all(fd, data, sizeof data);
        total += 50 * (i & 255);
    }
    CHECK(shutdown(fd, SHUT_WR) == 0);
    EQUAL(hear(), 20000 * 50);
    EQUAL(hear(), total);
    tell(0);
}

/* One thread sleeps in recv(), another shuts the connection down: the sleeper gets 0. */
static void *sleeping_reader(void *result) {
    char byte;
    tell(getpid());
    tell(syscall(SYS_gettid));
    *(ssize_t *)result = recv(the_fd, &byte, 1, 0);
    return NULL;
}

static void shutdown_wakes(int fd, int how) {
    pthread_t thread;
    ssize_t result = -2;
    the_fd = fd;
    CHECK(pthread_create(&thread, NULL, sleeping_reader, &result) == 0);
    hear(); /* the other side has seen it asleep */
    CHECK(shutdown(fd, how) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    EQUAL(result, 0);
    close(fd);
    tell(0);
}

static void shutdown_read_wakes(int fd) { shutdown_wakes(fd, SHUT_RD); }
static void shutdown_both_wakes(int fd) { shutdown_wakes(fd, SHUT_RDWR); }

static void sees_asleep(int fd) {
    pid_t pid = hear(), tid = hear();
    wait_asleep(pid, tid);
    tell(0);
    hear();
    close(fd);
}

/* A number closed while a thread sleeps in recv() on it: in Linux the sleeper keeps the connection and gets the data that comes. */
static void close_while_reading(int fd) {
    pthread_t thread;
    ssize_t result = -2;
    the_fd = fd;
    CHECK(pthread_create(&thread, NULL, sleeping_reader, &result) == 0);
    hear();
    CHECK(close(fd) == 0);
    tell(0);
    CHECK(pthread_join(thread, NULL) == 0);
    EQUAL(result, 1);
}

static void close_while_reading_server(int fd) {
    pid_t pid = hear(), tid = hear();
    wait_asleep(pid, tid);
    tell(0);
    hear();
    EQUAL(send(fd, "x", 1, MSG_NOSIGNAL), 1);
    char byte;
    EQUAL(recv(fd, &byte, 1, 0), 0);
    close(fd);
}

/* Two of them; the number is another file's by the time that something comes, and that in pieces. */
static void *reader_of_ten(void *result) {
    char data[10];
    tell(gettid());
    *(ssize_t *)result = recv(the_fd, data, sizeof data, MSG_WAITALL);
    return NULL;
}

static void close_while_two_read(int fd) {
    pthread_t threads[2];
    ssize_t results[2] = {-2, -2};
    the_fd = fd;
    tell(getpid());
    for (int i = 0; i < 2; i++) {
        CHECK(pthread_create(&threads[i], NULL, reader_of_ten, &results[i]) == 0);
        hear();
    }
    CHECK(close(fd) == 0);
    CHECK(dup2(1, fd) == fd);
    tell(0);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    EQUAL(results[0] + results[1], 20);
    CHECK(fcntl(fd, F_GETFD) == 0);
    tell(0);
}

static void close_while_two_read_server(int fd) {
    pid_t pid = hear();
    for (int i = 0; i < 2; i++) {
        wait_asleep(pid, hear());
        tell(0);
    }
    hear();
    for (int i = 0; i < 10; i++) {
        EQUAL(send(fd, "xy", 2, MSG_NOSIGNAL), 2);
        usleep(2000); /* most likely read by then */
    }
    hear();
    char byte;
    EQUAL(recv(fd, &byte, 1, 0), 0);
    close(fd);
}

/* Threads open, use and close connections of their own as fast as they can: numbers go round between them. */
static void *turnover_thread(void *argument) {
    for (int i = 0; i < 60; i++) {
        int fd = dial();
        for (int round = 0; round < i % 40; round++) {
            char out[100], in[100];
            fill((int)(intptr_t)argument, i * 100 + round, out, 100);
            send_all(fd, out, 100);
            recv_all(fd, in, 100);
            CHECK(memcmp(in, out, 100) == 0);
        }
        close(fd);
    }
    return NULL;
}

static void turnover(int unused) {
    (void)unused;
    pthread_t threads[4];
    for (intptr_t i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, turnover_thread, (void *)i) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

static void *echo_until_end(void *argument) {
    int fd = (int)(intptr_t)argument;
    char data[100];
    while (recv(fd, data, 100, MSG_WAITALL) == 100) send_all(fd, data, 100);
    close(fd);
    return NULL;
}

static void turnover_server(int listener) {
    pthread_t threads[240];
    for (int i = 0; i < 240; i++) {
        intptr_t fd = answer(listener);
        CHECK(pthread_create(&threads[i], NULL, echo_until_end, (void *)fd) == 0);
    }
    for (int i = 0; i < 240; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

/* A thread is cancelled in recv(), as Python, Java and old servers do; the connection goes on. */
static void cancel(int fd) {
    for (int i = 0; i < 5; i++) {
        pthread_t thread;
        ssize_t result;
        void *end;
        the_fd = fd;
        CHECK(pthread_create(&thread, NULL, sleeping_reader, &result) == 0);
        hear();
        CHECK(pthread_cancel(thread) == 0);
        CHECK(pthread_join(thread, &end) == 0);
        CHECK(end == PTHREAD_CANCELED);
        tell(0);
        for (int round = 0; round < 50; round++) {
            put(fd, 64);
            take(fd, 64);
        }
    }
    close(fd);
}

static void cancel_server(int fd) {
    for (int i = 0; i < 5; i++) {
        pid_t pid = hear(), tid = hear();
        wait_asleep(pid, tid);
        tell(0);
        hear();
        for (int round = 0; round < 50; round++) {
            take(fd, 64);
            put(fd, 64);
        }
    }
    char byte;
    EQUAL(recv(fd, &byte, 1, 0), 0);
}

/* One thread reads while another writes, and each sleeps in a way of its own until it may go on: by what wakes one, the other must not
 * be left asleep. */
enum sleep { IN_CALL, IN_POLL, IN_EPOLL, IN_EPOLL_ET };
static enum sleep reader_sleeps, writer_sleeps;
enum { MUCH = 4 << 20 };

static int sleeper(enum sleep how, uint32_t events) {
    if (how != IN_EPOLL && how != IN_EPOLL_ET) return -1;
    int set = epoll_create1(0);
    CHECK(set >= 0);
    struct epoll_event event = {.events = events | (how == IN_EPOLL_ET ? EPOLLET : 0)};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, the_fd, &event) == 0);
    return set;
}

static void sleep_until(enum sleep how, int set, short events) {
    struct pollfd poll_in = {.fd = the_fd, .events = events};
    struct epoll_event event;
    CHECK(how != IN_CALL);
    EQUAL(how == IN_POLL ? poll(&poll_in, 1, -1) : epoll_wait(set, &event, 1, -1), 1);
}

static void *sleepy_writer(void *unused) {
    (void)unused;
    char data[5000];
    int set = sleeper(writer_sleeps, EPOLLOUT), flags = writer_sleeps == IN_CALL ? 0 : MSG_DONTWAIT;
    while (sent < MUCH) {
        size_t want = 1 + sent * 7 % sizeof data;
        if (want > MUCH - sent) want = MUCH - sent;
        fill(my_key, sent, data, want);
        ssize_t n = send(the_fd, data, want, flags);
        if (n > 0) sent += (uint64_t)n;
        else {
            EQUAL(errno, EAGAIN);
            sleep_until(writer_sleeps, set, POLLOUT);
        }
    }
    if (set >= 0) close(set);
    return NULL;
}

static void sleepy_threads(int fd, enum sleep reading, enum sleep writing) {
    pthread_t thread;
    the_fd = fd, reader_sleeps = reading, writer_sleeps = writing;
    uint64_t until = got + MUCH - sent;
    CHECK(pthread_create(&thread, NULL, sleepy_writer, NULL) == 0);
    char data[5000];
    int set = sleeper(reading, EPOLLIN), flags = reading == IN_CALL ? 0 : MSG_DONTWAIT;
    while (got < until) {
        ssize_t n = recv(fd, data, sizeof data, flags);
        if (n > 0) verify(your_key, got, data, (size_t)n), got += (uint64_t)n;
        else {
            EQUAL(errno, EAGAIN);
            sleep_until(reading, set, POLLIN);
        }
    }
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    EQUAL(recv(fd, data, 1, 0), 0);
    if (set >= 0) close(set);
    close(fd);
}

static void call_and_poll(int fd) { sleepy_threads(fd, IN_CALL, IN_POLL); }
static void poll_and_call(int fd) { sleepy_threads(fd, IN_POLL, IN_CALL); }
static void poll_and_poll(int fd) { sleepy_threads(fd, IN_POLL, IN_POLL); }
static void call_and_epoll(int fd) { sleepy_threads(fd, IN_CALL, IN_EPOLL); }
static void epoll_and_call(int fd) { sleepy_threads(fd, IN_EPOLL, IN_CALL); }
static void epoll_and_poll(int fd) { sleepy_threads(fd, IN_EPOLL, IN_POLL); }
static void poll_and_epoll(int fd) { sleepy_threads(fd, IN_POLL, IN_EPOLL); }
static void epoll_and_epoll(int fd) { sleepy_threads(fd, IN_EPOLL, IN_EPOLL); }
static void edge_and_edge(int fd) { sleepy_threads(fd, IN_EPOLL_ET, IN_EPOLL_ET); }
static void edge_and_poll(int fd) { sleepy_threads(fd, IN_EPOLL_ET, IN_POLL); }
static void call_and_edge(int fd) { sleepy_threads(fd, IN_CALL, IN_EPOLL_ET); }

static void echo_slowly(int fd) {
    char data[5000];
    ssize_t n;
    while ((n = recv(fd, data, sizeof data, 0)) > 0) {
        verify(your_key, got, data, (size_t)n);
        got += (uint64_t)n;
        fill(my_key, sent, data, (size_t)n);
        send_all(fd, data, (size_t)n);
        sent += (uint64_t)n;
        if (got % 5 == 0) sched_yield();
    }
    EQUAL(n, 0);
    close(fd);
}

/* The peer does what takes a connection back to tcp, while one thread waits for room and another for data, each by edges. There is room at once, or when the peer has
 * read all: it says nothing more until the one who waits for room knows. */
static void *waits_for_room(void *set) {
    struct epoll_event event;
    tell(gettid());
    EQUAL(epoll_wait((int)(intptr_t)set, &event, 1, -1), 1);
    CHECK(event.events & EPOLLOUT);
    tell(0);
    return NULL;
}

static void wait_for_room_by_tcp(int fd, bool after_child) {
    pthread_t writer;
    struct epoll_event event;
    char byte;
    the_fd = fd;
    int data = sleeper(IN_EPOLL_ET, EPOLLIN), room = sleeper(IN_EPOLL_ET, EPOLLOUT);
    EQUAL(epoll_wait(room, &event, 1, -1), 1);
    size_t unread = fill_up(fd);
    if (after_child) {
        pid_t child = fork();
        if (child == 0) close(room), close(data), _exit(0);
        ended_well(child);
    }
    tell(getpid());
    tell((int64_t)unread);
    CHECK(pthread_create(&writer, NULL, waits_for_room, (void *)(intptr_t)room) == 0);
    tell(gettid());
    EQUAL(epoll_wait(data, &event, 1, -1), 1);
    EQUAL(recv(fd, &byte, 1, MSG_DONTWAIT), 1);
    CHECK(pthread_join(writer, NULL) == 0);
    close(room);
    close(data);
    close(fd);
}

static void room_by_tcp(int fd) {
    wait_for_room_by_tcp(fd, false);
}

/* A child that has closed its copies of the sets changes nothing. */
static void room_by_tcp_after_child(int fd) {
    wait_for_room_by_tcp(fd, true);
}

static void room_by_tcp_server(int fd) {
    pid_t pid = (pid_t)hear();
    size_t unread = (size_t)hear();
    for (int thread = 0; thread < 2; thread++) wait_asleep(pid, (pid_t)hear());
    CHECK(fcntl(fd, F_SETFL, O_ASYNC) == 0 && fcntl(fd, F_SETFL, 0) == 0);
    take(fd, unread);
    EQUAL(hear(), 0);
    char byte = 'x';
    EQUAL(send(fd, &byte, 1, 0), 1);
    EQUAL(recv(fd, &byte, 1, 0), 0);
    close(fd);
}

/* A connection in two sets: who sleeps is woken by what wakes all, while the peer is in the middle of a long write, or has just ended it. */
enum { BURSTS = 300, BURST = 200 * 1000 };

static void bursts(int fd) {
    static char data[BURST];
    struct epoll_event event;
    the_fd = fd;
    int other = sleeper(IN_EPOLL_ET, EPOLLRDHUP), set = sleeper(IN_EPOLL_ET, EPOLLIN);
    for (int i = 0; i < BURSTS; i++) {
        for (uint64_t until = got + BURST; got < until;) {
            ssize_t n = recv(fd, data, sizeof data, MSG_DONTWAIT);
            if (n > 0) verify(your_key, got, data, (size_t)n), got += (uint64_t)n;
            else {
                EQUAL(errno, EAGAIN);
                EQUAL(epoll_wait(set, &event, 1, -1), 1);
            }
        }
        put(fd, 1);
    }
    close(other);
    close(set);
    close(fd);
}

static void bursts_server(int fd) {
    for (int i = 0; i < BURSTS; i++) {
        put(fd, BURST);
        take(fd, 1);
    }
    char byte;
    EQUAL(recv(fd, &byte, 1, 0), 0);
    close(fd);
}

/* Eight threads sleep on one connection, in calls and in poll(). What wakes them all must not keep them busy. */
static void *light_sleeper(void *polls) {
    struct pollfd poll_in = {.fd = the_fd, .events = POLLIN};
    char byte;
    ssize_t n;
    do {
        if (polls) EQUAL(poll(&poll_in, 1, -1), 1);
        n = recv(the_fd, &byte, 1, polls ? MSG_DONTWAIT : 0);
        if (n < 0) EQUAL(errno, EAGAIN);
    } while (n != 0);
    return NULL;
}

static double processor_time(void) {
    struct rusage usage;
    CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) + (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void many_sleepers(int fd) {
    pthread_t threads[8];
    double before = processor_time();
    the_fd = fd;
    for (intptr_t i = 0; i < 8; i++) CHECK(pthread_create(&threads[i], NULL, light_sleeper, (void *)(i % 2)) == 0);
    for (int i = 0; i < 8; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    /* 20 ms is usual; a thread that turned in circles until the last one had run would take ten times as much. */
    EQUAL((int)((processor_time() - before) * 10), 0);
    close(fd);
}

static void many_sleepers_server(int fd) {
    for (int i = 0; i < 20; i++) {
        usleep(50000);
        EQUAL(send(fd, "x", 1, 0), 1);
    }
    usleep(50000);
    close(fd);
}

const struct example examples[] = {
    {"full_duplex", full_duplex, full_duplex, 0},
    {"many_writers", many_writers_server, many_writers, 0},
    {"many_readers", many_readers_server, many_readers, 0},
    {"shutdown_read_wakes", sees_asleep, shutdown_read_wakes, 0},
    {"shutdown_both_wakes", sees_asleep, shutdown_both_wakes, 0},
    {"close_while_reading", close_while_reading_server, close_while_reading, 0},
    {"close_while_two_read", close_while_two_read_server, close_while_two_read, 0},
    {"turnover", turnover_server, turnover, RAW},
    {"cancel", cancel_server, cancel, 0},
    {"many_sleepers", many_sleepers_server, many_sleepers, MEASURES},
    {"call_and_poll", echo_slowly, call_and_poll, 0},
    {"poll_and_call", echo_slowly, poll_and_call, 0},
    {"poll_and_poll", echo_slowly, poll_and_poll, 0},
    {"call_and_epoll", echo_slowly, call_and_epoll, 0},
    {"epoll_and_call", echo_slowly, epoll_and_call, 0},
    {"epoll_and_poll", echo_slowly, epoll_and_poll, 0},
    {"poll_and_epoll", echo_slowly, poll_and_epoll, 0},
    {"epoll_and_epoll", echo_slowly, epoll_and_epoll, 0},
    {"edge_and_edge", echo_slowly, edge_and_edge, 0},
    {"edge_and_poll", echo_slowly, edge_and_poll, 0},
    {"call_and_edge", echo_slowly, call_and_edge, 0},
    {"room_by_tcp", room_by_tcp_server, room_by_tcp, 0},
    {"room_by_tcp_after_child", room_by_tcp_server, room_by_tcp_after_child, 0},
    {"bursts", bursts_server, bursts, 0},
    {0},
};

/* Threads that wait on one set while another one changes it and the other process sends. */
#include "sets.h"

static struct {
    pthread_mutex_t mutex;
    int fd;
    uint32_t mode;
    atomic_int ended, armed, told;
} busy[CONNS];
static int busy_set, busy_outer, busy_end;
static atomic_int busy_over;

static void *busy_reader(void *unused) {
    (void)unused;
    struct epoll_event events[3];
    char data[100];
    while (!busy_over) {
        if (busy_outer >= 0) CHECK(epoll_wait(busy_outer, events, 1, -1) == 1);
        int count = epoll_wait(busy_set, events, 3, busy_outer >= 0 ? 0 : -1);
        CHECK(count >= 0);
        for (int i = 0; i < count; i++) {
            unsigned c = events[i].data.u32;
            if (c == BELL) continue;
            pthread_mutex_lock(&busy[c].mutex);
            if (busy[c].mode & EPOLLONESHOT && ++busy[c].told > busy[c].armed) show("connection %d: a shot was told twice", c);
            ssize_t n;
            do {
                n = recv(busy[c].fd, data, sizeof data, MSG_DONTWAIT);
                if (n > 0 && data[n - 1] == 'e' && (busy[c].ended = 1)) {
                    uint64_t one = 1;
                    write(busy_end, &one, 8);
                }
            } while (n > 0 && busy[c].mode & EPOLLET);
            if (busy[c].mode & EPOLLONESHOT) {
                struct epoll_event event = {.events = EPOLLIN | busy[c].mode, .data.u32 = c};
                busy[c].armed++;
                epoll_ctl(busy_set, EPOLL_CTL_MOD, busy[c].fd, &event);
            }
            pthread_mutex_unlock(&busy[c].mutex);
        }
    }
    return NULL;
}

void concurrently(void) {
    int count = 1 + dice(CONNS), readers = 1 + dice(3), left = count;
    uint32_t modes[] = {0, EPOLLET, EPOLLONESHOT, EPOLLET | EPOLLONESHOT, EPOLLEXCLUSIVE};
    pthread_t threads[3];
    busy_set = epoll_create1(0);
    busy_outer = chance(30) ? epoll_create1(0) : -1;
    busy_end = eventfd(0, EFD_NONBLOCK);
    busy_over = 0;
    int bell = eventfd(0, 0);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = BELL};
    CHECK(epoll_ctl(busy_set, EPOLL_CTL_ADD, bell, &event) == 0);
    if (busy_outer >= 0) CHECK(epoll_ctl(busy_outer, EPOLL_CTL_ADD, busy_set, &event) == 0);
    bool warm = chance(80);
    for (int c = 0; c < count; c++) {
        int one = 1;
        tell('d', c, 0);
        busy[c].fd = accept(listener, NULL, NULL);
        CHECK(busy[c].fd >= 0 && setsockopt(busy[c].fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
        pthread_mutex_init(&busy[c].mutex, NULL);
        busy[c].mode = modes[dice(5)];
        busy[c].ended = busy[c].told = 0;
        busy[c].armed = 1;
        char data[64];
        double end = now() + 2;
        begin('e', c, 0);
        for (int i = warm ? 50 : 2; i >= 0; i--) {
            if (i == 0 && warm && yet_to_move(busy[c].fd) && now() < end) i = 5;
            data[0] = i > 0;
            CHECK(send(busy[c].fd, data, sizeof data, MSG_NOSIGNAL) == sizeof data);
            take(busy[c].fd, sizeof data);
        }
        done();
        event = (struct epoll_event){.events = EPOLLIN | busy[c].mode, .data.u32 = c};
        CHECK(epoll_ctl(busy_set, EPOLL_CTL_ADD, busy[c].fd, &event) == 0);
    }
    for (int i = 0; i < readers; i++) CHECK(pthread_create(&threads[i], NULL, busy_reader, NULL) == 0);
    tell('f', count, seed + 1);
    double end = now() + 10;
    int lazy = dice(4);
    while (left && now() < end) {
        int c = dice(count);
        /* Takes members out and puts them in again, changes them, has other numbers for a moment. */
        event = (struct epoll_event){.events = EPOLLIN | busy[c].mode, .data.u32 = c};
        pthread_mutex_lock(&busy[c].mutex);
        switch (lazy == 0 ? 3 : dice(3)) {
        case 0:
            CHECK(epoll_ctl(busy_set, EPOLL_CTL_DEL, busy[c].fd, NULL) == 0);
            if (chance(30)) usleep(dice(200));
            busy[c].armed++;
            CHECK(epoll_ctl(busy_set, EPOLL_CTL_ADD, busy[c].fd, &event) == 0);
            break;
        case 1:
            busy[c].armed++;
            if (!(busy[c].mode & EPOLLEXCLUSIVE)) CHECK(epoll_ctl(busy_set, EPOLL_CTL_MOD, busy[c].fd, &event) == 0);
            break;
        case 2: {
            int other_number = dup(busy[c].fd);
            CHECK(other_number >= 0);
            if (chance(20)) {
                CHECK(epoll_ctl(busy_set, EPOLL_CTL_DEL, busy[c].fd, NULL) == 0);
                close(busy[c].fd);
                busy[c].fd = other_number;
                busy[c].armed++;
                CHECK(epoll_ctl(busy_set, EPOLL_CTL_ADD, busy[c].fd, &event) == 0);
            } else {
                close(other_number);
            }
            break;
        }
        }
        pthread_mutex_unlock(&busy[c].mutex);
        usleep(dice(500));
        left = 0;
        for (c = 0; c < count; c++) left += !busy[c].ended;
    }
    busy_over = 1;
    uint64_t one = 1;
    CHECK(write(bell, &one, 8) == 8);
    for (int i = 0; i < readers; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    for (int c = 0; c < count; c++) {
        int unread = 0;
        ioctl(busy[c].fd, FIONREAD, &unread);
        if (!busy[c].ended) show("connection %d: mode %x, nobody was told of %d bytes", c, busy[c].mode, unread);
        close(busy[c].fd);
        tell('c', c, 0);
    }
    close(busy_set), close(busy_end), close(bell);
    if (busy_outer >= 0) close(busy_outer);
    show("concurrently");
}

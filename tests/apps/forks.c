/* fork(): both processes have the connection. They may use it in turn or at once, one for each direction; it ends when the last
 * of them lets go; servers accept in the parent and serve in the child, or accept in many children. */
#include "pair.h"
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>

static void in_turn(int fd) {
    for (int i = 0; i < 10; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            echo_rounds(fd, 20, 100);
            _exit(0);
        }
        ended_well(child);
        sent += 2000, got += 2000;
        echo_rounds(fd, 20, 100);
    }
    leave(fd);
}

/* The child reads all that comes while the parent writes. */
static void one_each(int fd) {
    order(ECHO, (int64_t)2000 << 32 | 500);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        for (int i = 0; i < 2000; i++) take(fd, 500);
        _exit(0);
    }
    for (int i = 0; i < 2000; i++) put(fd, 500);
    ended_well(child);
    hear();
    leave(fd);
}

/* Parent and child both write records at the same time: each arrives whole. */
static void both_write(int fd) {
    char data[64];
    pid_t child = fork();
    memset(data, child ? 'p' : 'c', sizeof data);
    for (int i = 0; i < 2000; i++) EQUAL(send(fd, data, sizeof data, 0), sizeof data);
    if (child == 0) _exit(0);
    ended_well(child);
    close(fd);
}

static void both_write_server(int fd) {
    int count[256] = {0};
    char data[64];
    while (recv(fd, data, sizeof data, MSG_WAITALL) == sizeof data) {
        for (int i = 1; i < 64; i++) EQUAL(data[i], data[0]);
        count[(unsigned char)data[0]]++;
    }
    EQUAL(count['p'], 2000);
    EQUAL(count['c'], 2000);
}

/* Both sleep in recv(); every byte goes to exactly one of them. */
static void both_read(int fd) {
    struct { atomic_long count, sum; } *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = fork();
    unsigned char data[40];
    ssize_t n;
    while ((n = recv(fd, data, sizeof data, 0)) > 0) {
        atomic_fetch_add(&shared->count, n);
        for (ssize_t i = 0; i < n; i++) atomic_fetch_add(&shared->sum, data[i]);
    }
    EQUAL(n, 0);
    if (child == 0) _exit(0);
    ended_well(child);
    tell(shared->count);
    tell(shared->sum);
    hear();
    close(fd);
}

static void both_read_server(int fd) {
    long total = 0;
    for (int i = 0; i < 5000; i++) {
        unsigned char data[40];
        memset(data, i, sizeof data);
        send_all(fd, data, sizeof data);
        total += 40 * (i & 255);
    }
    CHECK(shutdown(fd, SHUT_WR) == 0);
    EQUAL(hear(), 5000 * 40);
    EQUAL(hear(), total);
    tell(0);
}

/* The child that goes away does not end the parent's connection, however it goes. */
static void child_leaves(int fd) {
    for (int i = 0; i < 12; i++) {
        pid_t child = fork();
        if (child == 0) {
            if (i % 4 == 0) close(fd), _exit(0);
            if (i % 4 == 1) _exit(0);
            if (i % 4 == 2) exit(0);
            for (;;) pause();
        }
        if (i % 4 == 3) {
            int status;
            CHECK(kill(child, SIGKILL) == 0);
            CHECK(waitpid(child, &status, 0) == child);
        } else {
            ended_well(child);
        }
        echo_rounds(fd, 30, 100);
    }
    leave(fd);
}

/* The parent lets go, the child carries on, the other side sees the end only when the child has gone too. */
static void child_stays(int fd) {
    int wait[2];
    CHECK(pipe(wait) == 0);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        close(wait[1]);
        EQUAL(read(wait[0], &byte, 1), 0); /* until the parent has closed */
        echo_rounds(fd, 200, 100);
        leave(fd);
        _exit(0);
    }
    CHECK(close(fd) == 0);
    close(wait[0]);
    close(wait[1]);
    ended_well(child);
}

/* The child is killed while it sleeps in recv() or while it writes without end; the parent goes on. */
static void child_killed_asleep(int fd) {
    for (int i = 0; i < 10; i++) {
        pid_t child = fork();
        if (child == 0) {
            char byte;
            recv(fd, &byte, 1, 0);
            _exit(1);
        }
        wait_asleep(child, child);
        CHECK(kill(child, SIGKILL) == 0);
        CHECK(waitpid(child, NULL, 0) == child);
        echo_rounds(fd, 30, 100);
    }
    leave(fd);
}

/* ---- servers ---- */

static void serve(int fd) {
    char data[200];
    while (recv(fd, data, sizeof data, MSG_WAITALL) == sizeof data) send_all(fd, data, sizeof data);
    close(fd);
}

/* inetd, sshd, socketserver.ForkingMixIn: accept in the parent, serve in the child, close in the parent. */
static void child_serves(int listener) {
    pid_t children[12];
    for (int i = 0; i < 12; i++) {
        int fd = answer(listener);
        children[i] = fork();
        if (children[i] == 0) {
            close(listener);
            serve(fd);
            _exit(0);
        }
        close(fd);
    }
    for (int i = 0; i < 12; i++) ended_well(children[i]);
}

/* The connection is in use in the parent before the child takes over. */
static void child_takes_over(int listener) {
    pid_t children[12];
    for (int i = 0; i < 12; i++) {
        int fd = answer(listener);
        char data[200];
        for (int round = 0; round < 100; round++) {
            recv_all(fd, data, sizeof data);
            send_all(fd, data, sizeof data);
        }
        children[i] = fork();
        if (children[i] == 0) {
            serve(fd);
            _exit(0);
        }
        close(fd);
    }
    for (int i = 0; i < 12; i++) ended_well(children[i]);
}

/* Apache prefork, gunicorn, PostgreSQL: children share the listener and all sleep in accept(). */
static void prefork(int listener) {
    pid_t children[3];
    for (int i = 0; i < 3; i++) {
        children[i] = fork();
        if (children[i] == 0)
            for (;;) serve(answer(listener));
    }
    hear(); /* the client is through */
    for (int i = 0; i < 3; i++) {
        CHECK(kill(children[i], SIGKILL) == 0);
        CHECK(waitpid(children[i], NULL, 0) == children[i]);
    }
}

static void twelve_clients(int unused) {
    (void)unused;
    char out[200], in[200], byte;
    for (int i = 0; i < 12; i++) {
        int fd = dial();
        for (int round = 0; round < 300; round++) {
            fill(i, round, out, sizeof out);
            send_all(fd, out, sizeof out);
            recv_all(fd, in, sizeof in);
            CHECK(memcmp(in, out, sizeof in) == 0);
        }
        CHECK(shutdown(fd, SHUT_WR) == 0);
        EQUAL(recv(fd, &byte, 1, 0), 0);
        close(fd);
    }
}

static void twelve_clients_and_tell(int unused) {
    twelve_clients(unused);
    tell(0);
}

/* A child of a child of a child. */
static void generations(int fd) {
    pid_t child = 1;
    int depth = 0;
    for (; depth < 4 && (child = fork()) == 0; depth++) continue;
    /* The youngest talks first; each then ends, and its parent goes on where it stopped. */
    if (depth < 4) {
        ended_well(child);
        sent += (4 - depth) * 3000, got += (4 - depth) * 3000;
    }
    echo_rounds(fd, 30, 100);
    if (depth > 0) _exit(0);
    leave(fd);
}

/* fork() in one thread while another is in the middle of sending and receiving. */
static int busy_fd;
static void *busy(void *unused) {
    (void)unused;
    for (int i = 0; i < 3000; i++) {
        put(busy_fd, 300);
        take(busy_fd, 300);
    }
    return NULL;
}

static void fork_beside_traffic(int fd) {
    pthread_t thread;
    busy_fd = fd;
    order(ECHO, (int64_t)3000 << 32 | 300);
    CHECK(pthread_create(&thread, NULL, busy, NULL) == 0);
    for (int i = 0; i < 30; i++) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        ended_well(child);
    }
    CHECK(pthread_join(thread, NULL) == 0);
    hear();
    leave(fd);
}

static void *forks_often(void *number) {
    int fd = *(int *)number;
    for (int i = 0; i < 400; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) _exit(0);
        int copy = dup(fd);
        CHECK(copy >= 0);
        ended_well(child);
        close(copy);
    }
    return NULL;
}

/* Threads that fork at the same time: what one has locked for it is not forgotten by another's. With many descriptors, so that it takes a while. */
static void threads_fork(int fd) {
    int many[500];
    pthread_t threads[8];
    for (int i = 0; i < 500; i++) CHECK((many[i] = dup(fd)) >= 0);
    for (int i = 0; i < 8; i++) CHECK(pthread_create(&threads[i], NULL, forks_often, &fd) == 0);
    for (int i = 0; i < 8; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < 500; i++) close(many[i]);
    ask(SEND, 1);
    take(fd, 1);
    leave(fd);
}

static void by_vfork(int fd) {
    for (volatile int i = 0; i < 5; i++) {
        pid_t child = vfork();
        if (child == 0) _exit(0);
        ended_well(child);
        echo_rounds(fd, 30, 100);
        child = vfork();
        if (child == 0) {
            execl("/bin/true", "true", NULL);
            _exit(1);
        }
        ended_well(child);
        echo_rounds(fd, 30, 100);
    }
    leave(fd);
}

/* The child of vfork() has numbers of its own, but our memory: what it closes and moves stays ours. */
static void vfork_closes(int fd) {
    for (volatile int i = 0; i < 5; i++) {
        ask(SEND, 5000);
        wait_queued(fd, 5000);
        pid_t child = vfork();
        if (child == 0) {
            dup2(2, fd);
            dup2(fd, 0);
            closefrom(3);
            execl("/bin/true", "true", NULL);
            _exit(1);
        }
        ended_well(child);
        take(fd, 5000);
        echo_rounds(fd, 30, 100);
        child = vfork();
        if (child == 0) {
            dup2(fd, 0);
            close(fd);
            execl("/bin/true", "true", NULL);
            _exit(1);
        }
        ended_well(child);
        echo_rounds(fd, 30, 100);
    }
    leave(fd);
}

/* A child made by the system call itself, as vsftpd does for its sessions. It closes its parent's connections, which go on, and
 * makes one of its own. */
static void by_system_call(int fd) {
    for (int i = 0; i < 20; i++) {
        pid_t child = (pid_t)syscall(SYS_clone, (long)SIGCHLD, NULL, NULL, NULL, NULL);
        CHECK(child >= 0);
        if (child == 0) {
            echo_rounds(fd, 20, 100);
            close(fd);
            int own[2], listener = socket(AF_INET, SOCK_STREAM, 0);
            struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
            socklen_t size = sizeof at;
            char byte = 'x';
            CHECK(bind(listener, (struct sockaddr *)&at, size) == 0 && listen(listener, 1) == 0);
            CHECK(getsockname(listener, (struct sockaddr *)&at, &size) == 0);
            own[0] = socket(AF_INET, SOCK_STREAM, 0);
            CHECK(connect(own[0], (struct sockaddr *)&at, size) == 0);
            own[1] = accept(listener, NULL, NULL);
            CHECK(own[1] >= 0);
            for (int j = 0; j < 100; j++) {
                EQUAL(send(own[0], &byte, 1, 0), 1);
                EQUAL(recv(own[1], &byte, 1, 0), 1);
            }
            _exit(0);
        }
        ended_well(child);
        sent += 2000, got += 2000;
        echo_rounds(fd, 20, 100);
    }
    leave(fd);
}

/* With bytes unread that the other end sent before it went another way: a child reads some, its parent the rest. */
static void unread_behind(int fd) {
    hear();
    wait_queued(fd, 5100);
    pid_t child = fork();
    if (child == 0) {
        take(fd, 1000);
        _exit(0);
    }
    ended_well(child);
    got += 1000;
    wait_queued(fd, 4100);
    take(fd, 4100);
    echo_rounds(fd, 20, 100);
    leave(fd);
}

static void unread_behind_server(int fd) {
    put(fd, 5000);
    go_by_tcp(fd);
    put(fd, 100);
    tell(0);
    puppet(fd);
}

/* Sleeps in epoll_wait() until the peer sends; level-triggered. */
static void sleep_in(int set, int fd) {
    struct epoll_event event;
    for (int i = 0; i < 3; i++) {
        order(SEND_ASLEEP, 100);
        EQUAL(epoll_wait(set, &event, 1, 5000), 1);
        EQUAL(event.data.fd, fd);
        take(fd, 100);
    }
}

static int set_of(int fd) {
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    return set;
}

/* A child closes all that it does not need, sets of epoll first, as launchers do before exec(): what its parent waits for is not touched by that. */
static void child_closes_set(int fd) {
    int set = set_of(fd);
    sleep_in(set, fd);
    for (int order = 0; order < 4; order++) {
        pid_t child = fork();
        if (child == 0) {
            if (order == 3) CHECK(syscall(SYS_close_range, 3u, ~0u, 0u) == 0);
            else close(order == 1 ? fd : set), close(order == 1 ? set : fd);
            if (order == 2) execl("/bin/true", "true", NULL);
            _exit(0);
        }
        ended_well(child);
        sleep_in(set, fd);
    }
    leave(fd);
}

/* The same while the parent has taken it out of the set for a moment. */
static void child_closes_between(int fd) {
    int set = set_of(fd);
    sleep_in(set, fd);
    CHECK(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL) == 0);
    pid_t child = fork();
    if (child == 0) close(fd), close(set), _exit(0);
    ended_well(child);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN, .data.fd = fd}) == 0);
    sleep_in(set, fd);
    leave(fd);
}

/* Two children write records at once, each the first process, and so the first thread, of a PID namespace of its own. Needs root. */
static void number_one_twice(int fd) {
    pid_t children[2];
    for (int i = 0; i < 2; i++) {
        children[i] = syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0);
        CHECK(children[i] >= 0);
        if (children[i] == 0) {
            char data[64];
            EQUAL(syscall(SYS_getpid), 1);
            memset(data, i ? 'p' : 'c', sizeof data);
            for (int j = 0; j < 2000; j++) EQUAL(send(fd, data, sizeof data, 0), sizeof data);
            _exit(0);
        }
    }
    for (int i = 0; i < 2; i++) ended_well(children[i]);
    close(fd);
}

/* The same for who reads, by unshare(), after which it is the children that are elsewhere. */
static void number_one_reads(int fd) {
    struct { atomic_long count, sum; } *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    unsigned char data[40];
    ssize_t n;
    for (int i = 0; i < 2; i++) {
        pid_t first = fork();
        CHECK(first >= 0);
        if (first == 0) {
            CHECK(unshare(CLONE_NEWPID) == 0);
            pid_t child = fork();
            CHECK(child >= 0);
            if (child == 0) {
                EQUAL(syscall(SYS_getpid), 1);
                while ((n = recv(fd, data, sizeof data, 0)) > 0) {
                    atomic_fetch_add(&shared->count, n);
                    for (ssize_t j = 0; j < n; j++) atomic_fetch_add(&shared->sum, data[j]);
                }
                EQUAL(n, 0);
                _exit(0);
            }
            ended_well(child);
            _exit(0);
        }
    }
    for (int status; wait(&status) > 0;) EQUAL(status, 0);
    tell(shared->count);
    tell(shared->sum);
    hear();
    close(fd);
}

const struct example examples[] = {
    {"in_turn", puppet, in_turn, 0},
    {"one_each", puppet, one_each, 0},
    {"both_write", both_write_server, both_write, 0},
    {"both_read", both_read_server, both_read, 0},
    {"child_leaves", puppet, child_leaves, 0},
    {"child_stays", puppet, child_stays, 0},
    {"child_killed_asleep", puppet, child_killed_asleep, 0},
    {"child_serves", child_serves, twelve_clients, RAW},
    {"child_takes_over", child_takes_over, twelve_clients, RAW},
    {"prefork", prefork, twelve_clients_and_tell, RAW},
    {"generations", puppet, generations, 0},
    {"by_system_call", puppet, by_system_call, 0},
    {"fork_beside_traffic", puppet, fork_beside_traffic, 0},
    {"threads_fork", puppet, threads_fork, 0},
    {"by_vfork", puppet, by_vfork, 0},
    {"vfork_closes", puppet, vfork_closes, 0},
    {"unread_behind", unread_behind_server, unread_behind, 0},
    {"child_closes_set", puppet, child_closes_set, 0},
    {"child_closes_between", puppet, child_closes_between, 0},
    {"number_one_twice", both_write_server, number_one_twice, 0},
    {"number_one_reads", both_read_server, number_one_reads, 0},
    {0},
};

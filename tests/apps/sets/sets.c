/* Epoll sets by dice: what each of them tells is printed, and has to be the same with kernel TCP and without (tests/test_sets.py).
 *
 * `sets FIRST LAST STEPS [EXPECTED]` (no STEPS: such ends alone): for each seed this process has connections to another one, which it starts and tells what to do, pipes, eventfds
 * and sets with any of them as members, sets among them; more numbers for them by dup(); and threads and children that wait on them. One acts at a
 * time, and what it did has arrived before the next acts, so all is left to the dice. Some seeds end with threads that wait on a set while others change it.
 *
 * What an edge-triggered member is told may come more often than by the kernel (after a connection has moved): it stands behind a "~", and so does whether
 * somebody is woken whom it may wake. A call may tell of the kernel's members alone or of the others alone, the next one of the rest: so all that several
 * calls tell is one line; but a shot that is told of twice is marked. EXPECTED is the output
 * of another run: who was woken there is waited for here. WAIT (ms) is how long it takes until somebody counts as not woken. */
#include "sets.h"

enum { NUMBERS = 24, SETS = 6, PIPES = 2, EVENTS = 2, PLACES = 64 };

/* ---- what there is ---- */

enum kind { FREE, CONN, PIPE, EVENT, SET };

/* A descriptor: of what, and which of those. */
static struct number {
    int fd;
    enum kind kind;
    int which;
} numbers[NUMBERS];

static struct {
    int unread, sent;
    bool ended, gone, open;
} conns[CONNS];
static struct {
    int out, have;
} pipes[PIPES];
static int event_count[EVENTS];
static struct {
    bool open, edges; /* whether it ever had an edge-triggered or one-shot member */
    int bell;         /* an eventfd in it: ends every wait */
} sets[SETS];
static bool inside[SETS][SETS];     /* whether that one ever was a member of this one */
static int members[SETS][NUMBERS]; /* the events of each number, +1; only a guess at what is worth doing */

static int number_of(enum kind kind) {
    int found[NUMBERS], count = 0;
    for (int i = 0; i < NUMBERS; i++)
        if (numbers[i].kind == kind) found[count++] = i;
    return count ? found[dice(count)] : -1;
}
static int any_number(void) {
    for (;;) {
        int i = dice(NUMBERS);
        if (numbers[i].kind) return i;
    }
}
static int count_of(enum kind kind, int which) {
    int count = 0;
    for (int i = 0; i < NUMBERS; i++) count += numbers[i].kind == kind && numbers[i].which == which;
    return count;
}
static int add_number(int fd, enum kind kind, int which) {
    for (int i = 0; i < NUMBERS; i++)
        if (!numbers[i].kind) {
            numbers[i] = (struct number){fd, kind, which};
            return i;
        }
    return -1;
}
static bool full_up(void) {
    int used = 0;
    for (int i = 0; i < NUMBERS; i++) used += numbers[i].kind != FREE;
    return used == NUMBERS;
}

static const char *error_name(long result) { return result >= 0 ? "ok" : strerrorname_np(errno); }

/* What a member's data says: the number, the step that registered it, whether it is edge-triggered, and one-shot, and if it is a set, which, plus one; and whether it
 * is told of again. */
#define DATA(number, et, shot, set, level) ((uint64_t)(level) << 46 | (uint64_t)(number) | (uint64_t)(step + 1) << 8 | (uint64_t)(et) << 40 | (uint64_t)(shot) << 41 | (uint64_t)(set) << 42)

static int by_data(const void *a, const void *b) {
    uint64_t x = ((const struct epoll_event *)a)->data.u64, y = ((const struct epoll_event *)b)->data.u64;
    return (x > y) - (x < y);
}

/* What some calls have told. */
static struct heard {
    struct epoll_event events[4 * PLACES];
    int count, error;
    bool twice;
} heard;

static void hear(const struct epoll_event *events, int count) {
    if (count < 0) heard.error = errno;
    for (int i = 0; i < count; i++) {
        int at = 0;
        while (at < heard.count && heard.events[at].data.u64 != events[i].data.u64) at++;
        if (at == heard.count) {
            CHECK(at < 4 * PLACES);
            heard.events[heard.count++] = events[i];
        } else {
            heard.twice |= events[i].data.u64 >> 41 & 1;
            heard.events[at].events |= events[i].events;
        }
    }
}

static void look(int fd) {
    struct epoll_event events[PLACES];
    for (int calls = 0; calls < 3; calls++) {
        int count = epoll_wait(fd, events, PLACES, 0);
        hear(events, count);
        if (count <= 0) return;
        usleep(60);
    }
}

/* Whether it, or one inside, ever had such members. */
static bool has_edges(int s, int deep) {
    bool has = sets[s].edges;
    for (int t = 0; t < SETS && deep < 5; t++) has |= inside[s][t] && has_edges(t, deep + 1);
    return has;
}

/* `beside`: others looked at the same time, and a set in a set may seem to be ready for a moment. */
static const char *all_heard(bool beside) {
    static char text[16384];
    char *at = text;
    struct epoll_event *events = heard.events;
    int count = heard.count;
    *at = 0;
    if (heard.twice) at += sprintf(at, " twice");
    if (heard.error) at += sprintf(at, " %s", strerrorname_np(heard.error));
    qsort(events, count, sizeof *events, by_data);
    for (int i = 0; i < count; i++) {
        uint64_t data = events[i].data.u64;
        if ((data & 0xff) == BELL) continue;
        bool is_set = data >> 42 & 15, loose = data >> 40 & 1 || (is_set && (beside || has_edges((int)(data >> 42 & 15) - 1, 0)));
        at += sprintf(at, " %s%d/%d:%x", loose ? "~" : "", (int)(data & 0xff), (int)(data >> 8 & 0xffffffff), events[i].events);
    }
    heard.count = heard.error = heard.twice = 0;
    return text;
}

/* Until what was sent has come. */
static void arrived(int which) {
    int number = -1, unread = -1;
    for (int i = 0; i < NUMBERS; i++)
        if (numbers[i].kind == CONN && numbers[i].which == which) number = i;
    if (number < 0) {
        usleep(500);
        return;
    }
    int fd = numbers[number].fd;
    for (double end = now() + 5; now() < end; usleep(100)) {
        if (conns[which].ended) {
            struct pollfd p = {fd, POLLRDHUP, 0};
            if (poll(&p, 1, 0) == 1) {
                if (conns[which].gone) usleep(500);
                return;
            }
        } else {
            CHECK(ioctl(fd, FIONREAD, &unread) == 0);
            if (unread == conns[which].unread) return;
        }
    }
    show("connection %d: %d unread, not %d", which, unread, conns[which].unread);
}

/* ---- what is thrown ---- */

static bool quiet_arrivals; /* nobody but those who wait looks at what arrives */

static void t_send(void) {
    int number = number_of(CONN);
    if (number < 0) return;
    int c = numbers[number].which, count = (int[]){1, 10, 100, 1000, 3000}[dice(5)];
    if (conns[c].ended || conns[c].gone || conns[c].unread + count > 9000) return;
    tell('s', c, count);
    conns[c].unread += count;
    show("send on %d: %d", c, count);
    if (!quiet_arrivals) arrived(c);
}

static void t_recv(void) {
    int number = number_of(CONN);
    if (number < 0) return;
    int c = numbers[number].which, count = (int[]){1, 10, 1000, 10000}[dice(4)];
    char data[10000];
    ssize_t n = recv(numbers[number].fd, data, count, MSG_DONTWAIT);
    show("recv by %d, %d: %d %s", number, count, (int)n, error_name(n));
    if (n > 0) conns[c].unread -= n;
}

static void t_answer(void) {
    int number = number_of(CONN);
    if (number < 0) return;
    int c = numbers[number].which;
    if (conns[c].gone) return;
    int n = send(numbers[number].fd, "0123456789", 10, MSG_NOSIGNAL | MSG_DONTWAIT);
    show("answer by %d: %d", number, n);
    if (n > 0) conns[c].sent += n;
    if (chance(50)) {
        tell('r', c, conns[c].sent);
        conns[c].sent = 0;
    }
}

static void t_warm(void) {
    int number = number_of(CONN);
    if (number < 0) return;
    int c = numbers[number].which, fd = numbers[number].fd;
    if (conns[c].ended || conns[c].gone || conns[c].unread || conns[c].sent) return;
    bool moved = chance(70);
    double end = now() + 2;
    char data[64];
    begin('e', c, 0);
    for (int i = moved ? 50 : (int[]){3, 10, 30}[dice(3)]; i >= 0; i--) {
        if (i == 0 && moved && yet_to_move(fd) && now() < end) i = 5;
        data[0] = i > 0;
        CHECK(send(fd, data, sizeof data, MSG_NOSIGNAL) == sizeof data);
        take(fd, sizeof data);
    }
    done();
    show("warm %d", c);
}

/* How many sets are above one another there. The library's own sets make one more, and the kernel takes few. */
enum { DEEPEST = 3 };
static int height(int s, int deep) {
    int most = 0;
    for (int t = 0; t < SETS && deep < DEEPEST; t++)
        if (inside[s][t]) {
            int h = height(t, deep + 1);
            most = h > most ? h : most;
        }
    return most + 1;
}
static int above(int s, int deep) {
    int most = 0;
    for (int t = 0; t < SETS && deep < DEEPEST; t++)
        if (inside[t][s]) {
            int h = above(t, deep + 1) + 1;
            most = h > most ? h : most;
        }
    return most;
}

static void t_control(void) {
    int set = number_of(SET);
    if (set < 0) return;
    int number = any_number(), s = numbers[set].which;
    if (numbers[number].kind == SET && chance(50)) number = any_number();
    if (numbers[number].kind == SET && above(s, 0) + 1 + height(numbers[number].which, 0) > DEEPEST) return;
    int op = members[s][number] ? (chance(55) ? EPOLL_CTL_MOD : EPOLL_CTL_DEL) : chance(90) ? EPOLL_CTL_ADD : 1 + dice(3);
    uint32_t events = chance(92) ? EPOLLIN : 0;
    if (chance(12)) events |= EPOLLOUT;
    if (chance(30)) events |= EPOLLRDHUP;
    if (chance(10)) events |= EPOLLPRI;
    uint32_t mode = 0;
    if (chance(30)) mode |= EPOLLET;
    if (chance(15)) mode |= EPOLLONESHOT;
    if (chance(8)) mode = (mode & EPOLLET) | EPOLLEXCLUSIVE, events &= EPOLLIN | EPOLLOUT;
    /* When there is room in a set, a pipe's end, or an eventfd, is not what this is about. */
    /* An exclusive one in several sets is told of by one of them at least. */
    bool et = mode & (EPOLLET | EPOLLEXCLUSIVE), is_set = numbers[number].kind == SET;
    struct epoll_event event = {.events = events | mode, .data.u64 = DATA(number, et, mode & EPOLLONESHOT ? 1 : 0, is_set ? numbers[number].which + 1 : 0, !(mode & (EPOLLET | EPOLLONESHOT)))};
    int result = epoll_ctl(numbers[set].fd, op, numbers[number].fd, &event);
    show("ctl %d %s %d events %x: %s", set, (const char *[]){"", "add", "del", "mod"}[op], number, events | mode, error_name(result));
    if (result == 0) {
        members[s][number] = op == EPOLL_CTL_DEL ? 0 : 1 + events;
        if (op != EPOLL_CTL_DEL && mode & (EPOLLET | EPOLLONESHOT | EPOLLEXCLUSIVE)) sets[s].edges = true;
        if (numbers[number].kind == SET) inside[s][numbers[number].which] = true;
    }
}

static void t_wait(void) {
    int set = number_of(SET);
    if (set < 0) return;
    if (!sets[numbers[set].which].edges && chance(20)) {
        struct epoll_event events[2];
        show("wait on %d, two places: %d", set, epoll_wait(numbers[set].fd, events, 2, 0) > 0);
    } else {
        look(numbers[set].fd);
        show("wait on %d:%s", set, all_heard(false));
    }
}

static void t_poll(void) {
    struct pollfd places[4];
    int which[4], count = 1 + dice(4);
    char text[200], *at = text;
    for (int i = 0; i < count; i++) {
        which[i] = any_number();
        places[i] = (struct pollfd){numbers[which[i]].fd, POLLIN | POLLRDHUP, 0};
    }
    CHECK(poll(places, count, 0) >= 0);
    for (int i = 0; i < count; i++) {
        bool edges = numbers[which[i]].kind == SET && has_edges(numbers[which[i]].which, 0);
        at += sprintf(at, " %s%d:%x", edges ? "~" : "", which[i], places[i].revents);
    }
    show("poll:%s", text);
}

static void t_event(void) {
    int number = number_of(EVENT);
    if (number < 0) return;
    uint64_t value = 1;
    if (event_count[numbers[number].which]) {
        CHECK(read(numbers[number].fd, &value, 8) == 8);
        event_count[numbers[number].which] = 0;
        show("event %d read", numbers[number].which);
    } else {
        CHECK(write(numbers[number].fd, &value, 8) == 8);
        event_count[numbers[number].which] = 1;
        show("event %d written", numbers[number].which);
    }
}

static void t_pipe(void) {
    int number = number_of(PIPE);
    if (number < 0) return;
    int p = numbers[number].which;
    char byte = 0;
    if (pipes[p].have) {
        CHECK(read(numbers[number].fd, &byte, 1) == 1);
        pipes[p].have--;
        show("pipe %d read", p);
    } else {
        CHECK(write(pipes[p].out, &byte, 1) == 1);
        pipes[p].have++;
        show("pipe %d written", p);
    }
}

static void t_dup(void) {
    int number = any_number();
    if (full_up()) return;
    int fd = dup(numbers[number].fd);
    CHECK(fd >= 0);
    int other = add_number(fd, numbers[number].kind, numbers[number].which);
    show("dup %d to %d", number, other);
}

static void close_number(int number) {
    CHECK(close(numbers[number].fd) == 0);
    numbers[number].kind = FREE;
    for (int s = 0; s < SETS; s++) members[s][number] = 0;
}

/* A number of something that has others, mostly. */
static void t_close(void) {
    int number = any_number();
    enum kind kind = numbers[number].kind;
    int which = numbers[number].which, count = count_of(kind, which);
    if (quiet_arrivals && kind == SET && count == 1) return; /* those who wait would be left there */
    if (count == 1 && (kind == PIPE || kind == EVENT || !chance(kind == SET ? 40 : 15))) return;
    close_number(number);
    show("close %d", number);
    if (count > 1) return;
    if (kind == SET) {
        close(sets[which].bell);
        sets[which].open = false;
    } else if (kind == CONN) {
        if (!conns[which].gone) tell('c', which, 0);
        conns[which].open = false;
    }
}

static void t_end(void) {
    int number = number_of(CONN);
    if (number < 0 || !chance(25)) return;
    int c = numbers[number].which;
    if (conns[c].gone) return;
    char what = conns[c].ended ? "cx"[dice(2)] : "wwcx"[dice(4)];
    /* Whether what is unread here outlives a reset there, and what is unread there makes one, is for other tests. */
    if ((what == 'x' && conns[c].unread) || (what == 'c' && conns[c].sent)) return;
    tell(what, c, 0);
    conns[c].ended = true;
    conns[c].gone = what != 'w';
    show("connection %d: %s", c, what == 'w' ? "shut" : what == 'c' ? "closed" : "reset");
    if (!quiet_arrivals) arrived(c);
}

static void make_set(void) {
    for (int s = 0; s < SETS; s++)
        if (!sets[s].open && !full_up()) {
            int fd = epoll_create1(0);
            CHECK(fd >= 0);
            sets[s].open = true;
            sets[s].edges = false;
            sets[s].bell = eventfd(0, EFD_NONBLOCK);
            struct epoll_event event = {.events = EPOLLIN, .data.u64 = BELL};
            CHECK(epoll_ctl(fd, EPOLL_CTL_ADD, sets[s].bell, &event) == 0);
            memset(members[s], 0, sizeof members[s]);
            memset(inside[s], 0, sizeof inside[s]);
            int number = add_number(fd, SET, s);
            show("set %d is number %d", s, number);
            return;
        }
}

int listener;

static void make_conn(void) {
    for (int c = 0; c < CONNS; c++)
        if (!conns[c].open && !full_up()) {
            int one = 1;
            tell('d', c, 0);
            int fd = accept(listener, NULL, NULL);
            CHECK(fd >= 0 && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
            memset(&conns[c], 0, sizeof conns[c]);
            conns[c].open = true;
            int number = add_number(fd, CONN, c);
            show("connection %d is number %d", c, number);
            return;
        }
}

static void t_make(void) { chance(50) ? make_set() : make_conn(); }

/* A child reads, looks at a set, or closes what it has of a connection. */
static void t_fork(void) {
    int number = chance(50) ? number_of(CONN) : number_of(SET), what = dice(3), into[2];
    if (number < 0 || !chance(30)) return;
    bool is_set = numbers[number].kind == SET;
    if (is_set && what == 0 && sets[numbers[number].which].edges) return; /* what a child is told is its parent's no more */
    CHECK(pipe(into) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char text[4096] = "";
        if (is_set && what == 0)
            look(numbers[number].fd), strcpy(text, all_heard(false));
        else if (is_set)
            close(numbers[number].fd);
        else if (what == 0)
            sprintf(text, " %d", (int)recv(numbers[number].fd, text, 100, MSG_DONTWAIT));
        else
            for (int i = 0; i < NUMBERS; i++)
                if (numbers[i].kind == CONN && numbers[i].which == numbers[number].which) close(numbers[i].fd);
        write(into[1], text, strlen(text) + 1);
        _exit(0);
    }
    char text[4096] = "";
    int status;
    close(into[1]);
    CHECK(read(into[0], text, sizeof text) > 0);
    close(into[0]);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    if (!is_set && what == 0 && atoi(text) > 0) conns[numbers[number].which].unread -= atoi(text);
    show("child %s %d:%s", what == 0 ? "asks" : "closes", number, text);
}

/* ---- those who wait while something happens ---- */

enum { WAITERS = 3 };
static struct waiter {
    pthread_t thread;
    int fd, call, count;
    atomic_int tid, woken;
    struct epoll_event events[PLACES];
} waiters[WAITERS];

static void *wait_thread(void *argument) {
    struct waiter *w = argument;
    w->tid = syscall(SYS_gettid);
    struct pollfd place = {w->fd, POLLIN, 0};
    fd_set in;
    FD_ZERO(&in);
    FD_SET(w->fd, &in);
    struct timespec long_time = {60, 0};
    int n = 0;
    switch (w->call) {
    case 0: n = epoll_wait(w->fd, w->events, PLACES, -1); break;
    case 1: n = epoll_wait(w->fd, w->events, PLACES, 60000); break;
    case 2: n = epoll_pwait(w->fd, w->events, PLACES, -1, NULL); break;
    case 3: n = epoll_pwait2(w->fd, w->events, PLACES, &long_time, NULL); break;
    case 4: n = poll(&place, 1, -1); break;
    case 5: n = ppoll(&place, 1, &long_time, NULL); break;
    case 6: n = select(w->fd + 1, &in, NULL, NULL, NULL); break;
    }
    w->count = n;
    if (w->call >= 4) w->count = n > 0 ? 0 : n;
    w->woken = 1;
    return NULL;
}

static void until_asleep(int tid) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    int in_a_row = 0;
    for (double end = now() + 0.05; in_a_row < 2 && now() < end; usleep(200)) {
        int fd = open(path, O_RDONLY);
        if (fd < 0) return;
        ssize_t n = read(fd, text, sizeof text - 1);
        close(fd);
        text[n > 0 ? n : 0] = 0;
        char *state = strrchr(text, ')');
        in_a_row = state && state[2] == 'S' ? in_a_row + 1 : 0;
    }
}

static FILE *expected;
/* Whether somebody was woken in this step of the run that this one is compared with; -1: not known. */
static int expects_woken(void) {
    static char line[8192];
    char wanted[64];
    sprintf(wanted, "%d.%d waited", seed, step);
    while (expected && fgets(line, sizeof line, expected))
        if (!strncmp(line, wanted, strlen(wanted)) && line[strlen(wanted)] == ' ') return strstr(line, "asleep") ? 0 : 1;
    return -1;
}

static int wait_ms = 15;
typedef void throw(void);
static throw *pick(bool beside_waiters);

static void t_waiters(void) {
    int set = number_of(SET);
    if (set < 0) return;
    int s = numbers[set].which, count = chance(75) ? 1 : 2 + dice(WAITERS - 1);
    look(numbers[set].fd);
    bool edges = has_edges(s, 0), again = false;
    for (int i = 0; i < heard.count; i++) again |= heard.events[i].data.u64 >> 46 & 1;
    show("before waiting on %d:%s", set, all_heard(false));
    if (again) return; /* whoever waits is told of it at once, or not, if it is read first */
    int call = dice(7);
    bool asleep = chance(60);
    for (int i = 0; i < count; i++) {
        struct waiter *w = &waiters[i];
        w->fd = dup(numbers[set].fd);
        w->call = call;
        w->tid = w->woken = 0;
        CHECK(pthread_create(&w->thread, NULL, wait_thread, w) == 0);
    }
    for (int i = 0; i < count; i++) {
        while (!waiters[i].tid) usleep(50);
        if (asleep) until_asleep(waiters[i].tid);
    }
    throw *action = pick(true);
    quiet_arrivals = true;
    action();
    quiet_arrivals = false;
    int wanted = expects_woken();
    bool woken = false;
    for (double end = now() + (wanted == 1 ? 5 : wait_ms * 1e-3); !woken && now() < end; usleep(100))
        for (int i = 0; i < count; i++) woken |= waiters[i].woken;
    if (woken && count > 1) usleep(2000); /* more of them */
    show("waited on %d: %s%s", set, edges ? "~" : "", woken ? "woken" : "asleep");
    uint64_t one = 1;
    CHECK(write(sets[s].bell, &one, 8) == 8);
    for (int i = 0; i < count; i++) {
        CHECK(pthread_join(waiters[i].thread, NULL) == 0);
        hear(waiters[i].events, waiters[i].count);
    }
    CHECK(read(sets[s].bell, &one, 8) == 8);
    look(waiters[0].fd);
    for (int i = 0; i < count; i++) close(waiters[i].fd);
    show("told by call %d:%s", call, all_heard(true));
}

static const struct {
    throw *what;
    int weight;
    bool beside_waiters;
} throws[] = {
    {t_send, 22, true}, {t_recv, 14, true}, {t_answer, 6, true}, {t_warm, 6, false}, {t_control, 20, true}, {t_wait, 18, false},
    {t_poll, 5, false}, {t_event, 5, true}, {t_pipe, 4, true}, {t_dup, 3, true}, {t_close, 4, true}, {t_end, 3, true},
    {t_make, 3, true}, {t_fork, 3, false}, {t_waiters, 12, false},
};
enum { THROWS = sizeof throws / sizeof *throws };

static throw *pick(bool beside_waiters) {
    for (;;) {
        int weights = 0;
        for (int i = 0; i < THROWS; i++) weights += throws[i].weight;
        int at = dice(weights), i = 0;
        while (at >= throws[i].weight) at -= throws[i++].weight;
        if (!beside_waiters || throws[i].beside_waiters) return throws[i].what;
    }
}

/* ---- a seed ---- */

static void play(int steps) {
    dice_state = (uint64_t)(seed + 1) * 0x9E3779B97F4A7C15;
    for (int i = 0; i < 5; i++) dice(2);
    memset(conns, 0, sizeof conns);
    memset(sets, 0, sizeof sets);
    memset(event_count, 0, sizeof event_count);
    step = 0;
    for (int i = 0; i < 2; i++) make_conn(), make_set();
    for (int p = 0; p < PIPES; p++) {
        int ends[2];
        CHECK(pipe2(ends, O_NONBLOCK) == 0);
        pipes[p].out = ends[1];
        pipes[p].have = 0;
        add_number(ends[0], PIPE, p);
    }
    for (int e = 0; e < EVENTS; e++) add_number(eventfd(0, EFD_NONBLOCK), EVENT, e);
    for (step = 1; step <= steps; step++) pick(false)();
    for (int i = 0; i < NUMBERS; i++)
        if (numbers[i].kind) close_number(i);
    for (int p = 0; p < PIPES; p++) close(pipes[p].out);
    for (int s = 0; s < SETS; s++)
        if (sets[s].open) close(sets[s].bell);
    for (int c = 0; c < CONNS; c++)
        if (conns[c].open && !conns[c].gone) tell('c', c, 0);
    if (seed % 4 == 0 || steps == 0) concurrently();
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "other")) {
        other(atoi(argv[2]));
    }
    if (argc < 4) return 2;
    if (argc > 4) CHECK((expected = fopen(argv[4], "r")) != NULL);
    if (getenv("WAIT")) wait_ms = atoi(getenv("WAIT"));
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int channel[2];
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(listener, (void *)&address, length) == 0 && listen(listener, 100) == 0);
    CHECK(getsockname(listener, (void *)&address, &length) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, channel) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char text[16];
        sprintf(text, "%d", ntohs(address.sin_port));
        CHECK(dup3(channel[1], CHANNEL + 100, 0) >= 0 && dup2(CHANNEL + 100, CHANNEL) == CHANNEL);
        close(CHANNEL + 100);
        execl("/proc/self/exe", "sets", "other", text, NULL);
        _exit(1);
    }
    close(channel[1]);
    if (channel[0] != CHANNEL) {
        if (listener == CHANNEL) CHECK((listener = fcntl(listener, F_DUPFD_CLOEXEC, 10)) >= 0);
        if (expected && fileno(expected) == CHANNEL) CHECK(dup2(fileno(expected), 50) == 50 && (expected = fdopen(50, "r")));
        CHECK(dup3(channel[0], CHANNEL, O_CLOEXEC) == CHANNEL);
        close(channel[0]);
    }
    for (seed = atoi(argv[1]); seed <= atoi(argv[2]); seed++) play(atoi(argv[3]));
    return 0;
}

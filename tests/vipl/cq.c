/* Completion queues, and handlers. */
#include "two.h"

enum { MANY = 100, ROUNDS = 50 };

/* Many Virtual Interfaces on one queue: each completion is told of once, in the order of its Virtual Interface, and its descriptor is there. */
static void many(enum how how) {
    VIP_CQ_HANDLE cq;
    OK(VipCreateCQ(nic, MANY * 16, &cq));
    static VIP_VI_HANDLE vis[MANY];
    unsigned next[MANY] = {0};
    struct pool pool = make_pool(MANY * 8, 64, NULL);
    char where[16];
    for (int i = 0; i < MANY; i++) {
        vis[i] = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, cq);
        for (int j = 0; j < 8; j++) post_recv(vis[i], &pool, i * 8 + j, 64);
        snprintf(where, sizeof where, "cq %d", i);
        connect_at(vis[i], where);
    }
    for (int total = 0; total < MANY * ROUNDS; total++) {
        VIP_VI_HANDLE vi;
        VIP_BOOLEAN receive;
        if (how == WAIT) OK(VipCQWait(cq, 5000, &vi, &receive));
        else
            for (double end = now() + 5; VipCQDone(cq, &vi, &receive) == VIP_NOT_DONE;) CHECK(now() < end);
        CHECK(receive);
        VIP_DESCRIPTOR *d;
        OK(VipRecvDone(vi, &d));
        unsigned which;
        memcpy(&which, (char *)d + 64, sizeof which);
        CHECK(which < MANY && vis[which] == vi);
        EQUAL(d->CS.ImmediateData, next[which]);
        next[which]++;
        post_recv(vi, &pool, ((char *)d - pool.base) / pool.stride, 64);
        if (next[which] % 8 == 0) tell(which);
    }
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN receive;
    EQUAL(VipCQDone(cq, &vi, &receive), VIP_NOT_DONE);
    EQUAL(VipCQWait(cq, 10, &vi, &receive), VIP_TIMEOUT);
    meet();
    /* Flushed ones are told of, too. */
    for (int i = 0; i < MANY; i++) OK(VipDisconnect(vis[i]));
    for (int i = 0; i < MANY * 8; i++) OK(VipCQDone(cq, &vi, &receive));
    EQUAL(VipCQDone(cq, &vi, &receive), VIP_NOT_DONE);
    /* Not taken back, and nothing is told of them when they are gone. */
    for (int i = 0; i < MANY; i++) OK(VipDestroyVi(vis[i]));
    EQUAL(VipCQDone(cq, &vi, &receive), VIP_NOT_DONE);
    OK(VipDestroyCQ(cq));
    drop_pool(&pool);
}

static void many_client(void) {
    VIP_CQ_HANDLE cq;
    OK(VipCreateCQ(nic, 1000, &cq));
    static VIP_VI_HANDLE vis[MANY];
    unsigned sent[MANY] = {0}, most[MANY];
    struct pool pool = make_pool(1, 64, NULL);
    char where[16];
    for (int i = 0; i < MANY; i++) {
        vis[i] = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, cq, NULL);
        snprintf(where, sizeof where, "cq %d", i);
        connect_at(vis[i], where);
        most[i] = 8;
    }
    unsigned seed = 1;
    for (int total = 0; total < MANY * ROUNDS;) {
        unsigned i = rand_r(&seed) % MANY;
        if (sent[i] == ROUNDS) continue;
        while (sent[i] == most[i]) most[hear()] += 8;
        memcpy(data(&pool, 0), &i, sizeof i);
        VIP_DESCRIPTOR *d = descriptor(&pool, 0), *done;
        d->CS.Control = VIP_CONTROL_IMMEDIATE;
        d->CS.ImmediateData = sent[i]++;
        OK(VipPostSend(vis[i], d, pool.handle));
        VIP_VI_HANDLE vi;
        VIP_BOOLEAN receive;
        /* Between hosts the peer may have to be asked whether it has posted a descriptor. */
        if (far) OK(VipCQWait(cq, 5000, &vi, &receive));
        else OK(VipCQDone(cq, &vi, &receive));
        CHECK(vi == vis[i] && !receive);
        OK(VipSendDone(vi, &done));
        CHECK(done == d);
        EQUAL(VipCQDone(cq, &vi, &receive), VIP_NOT_DONE);
        total++;
        if (total % 100 == 0) usleep(100); /* so that the other one falls asleep */
    }
    unsigned heard = 0;
    for (int i = 0; i < MANY; i++) heard += ROUNDS / 8 - (most[i] - 8) / 8;
    while (heard--) hear();
    meet();
    for (int i = 0; i < MANY; i++) {
        OK(VipDisconnect(vis[i]));
        OK(VipDestroyVi(vis[i]));
    }
    OK(VipDestroyCQ(cq));
    drop_pool(&pool);
}

static void many_polled(void) { many(POLL); }
static void many_waited(void) { many(WAIT); }

/* Both queues of a Virtual Interface on one completion queue, that is resized, and waited for by a thread, meanwhile. */
static VIP_CQ_HANDLE shared;
static atomic_int taken;

static void *waits(void *unused) {
    (void)unused;
    for (int i = 0; i < 200; i++) {
        VIP_VI_HANDLE vi;
        VIP_BOOLEAN receive;
        OK(VipCQWait(shared, 5000, &vi, &receive));
        VIP_DESCRIPTOR *d;
        OK((receive ? VipRecvDone : VipSendDone)(vi, &d));
        taken++;
    }
    return NULL;
}

static void one_for_both(void) {
    OK(VipCreateCQ(nic, 10, &shared));
    struct pool pool = make_pool(100, 64, NULL), out = make_pool(100, 64, NULL);
    VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_RELIABLE_RECEPTION, shared, shared);
    for (int i = 0; i < 100; i++) post_recv(vi, &pool, i, 64);
    connect_at(vi, "both");
    pthread_t thread;
    EQUAL(pthread_create(&thread, NULL, waits, NULL), 0);
    for (int i = 0; i < 100; i++) {
        post_send(vi, &out, i, 64);
        OK(VipResizeCQ(shared, 10 + i));
        if (i % 10 == 0) usleep(1000);
    }
    EQUAL(pthread_join(thread, NULL), 0);
    EQUAL(taken, 200);
    meet();
    OK(VipDisconnect(vi));
    OK(VipDestroyVi(vi));
    OK(VipDestroyCQ(shared));
    drop_pool(&pool);
    drop_pool(&out);
}

/* Handlers: once for each registration, in order, from a thread of the library. */
static int handled[2];

static void handle(VIP_PVOID context, VIP_NIC_HANDLE n, VIP_VI_HANDLE vi, VIP_DESCRIPTOR *d) {
    CHECK(n == nic && vi);
    int64_t what = (int64_t)(intptr_t)context << 32 | d->CS.ImmediateData;
    EQUAL(write(handled[1], &what, sizeof what), sizeof what);
}

static void handle_cq(VIP_PVOID context, VIP_NIC_HANDLE n, VIP_VI_HANDLE vi, VIP_BOOLEAN receive) {
    CHECK(n == nic && receive);
    VIP_DESCRIPTOR *d;
    OK(VipRecvDone(vi, &d)); /* handlers may call anything */
    handle(context, n, vi, d);
}

static int64_t next_handled(void) {
    struct pollfd poll_it = {.fd = handled[0], .events = POLLIN};
    int64_t what;
    EQUAL(poll(&poll_it, 1, 2000), 1);
    EQUAL(read(handled[0], &what, sizeof what), sizeof what);
    return what;
}

static void handlers_server(void) {
    EQUAL(pipe(handled), 0);
    VIP_CQ_HANDLE cq;
    OK(VipCreateCQ(nic, 10, &cq));
    struct pool pool = make_pool(40, 64, NULL);
    VIP_VI_HANDLE own = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL), queued = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, cq);
    for (int i = 0; i < 20; i++) post_recv(i % 2 ? own : queued, &pool, i, 64);
    connect_at(own, "own");
    connect_at(queued, "queued");
    /* First registered, then done; then the other way round. */
    for (int i = 0; i < 3; i++) OK(VipRecvNotify(own, (void *)(intptr_t)(i + 1), handle));
    for (int i = 0; i < 3; i++) OK(VipCQNotify(cq, (void *)(intptr_t)(i + 11), handle_cq));
    usleep(10000);
    meet();
    for (int i = 0; i < 3; i++) EQUAL(next_handled(), (int64_t)(i + 1) << 32 | (100 + i));
    meet();
    for (int i = 0; i < 3; i++) EQUAL(next_handled(), (int64_t)(i + 11) << 32 | (200 + i));
    meet();
    usleep(10000);
    for (int i = 0; i < 2; i++) OK(VipRecvNotify(own, (void *)(intptr_t)(i + 21), handle));
    for (int i = 0; i < 2; i++) EQUAL(next_handled(), (int64_t)(i + 21) << 32 | (300 + i));
    for (int i = 0; i < 2; i++) OK(VipCQNotify(cq, (void *)(intptr_t)(i + 31), handle_cq));
    for (int i = 0; i < 2; i++) EQUAL(next_handled(), (int64_t)(i + 31) << 32 | (400 + i));
    /* Flushed descriptors are done, too. */
    VIP_DESCRIPTOR *d;
    OK(VipRecvNotify(own, (void *)41, handle));
    OK(VipDisconnect(own));
    do VipRecvDone(own, &d);
    while (d);
    OK(VipDestroyVi(own));
    EQUAL(next_handled() >> 32, 41);
    OK(VipDisconnect(queued));
    OK(VipDestroyVi(queued));
    OK(VipDestroyCQ(cq));
    drop_pool(&pool);
    meet();
}

/* A peer that writes what cannot be: whoever looks finds out, the library for a handler, or the program, and the connection ends in the middle of that look.
 * The handler gets what was flushed. */
enum broken { BY_HANDLER, BY_QUEUES_HANDLER, BY_PROGRAM, BROKEN };

static void handle_flushed(VIP_PVOID context, VIP_NIC_HANDLE n, VIP_VI_HANDLE vi, VIP_DESCRIPTOR *d) {
    EQUAL(d->CS.Status & VIP_STATUS_ERROR_MASK, VIP_STATUS_DESC_FLUSHED_ERROR);
    handle(context, n, vi, d);
}

static void handle_queue_flushed(VIP_PVOID context, VIP_NIC_HANDLE n, VIP_VI_HANDLE vi, VIP_BOOLEAN receive) {
    CHECK(receive);
    VIP_DESCRIPTOR *d;
    EQUAL(VipRecvDone(vi, &d), VIP_DESCRIPTOR_ERROR);
    handle_flushed(context, n, vi, d);
}

static void broken_server(void) {
    EQUAL(pipe(handled), 0);
    for (enum broken how = 0; how < BROKEN; how++) {
        VIP_CQ_HANDLE cq;
        OK(VipCreateCQ(nic, 10, &cq));
        struct pool pool = make_pool(2, 64, NULL);
        VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, how == BY_HANDLER ? NULL : cq), which;
        for (int i = 0; i < 2; i++) post_recv(vi, &pool, i, 64);
        connect_at(vi, "broken");
        /* It waits already when the program looks. */
        if (how == BY_PROGRAM) OK(VipCQNotify(cq, (void *)51, handle_queue_flushed));
        meet();
        meet();
        VIP_DESCRIPTOR *d;
        VIP_BOOLEAN receive;
        switch (how) {
        case BY_HANDLER: OK(VipRecvNotify(vi, (void *)51, handle_flushed)); break;
        case BY_QUEUES_HANDLER: OK(VipCQNotify(cq, (void *)51, handle_queue_flushed)); break;
        default: OK(VipCQDone(cq, &which, &receive)); CHECK(which == vi && receive);
        }
        EQUAL(next_handled() >> 32, 51);
        EQUAL(state(vi), VIP_STATE_ERROR);
        /* One is left for the program. */
        for (int left = 1; left >= 0; left--) {
            EQUAL(VipRecvDone(vi, &d), VIP_DESCRIPTOR_ERROR);
            EQUAL(d != NULL, left);
        }
        OK(VipDisconnect(vi));
        OK(VipDestroyVi(vi));
        OK(VipDestroyCQ(cq));
        drop_pool(&pool);
        meet();
    }
}

/* In each slot of the transfer queues of both ends' segments (crates/via/src/segment.rs), an entry with the number one of a kind that there is not; in
 * completion queues a hint (crates/fabric/src/hints.rs), for which nobody is woken. */
static void scribble(void) {
    enum { TRANSFERS = 20480, END = TRANSFERS + (128 << 10) };
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    int found = 0;
    CHECK(maps != NULL);
    while (fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx", &from, &to) != 2) continue;
        volatile uint64_t *words = (volatile uint64_t *)from;
        if (strstr(line, "memfd:via-segment")) {
            CHECK(to - from > END);
            for (int i = TRANSFERS / 8; i < END / 8; i++) words[i] = (uint64_t)9 << 32 | 1;
            found++;
        } else if (strstr(line, "memfd:via-queue")) {
            words[2] = 1;
            words[0] = 1;
        }
    }
    fclose(maps);
    CHECK(found >= 2);
}

static void broken_client(void) {
    for (enum broken how = 0; how < BROKEN; how++) {
        VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
        connect_at(vi, "broken");
        meet();
        scribble();
        meet();
        wait_state(vi, VIP_STATE_ERROR);
        meet();
        OK(VipDisconnect(vi));
        OK(VipDestroyVi(vi));
    }
}

static void send_numbers(VIP_VI_HANDLE vi, struct pool *pool, unsigned first, int count, bool notify) {
    for (int i = 0; i < count; i++) {
        VIP_DESCRIPTOR *d = descriptor(pool, 0);
        d->CS.Control = VIP_CONTROL_IMMEDIATE;
        d->CS.ImmediateData = first + i;
        if (notify) OK(VipSendNotify(vi, (void *)(intptr_t)(first + i), handle));
        OK(VipPostSend(vi, d, pool->handle));
        if (notify) {
            int64_t what = next_handled();
            EQUAL(what >> 32, first + i);
        } else {
            OK(take_send(vi, POLL, &d));
        }
    }
}

static void handlers_client(void) {
    EQUAL(pipe(handled), 0);
    struct pool pool = make_pool(1, 64, NULL);
    VIP_VI_HANDLE own = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL), queued = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    connect_at(own, "own");
    connect_at(queued, "queued");
    meet();
    send_numbers(own, &pool, 100, 3, true);
    meet();
    send_numbers(queued, &pool, 200, 3, false);
    meet();
    send_numbers(own, &pool, 300, 2, false);
    send_numbers(queued, &pool, 400, 2, false);
    meet();
    OK(VipDisconnect(own));
    OK(VipDisconnect(queued));
    OK(VipDestroyVi(own));
    OK(VipDestroyVi(queued));
    drop_pool(&pool);
}

const struct example examples[] = {
    {"many_polled", many_polled, many_client, 0},
    {"many_waited", many_waited, many_client, 0},
    {"one_for_both", one_for_both, one_for_both, 0},
    {"handlers", handlers_server, handlers_client, 0},
    {"broken", broken_server, broken_client, NEAR},
    {0},
};

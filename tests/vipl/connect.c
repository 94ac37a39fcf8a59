/* How connections are made, and not made. */
#include "two.h"

/* Attributes that do not match leave the request as it is; the client hears nothing until there is an answer. */
static void mismatch_server(void) {
    VIP_VI_ATTRIBUTES theirs;
    struct address at = address("match"), from = {{0}};
    VIP_CONN_HANDLE asked;
    OK(VipConnectWait(nic, NET(at), 5000, NET(from), &theirs, &asked));
    EQUAL(theirs.ReliabilityLevel, VIP_SERVICE_RELIABLE_DELIVERY);
    EQUAL(theirs.MaxTransferSize, 5000);
    CHECK(theirs.EnableRdmaRead && !theirs.EnableRdmaWrite);
    EQUAL(NET(from)->DiscriminatorLen, 2);
    EQUAL(memcmp(NET(from)->HostAddress + 6, "me", 2), 0);
    VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_RELIABLE_RECEPTION, NULL, NULL);
    EQUAL(VipConnectAccept(asked, vi), VIP_INVALID_RELIABILITY_LEVEL);
    EQUAL(state(vi), VIP_STATE_IDLE);
    VIP_VI_ATTRIBUTES mine = attributes(VIP_SERVICE_RELIABLE_DELIVERY);
    OK(VipSetViAttributes(vi, &mine));
    EQUAL(VipConnectAccept(asked, vi), VIP_INVALID_MTU);
    mine.MaxTransferSize = 5000;
    OK(VipSetViAttributes(vi, &mine));
    OK(VipConnectAccept(asked, vi));
    EQUAL(VipConnectAccept(asked, vi), VIP_INVALID_PARAMETER);
    EQUAL(VipConnectReject(asked), VIP_INVALID_PARAMETER);
    EQUAL(state(vi), VIP_STATE_CONNECTED);
    meet();
    OK(VipDisconnect(vi));
    OK(VipDestroyVi(vi));
}

static void mismatch_client(void) {
    VIP_VI_ATTRIBUTES mine = {VIP_SERVICE_RELIABLE_DELIVERY, 5000, 0, NULL, VIP_FALSE, VIP_TRUE}, theirs;
    VIP_VI_HANDLE vi;
    OK(VipCreateVi(nic, &mine, NULL, NULL, &vi));
    struct address from = address("me"), to = there("match");
    VIP_RETURN result;
    while ((result = VipConnectRequest(vi, NET(from), NET(to), 5000, &theirs)) == VIP_NO_MATCH) {}
    EQUAL(result, VIP_SUCCESS);
    EQUAL(theirs.MaxTransferSize, 5000);
    CHECK(theirs.EnableRdmaWrite && theirs.EnableRdmaRead);
    meet();
    OK(VipDisconnect(vi));
    OK(VipDestroyVi(vi));
}

static void refused(void) {
    VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    struct pool pool = make_pool(2, 10, NULL);
    post_recv(vi, &pool, 0, 10);
    struct address from = address("me"), to = address("nobody");
    VIP_VI_ATTRIBUTES theirs;
    EQUAL(VipConnectRequest(vi, NET(from), NET(to), 1000, &theirs), VIP_NO_MATCH);
    EQUAL(VipConnectRequest(vi, NET(from), NET(to), 0, &theirs), VIP_INVALID_PARAMETER);
    EQUAL(VipConnectRequest(vi, NULL, NET(to), 10, &theirs), VIP_INVALID_PARAMETER);
    EQUAL(VipConnectRequest(vi, NET(from), NULL, 10, &theirs), VIP_INVALID_PARAMETER);
    struct address away = address("nobody");
    memcpy(NET(away)->HostAddress, "\0\0\300\0\2\1", 6); /* 192.0.2.1: documentation's */
    EQUAL(VipConnectRequest(vi, NET(from), NET(away), 1000, &theirs), VIP_NOT_REACHABLE);
    struct address too_long = address("123456789012345678901234567890123"); /* 33 */
    EQUAL(VipConnectRequest(vi, NET(from), NET(too_long), 10, &theirs), VIP_INVALID_PARAMETER);
    VIP_CONN_HANDLE asked;
    double began = now();
    EQUAL(VipConnectWait(nic, NET(to), 50, NET(from), &theirs, &asked), VIP_TIMEOUT);
    CHECK(now() - began > 0.045 && now() - began < 2);
    EQUAL(VipConnectWait(nic, NULL, 50, NET(from), &theirs, &asked), VIP_INVALID_PARAMETER);
    EQUAL(VipConnectWait(nic, NET(too_long), 50, NET(from), &theirs, &asked), VIP_INVALID_PARAMETER);
    EQUAL(VipConnectWait(NULL, NET(to), 50, NET(from), &theirs, &asked), VIP_INVALID_PARAMETER);
    EQUAL(VipConnectWait(nic, NET(to), 50, NET(from), &theirs, NULL), VIP_INVALID_PARAMETER);
    /* The receive stays posted through all of this. */
    VIP_DESCRIPTOR *d;
    EQUAL(state(vi), VIP_STATE_IDLE);
    EQUAL(VipRecvDone(vi, &d), VIP_NOT_DONE);
    OK(VipDestroyVi(vi));
    drop_pool(&pool);
}

/* A client that gives up; a request that was never answered. */
static void given_up_server(void) {
    VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    VIP_CONN_HANDLE asked = wait_request("slow");
    hear();
    EQUAL(VipConnectAccept(asked, vi), VIP_TIMEOUT);
    EQUAL(VipConnectAccept(asked, vi), VIP_TIMEOUT);
    OK(VipConnectReject(asked));
    asked = wait_request("slow");
    OK(VipConnectAccept(asked, vi));
    meet();
    OK(VipDisconnect(vi));
    OK(VipDestroyVi(vi));
}

static void given_up_client(void) {
    VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    double began = now();
    EQUAL(request(vi, "slow", far ? 2000 : 100), VIP_TIMEOUT); /* between hosts it takes longer until it asks */
    CHECK(now() - began > (far ? 1.9 : 0.09));
    EQUAL(state(vi), VIP_STATE_IDLE);
    tell(0);
    OK(request(vi, "slow", 5000));
    meet();
    OK(VipDisconnect(vi));
    OK(VipDestroyVi(vi));
}

/* Several threads wait, at different addresses and at the same one. */
enum { THREADS = 8 };

static void *accepts(void *arg) {
    char where[24];
    snprintf(where, sizeof where, "thread %d", (int)(intptr_t)arg / 2);
    VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    OK(VipConnectAccept(wait_request(where), vi));
    return vi;
}

static void threads_server(void) {
    pthread_t threads[THREADS];
    for (intptr_t i = 0; i < THREADS; i++) EQUAL(pthread_create(&threads[i], NULL, accepts, (void *)i), 0);
    void *vi[THREADS];
    for (int i = 0; i < THREADS; i++) EQUAL(pthread_join(threads[i], &vi[i]), 0);
    meet();
    for (int i = 0; i < THREADS; i++) {
        OK(VipDisconnect(vi[i]));
        OK(VipDestroyVi(vi[i]));
    }
}

static void threads_client(void) {
    VIP_VI_HANDLE vi[THREADS];
    for (int i = 0; i < THREADS; i++) {
        char where[24];
        snprintf(where, sizeof where, "thread %d", i / 2);
        vi[i] = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
        OK(request(vi[i], where, 5000));
    }
    meet();
    for (int i = 0; i < THREADS; i++) {
        OK(VipDisconnect(vi[i]));
        OK(VipDestroyVi(vi[i]));
    }
}

/* Two threads of one process, over the same NIC. */
static void *asks(void *vi) {
    OK(request(vi, "myself", 5000));
    return NULL;
}

static void oneself(void) {
    struct pool pool = make_pool(4, 50000, NULL);
    VIP_VI_HANDLE one = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL), two = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    post_recv(two, &pool, 0, 50000);
    post_recv(two, &pool, 1, 50000);
    pthread_t thread;
    EQUAL(pthread_create(&thread, NULL, asks, one), 0);
    OK(VipConnectAccept(wait_request("myself"), two));
    EQUAL(pthread_join(thread, NULL), 0);
    for (int i = 0; i < 2; i++) {
        VIP_DESCRIPTOR *d;
        memset(data(&pool, 2), 'a' + i, 50000);
        post_send(one, &pool, 2, i ? 50000 : 5);
        OK(take_send(one, POLL, &d));
        OK(take_recv(two, POLL, &d));
        CHECK(data(&pool, i)[0] == 'a' + i && data(&pool, i)[d->CS.Length - 1] == 'a' + i);
    }
    OK(VipDisconnect(one));
    wait_state(two, VIP_STATE_ERROR);
    OK(VipDisconnect(two));
    OK(VipDestroyVi(one));
    OK(VipDestroyVi(two));
    drop_pool(&pool);
}

/* Peers: many requests first, in either order, then the waiting; each finds its own. */
enum { PEERS = 20 };

static void peers(void) {
    VIP_VI_HANDLE vi[PEERS];
    struct pool pool = make_pool(PEERS + 1, 16, NULL);
    VIP_VI_ATTRIBUTES theirs;
    for (int i = 0; i < PEERS; i++) {
        int which = is_server ? i : PEERS - 1 - i;
        char mine[16], yours[16];
        snprintf(mine, sizeof mine, "%c%d", is_server ? 's' : 'c', which);
        snprintf(yours, sizeof yours, "%c%d", is_server ? 'c' : 's', which);
        vi[which] = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
        post_recv(vi[which], &pool, which, 16);
        EQUAL(VipConnectPeerDone(vi[which], &theirs), VIP_INVALID_STATE);
        struct address from = address(mine), to = there(yours);
        OK(VipConnectPeerRequest(vi[which], NET(from), NET(to), VIP_INFINITE));
        EQUAL(VipConnectPeerRequest(vi[which], NET(from), NET(to), 100), VIP_INVALID_STATE);
    }
    for (int i = 0; i < PEERS; i++) {
        if (i % 2) OK(VipConnectPeerWait(vi[i], &theirs));
        else {
            VIP_RETURN result;
            while ((result = VipConnectPeerDone(vi[i], &theirs)) == VIP_NOT_DONE) usleep(100);
            EQUAL(result, VIP_SUCCESS);
        }
        EQUAL(state(vi[i]), VIP_STATE_CONNECTED);
        EQUAL(VipConnectPeerDone(vi[i], &theirs), VIP_INVALID_STATE);
    }
    for (int i = 0; i < PEERS; i++) {
        VIP_DESCRIPTOR *d;
        data(&pool, PEERS)[0] = i;
        post_send(vi[i], &pool, PEERS, 16);
        OK(take_send(vi[i], POLL, &d));
        OK(take_recv(vi[i], WAIT, &d));
        EQUAL(data(&pool, i)[0], i);
    }
    meet();
    for (int i = 0; i < PEERS; i++) {
        OK(VipDisconnect(vi[i]));
        OK(VipDestroyVi(vi[i]));
    }
    drop_pool(&pool);
}

static void peers_apart(void) {
    VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    VIP_VI_ATTRIBUTES theirs, other_level = attributes(VIP_SERVICE_RELIABLE_RECEPTION);
    struct address a = address("a"), b = address("b"), away = address("b");
    memcpy(NET(away)->HostAddress, "\0\0\300\0\2\1", 6);
    OK(VipConnectPeerRequest(vi, NET(a), NET(away), 1000));
    EQUAL(VipConnectPeerWait(vi, &theirs), VIP_NOT_REACHABLE);
    for (int turn = 0; turn < 2; turn++) { /* either of them may be the one who connects */
        OK(VipConnectPeerRequest(vi, turn ? NET(a) : NET(b), turn ? NET(b) : NET(a), 50));
        EQUAL(state(vi), VIP_STATE_CONNECT_PENDING);
        double began = now();
        EQUAL(VipConnectPeerDone(vi, &theirs), VIP_NOT_DONE);
        EQUAL(VipConnectPeerWait(vi, &theirs), VIP_TIMEOUT);
        CHECK(now() - began > 0.04 && now() - began < 2);
        EQUAL(state(vi), VIP_STATE_IDLE);
        OK(VipConnectPeerRequest(vi, turn ? NET(a) : NET(b), turn ? NET(b) : NET(a), VIP_INFINITE));
        OK(VipDisconnect(vi)); /* takes it back */
        EQUAL(state(vi), VIP_STATE_IDLE);
        EQUAL(VipConnectPeerDone(vi, &theirs), VIP_INVALID_STATE);
    }
    for (int turn = 0; turn < 2; turn++) { /* nor does one meet itself */
        OK(VipConnectPeerRequest(vi, NET(a), NET(a), turn ? VIP_INFINITE : 50));
        if (turn) OK(VipDisconnect(vi));
        else EQUAL(VipConnectPeerWait(vi, &theirs), VIP_TIMEOUT);
        EQUAL(state(vi), VIP_STATE_IDLE);
    }
    /* Two whose attributes differ both hear of it. */
    VIP_VI_HANDLE two;
    OK(VipCreateVi(nic, &other_level, NULL, NULL, &two));
    OK(VipConnectPeerRequest(vi, NET(a), NET(b), 5000));
    OK(VipConnectPeerRequest(two, NET(b), NET(a), 5000));
    EQUAL(VipConnectPeerWait(vi, &theirs), VIP_INVALID_RELIABILITY_LEVEL);
    EQUAL(VipConnectPeerWait(two, &theirs), VIP_INVALID_RELIABILITY_LEVEL);
    OK(VipDestroyVi(vi));
    OK(VipDestroyVi(two));
}

/* Peers of the same address, which is the local one and the remote one of each: any two of them meet. */
enum { NAMESAKES = 6 };

static void namesakes(void) {
    VIP_VI_HANDLE vi[NAMESAKES];
    struct pool pool = make_pool(NAMESAKES + 1, 16, NULL);
    VIP_VI_ATTRIBUTES theirs;
    struct address same = address("same");
    for (int i = 0; i < NAMESAKES; i++) {
        vi[i] = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
        post_recv(vi[i], &pool, i, 16);
        OK(VipConnectPeerRequest(vi[i], NET(same), NET(same), 10000 * patience()));
    }
    for (int i = 0; i < NAMESAKES; i++) OK(VipConnectPeerWait(vi[i], &theirs));
    for (int i = 0; i < NAMESAKES; i++) {
        VIP_DESCRIPTOR *d;
        post_send(vi[i], &pool, NAMESAKES, 16);
        OK(take_send(vi[i], POLL, &d));
    }
    for (int i = 0; i < NAMESAKES; i++) {
        VIP_DESCRIPTOR *d;
        OK(take_recv(vi[i], WAIT, &d));
        EQUAL(d->CS.Length, 16);
    }
    meet();
    for (int i = 0; i < NAMESAKES; i++) {
        OK(VipDisconnect(vi[i]));
        OK(VipDestroyVi(vi[i]));
    }
    drop_pool(&pool);
}

/* Another user's process waits there (tests/test_vipl.py): that is nobody. */
static void refused_by_strangers(void) {
    VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    struct address from = address("me"), to = address("nobody");
    VIP_VI_ATTRIBUTES theirs;
    for (int i = 0; i < 20; i++) EQUAL(VipConnectRequest(vi, NET(from), NET(to), 1000, &theirs), VIP_NO_MATCH);
    OK(VipDestroyVi(vi));
}

/* Others may connect there and say nothing. */
static void crowded(void) {
    struct pool pool = make_pool(1, 100, NULL);
    for (int i = 0; i < 50; i++) {
        VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
        double began = now();
        connect_at(vi, "crowded");
        CHECK(now() - began < 2 * patience());
        meet();
        OK(VipDisconnect(vi));
        OK(VipDestroyVi(vi));
    }
    drop_pool(&pool);
}

/* A thousand connections, one after the other: nothing is left of them. */
static unsigned descriptors_open(void) {
    unsigned count = 0;
    for (int fd = 0; fd < 1024; fd++) count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static long maps(void) {
    FILE *file = fopen("/proc/self/maps", "r");
    long lines = 0;
    for (int c; (c = fgetc(file)) != EOF;) lines += c == '\n';
    fclose(file);
    return lines;
}

static void turnover(void) {
    struct pool pool = make_pool(2, 100, NULL);
    unsigned open_before = 0;
    long maps_before = 0;
    VIP_VI_HANDLE kept = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    for (int i = 0; i < 1010; i++) {
        if (i == 10) {
            meet();
            usleep(10000);
            open_before = descriptors_open(), maps_before = maps();
            meet();
        }
        VIP_VI_HANDLE vi = i % 2 ? kept : make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
        VIP_DESCRIPTOR *d;
        post_recv(vi, &pool, 0, 100);
        connect_at(vi, "turnover");
        post_send(vi, &pool, 1, 100);
        OK(take_send(vi, POLL, &d));
        OK(take_recv(vi, POLL, &d));
        if (i % 3 == 0) meet(); /* both have it, or one has gone before */
        OK(VipDisconnect(vi));
        if (vi != kept) OK(VipDestroyVi(vi));
    }
    meet();
    usleep(10000);
    CHECK(descriptors_open() <= open_before + 2);
    CHECK(maps() <= maps_before + 4);
    OK(VipDestroyVi(kept));
    drop_pool(&pool);
}

/* The program ends without a word: the other one hears of it. */
static void left_server(void) {
    catch_errors();
    VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    connect_at(vi, "left");
    meet();
    EQUAL(next_error().code, VIP_ERROR_CONN_LOST);
    OK(VipDisconnect(vi));
    OK(VipDestroyVi(vi));
}

static void left_client(void) {
    VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    connect_at(vi, "left");
    meet();
    pid_t child = fork(); /* which has nothing to do with it */
    if (child == 0) {
        sleep(3);
        _exit(0);
    }
    exit(0);
}

const struct example examples[] = {
    {"mismatch", mismatch_server, mismatch_client, 0},
    {"refused", NULL, refused, ALONE},
    {"given_up", given_up_server, given_up_client, 0},
    {"threads", threads_server, threads_client, 0},
    {"oneself", NULL, oneself, ALONE},
    {"peers", peers, peers, 0},
    {"peers_apart", NULL, peers_apart, ALONE},
    {"namesakes", namesakes, namesakes, 0},
    {"refused_by_strangers", NULL, refused_by_strangers, ALONE},
    {"crowded", crowded, crowded, 0},
    {"turnover", turnover, turnover, 0},
    {"left", left_server, left_client, 0},
    {0},
};

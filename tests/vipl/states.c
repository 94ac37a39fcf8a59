/* The state machine, row by row, and what each reliability level does about errors. */
#include "two.h"

static void cut(VIP_VI_HANDLE vi) {
    OK(VipDisconnect(vi));
    EQUAL(state(vi), VIP_STATE_IDLE);
}

/* Disconnected by the peer: Error, everything flushed, the loss reported once; posted then: flushed; Disconnect: Idle, and usable again. */
static void disconnected_server(void) {
    catch_errors();
    struct pool pool = make_pool(8, 100, NULL);
    for (int i = 0; i < 3; i++) {
        VIP_VI_HANDLE vi = make_vi(levels[i], NULL, NULL);
        for (int round = 0; round < 3; round++) {
            for (int r = 0; r < 4; r++) post_recv(vi, &pool, r, 100);
            connect_at(vi, "cut");
            VIP_DESCRIPTOR *d;
            tell(0);
            /* What was sent before the end is received, whoever looks when. */
            hear();
            wait_state(vi, VIP_STATE_ERROR);
            OK(VipRecvDone(vi, &d));
            EQUAL(data(&pool, 0)[0], 'x');
            struct error told = next_error();
            CHECK(told.code == VIP_ERROR_CONN_LOST && told.vi == vi);
            EQUAL(VipDestroyVi(vi), VIP_INVALID_STATE);
            post_recv(vi, &pool, 4, 100);
            post_send(vi, &pool, 5, 100);
            EQUAL(posted(&pool, 4)->CS.Status & VIP_STATUS_ERROR_MASK, VIP_STATUS_DESC_FLUSHED_ERROR);
            EQUAL(posted(&pool, 5)->CS.Status & VIP_STATUS_ERROR_MASK, VIP_STATUS_DESC_FLUSHED_ERROR);
            VIP_VI_ATTRIBUTES with = attributes(levels[i]);
            EQUAL(VipSetViAttributes(vi, &with), VIP_INVALID_STATE);
            EQUAL(VipConnectPeerDone(vi, &with), VIP_INVALID_STATE);
            cut(vi);
            drain(vi, 5);
            meet();
        }
        OK(VipDestroyVi(vi));
    }
    EQUAL(errors_left(), 0);
    drop_pool(&pool);
}

static void disconnected_client(void) {
    catch_errors();
    struct pool pool = make_pool(8, 100, NULL);
    for (int i = 0; i < 3; i++) {
        VIP_VI_HANDLE vi = make_vi(levels[i], NULL, NULL);
        for (int round = 0; round < 3; round++) {
            connect_at(vi, "cut");
            hear();
            for (int r = 0; r < 3; r++) post_recv(vi, &pool, r, 100);
            VIP_DESCRIPTOR *d;
            memset(data(&pool, 5), 'x', 100);
            post_send(vi, &pool, 5, 100);
            OK(take_send(vi, POLL, &d));
            cut(vi);
            drain(vi, 3);
            cut(vi); /* twice: nothing */
            tell(0);
            meet();
        }
        OK(VipDestroyVi(vi));
    }
    EQUAL(errors_left(), 0);
    drop_pool(&pool);
}

/* What may not be done in which state. */
static void connected(void) {
    VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    VIP_VI_ATTRIBUTES with = attributes(VIP_SERVICE_RELIABLE_DELIVERY), theirs;
    struct address from = address("a"), to = address("b");
    connect_at(vi, "connected");
    EQUAL(VipSetViAttributes(vi, &with), VIP_INVALID_STATE);
    EQUAL(VipConnectRequest(vi, NET(from), NET(to), 100, &theirs), VIP_INVALID_STATE);
    EQUAL(VipConnectPeerRequest(vi, NET(from), NET(to), 100), VIP_INVALID_STATE);
    EQUAL(VipDestroyVi(vi), VIP_INVALID_STATE);
    meet();
    if (is_server) {
        VIP_CONN_HANDLE asked = wait_request("second");
        EQUAL(VipConnectAccept(asked, vi), VIP_INVALID_STATE);
        OK(VipConnectReject(asked)); /* still there */
    } else {
        VIP_VI_HANDLE second = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
        EQUAL(request(second, "second", 5000), VIP_REJECT);
        EQUAL(state(second), VIP_STATE_IDLE);
        OK(VipDestroyVi(second));
    }
    meet();
    OK(VipDisconnect(vi));
    OK(VipDestroyVi(vi));
}

/* No descriptor is posted for a message. */
static void nothing_posted_server(void) {
    catch_errors();
    for (int i = 0; i < 3; i++) {
        VIP_VI_HANDLE vi = make_vi(levels[i], NULL, NULL);
        connect_at(vi, "empty");
        meet();
        struct error told = next_error();
        CHECK(told.code == VIP_ERROR_RECVQ_EMPTY && told.vi == vi);
        if (levels[i] == VIP_SERVICE_UNRELIABLE) {
            EQUAL(state(vi), VIP_STATE_CONNECTED);
        } else {
            EQUAL(next_error().code, VIP_ERROR_CONN_LOST);
            EQUAL(state(vi), VIP_STATE_ERROR);
        }
        meet();
        OK(VipDisconnect(vi)); /* first: the other one's end would be an error here */
        meet();
        OK(VipDestroyVi(vi));
    }
    EQUAL(errors_left(), 0);
}

static void nothing_posted_client(void) {
    struct pool pool = make_pool(4, 100, NULL);
    static const VIP_UINT32 wanted[] = {0, VIP_STATUS_TRANSPORT_ERROR, VIP_STATUS_REMOTE_DESC_ERROR};
    for (int i = 0; i < 3; i++) {
        VIP_VI_HANDLE vi = make_vi(levels[i], NULL, NULL);
        post_recv(vi, &pool, 1, 100);
        connect_at(vi, "empty");
        meet();
        VIP_DESCRIPTOR *d;
        post_send(vi, &pool, 0, 100);
        EQUAL(take_send(vi, POLL, &d), wanted[i] ? VIP_DESCRIPTOR_ERROR : VIP_SUCCESS);
        EQUAL(d->CS.Status & VIP_STATUS_ERROR_MASK, wanted[i]);
        wait_state(vi, wanted[i] ? VIP_STATE_ERROR : VIP_STATE_CONNECTED);
        meet();
        meet();
        OK(VipDisconnect(vi));
        drain(vi, 1);
        OK(VipDestroyVi(vi));
    }
    drop_pool(&pool);
}

/* A message is longer than the descriptor's buffers. */
static void too_long_server(void) {
    catch_errors();
    struct pool pool = make_pool(4, 100, NULL);
    for (int i = 0; i < 3; i++) {
        VIP_VI_HANDLE vi = make_vi(levels[i], NULL, NULL);
        memset(data(&pool, 0), 'a', 100);
        post_recv(vi, &pool, 0, 50);
        post_recv(vi, &pool, 1, 100);
        connect_at(vi, "long");
        meet();
        VIP_DESCRIPTOR *d;
        EQUAL(take_recv(vi, WAIT, &d), VIP_DESCRIPTOR_ERROR);
        CHECK(d == posted(&pool, 0));
        EQUAL(d->CS.Status & VIP_STATUS_ERROR_MASK, VIP_STATUS_LENGTH_ERROR);
        EQUAL(data(&pool, 0)[50], 'a');
        if (levels[i] == VIP_SERVICE_UNRELIABLE) {
            OK(take_recv(vi, WAIT, &d));
            EQUAL(state(vi), VIP_STATE_CONNECTED);
        } else {
            EQUAL(next_error().code, VIP_ERROR_CONN_LOST);
            EQUAL(state(vi), VIP_STATE_ERROR);
            drain(vi, 1);
        }
        meet();
        OK(VipDisconnect(vi)); /* first: the other one's end would be an error here */
        meet();
        OK(VipDestroyVi(vi));
    }
    drop_pool(&pool);
}

static void too_long_client(void) {
    struct pool pool = make_pool(4, 100, NULL);
    static const VIP_UINT32 wanted[] = {0, VIP_STATUS_TRANSPORT_ERROR, VIP_STATUS_REMOTE_DESC_ERROR};
    for (int i = 0; i < 3; i++) {
        VIP_VI_HANDLE vi = make_vi(levels[i], NULL, NULL);
        connect_at(vi, "long");
        meet();
        VIP_DESCRIPTOR *d;
        post_send(vi, &pool, 0, 51);
        EQUAL(take_send(vi, POLL, &d), wanted[i] ? VIP_DESCRIPTOR_ERROR : VIP_SUCCESS);
        EQUAL(d->CS.Status & VIP_STATUS_ERROR_MASK, wanted[i]);
        post_send(vi, &pool, 1, 100);
        EQUAL(take_send(vi, POLL, &d), wanted[i] ? VIP_DESCRIPTOR_ERROR : VIP_SUCCESS);
        EQUAL(d->CS.Status & VIP_STATUS_ERROR_MASK, wanted[i] ? VIP_STATUS_DESC_FLUSHED_ERROR : 0);
        meet();
        meet();
        OK(VipDisconnect(vi));
        OK(VipDestroyVi(vi));
    }
    drop_pool(&pool);
}

/* RDMA whither it must not go: a wrong handle, beyond the region, a region that does not allow it, a Virtual Interface that does not. */
enum { FORBIDDEN = 6 };

static void forbidden_server(void) {
    catch_errors();
    struct pool pool = make_pool(2, 4000, NULL);
    VIP_MEM_HANDLE closed;
    VIP_MEM_ATTRIBUTES with = {NULL, VIP_FALSE, VIP_FALSE};
    OK(VipRegisterMem(nic, pool.base, 4000, &with, &closed));
    for (int i = 0; i < 3; i++)
        for (int way = 0; way < FORBIDDEN; way++) {
            if (way == 5 && i == 0) continue;
            VIP_VI_ATTRIBUTES mine = attributes(levels[i]);
            if (way == 4) mine.EnableRdmaWrite = VIP_FALSE;
            VIP_VI_HANDLE vi;
            OK(VipCreateVi(nic, &mine, NULL, NULL, &vi));
            memset(data(&pool, 0), 'a', 1000);
            connect_at(vi, "forbidden");
            tell((intptr_t)data(&pool, 0) + (way == 1 ? 1 << 20 : 0));
            tell(way == 0 ? pool.handle + 1 : way == 2 || way == 5 ? closed : pool.handle);
            tell(way == 3 ? 1 << 20 : 1000);
            if (i < 2) EQUAL(next_error().code, way == 5 ? VIP_ERROR_RDMAR_PROT : VIP_ERROR_RDMAW_PROT);
            if (i > 0) EQUAL(next_error().code, VIP_ERROR_CONN_LOST);
            EQUAL(state(vi), i ? VIP_STATE_ERROR : VIP_STATE_CONNECTED);
            EQUAL(data(&pool, 0)[0], 'a');
            meet();
            OK(VipDisconnect(vi)); /* first: the other one's end would be an error here */
            meet();
            OK(VipDestroyVi(vi));
        }
    EQUAL(errors_left(), 0);
    OK(VipDeregisterMem(nic, pool.base, closed));
    drop_pool(&pool);
}

static void forbidden_client(void) {
    struct pool pool = make_pool(1, 1 << 20, NULL);
    for (int i = 0; i < 3; i++)
        for (int way = 0; way < FORBIDDEN; way++) {
            if (way == 5 && i == 0) continue;
            VIP_VI_HANDLE vi = make_vi(levels[i], NULL, NULL);
            connect_at(vi, "forbidden");
            VIP_DESCRIPTOR *d = descriptor(&pool, 0);
            d->CS.Control = way == 5 ? VIP_CONTROL_OP_RDMAREAD : VIP_CONTROL_OP_RDMAWRITE;
            d->CS.SegCount = 2;
            d->DS[1].Local = d->DS[0].Local;
            d->DS[0].Remote.Data.AddressBits = hear();
            d->DS[0].Remote.Handle = hear();
            d->DS[0].Remote.Reserved = 0;
            d->CS.Length = d->DS[1].Local.Length = hear();
            OK(VipPostSend(vi, d, pool.handle));
            EQUAL(take_send(vi, POLL, &d), i ? VIP_DESCRIPTOR_ERROR : VIP_SUCCESS);
            EQUAL(d->CS.Status & VIP_STATUS_ERROR_MASK, i ? VIP_STATUS_RDMA_PROT_ERROR : 0);
            wait_state(vi, i ? VIP_STATE_ERROR : VIP_STATE_CONNECTED);
            meet();
            meet();
            OK(VipDisconnect(vi));
            OK(VipDestroyVi(vi));
        }
    drop_pool(&pool);
}

/* A descriptor that is wrong breaks a reliable connection, after what was posted before it. */
static void wrong_server(void) {
    catch_errors();
    struct pool pool = make_pool(4, 100, NULL);
    for (int i = 0; i < 3; i++)
        for (int receive = 0; receive < 2; receive++) {
            VIP_VI_HANDLE vi = make_vi(levels[i], NULL, NULL);
            post_recv(vi, &pool, 0, 100);
            connect_at(vi, "wrong");
            meet();
            if (i) {
                EQUAL(next_error().code, VIP_ERROR_CONN_LOST);
                EQUAL(state(vi), VIP_STATE_ERROR);
            }
            meet();
            OK(VipDisconnect(vi)); /* first: the other one's end would be an error here */
            meet();
            drain(vi, 1);
            OK(VipDestroyVi(vi));
        }
    EQUAL(errors_left(), 0);
    drop_pool(&pool);
}

static void wrong_client(void) {
    struct pool pool = make_pool(4, 100, NULL);
    for (int i = 0; i < 3; i++)
        for (int receive = 0; receive < 2; receive++) {
            VIP_VI_HANDLE vi = make_vi(levels[i], NULL, NULL);
            connect_at(vi, "wrong");
            meet();
            VIP_DESCRIPTOR *d = descriptor(&pool, 0), *done;
            d->CS.Reserved = 5;
            OK((receive ? VipPostRecv : VipPostSend)(vi, d, pool.handle));
            EQUAL((receive ? VipRecvDone : VipSendDone)(vi, &done), VIP_DESCRIPTOR_ERROR);
            CHECK(done == d);
            EQUAL(d->CS.Status & VIP_STATUS_ERROR_MASK, VIP_STATUS_FORMAT_ERROR);
            wait_state(vi, i ? VIP_STATE_ERROR : VIP_STATE_CONNECTED);
            meet();
            meet();
            OK(VipDisconnect(vi));
            OK(VipDestroyVi(vi));
        }
    drop_pool(&pool);
}

/* The peer is killed: in each state, found out within a second. */
enum victim { POLLING, WAITING, SENDING, CQ_WAITING, ASKED, VICTIMS };

static void killed_server(void) {
    catch_errors();
    struct pool pool = make_pool(64, 100000, NULL);
    VIP_CQ_HANDLE cq;
    OK(VipCreateCQ(nic, 64, &cq));
    for (int way = 0; way < VICTIMS; way++) {
        VIP_VI_HANDLE vi = make_vi(levels[way % 3] | (way == SENDING ? VIP_SERVICE_DFC : 0), NULL, way == CQ_WAITING ? cq : NULL);
        for (int i = 0; i < 64; i++) post_recv(vi, &pool, i, 100000);
        VIP_CONN_HANDLE asked = wait_request("killed");
        if (way == ASKED) {
            /* It dies while its request waits for an answer. */
            kill((pid_t)hear(), SIGKILL);
            usleep(20000);
            EQUAL(VipConnectAccept(asked, vi), VIP_TIMEOUT);
            EQUAL(state(vi), VIP_STATE_IDLE);
            OK(VipConnectReject(asked));
            OK(VipDestroyVi(vi));
            continue;
        }
        OK(VipConnectAccept(asked, vi));
        pid_t victim = hear();
        VIP_DESCRIPTOR *d;
        if (way == SENDING) {
            OK(VipRecvWait(vi, 5000, &d)); /* it is in the middle of many */
            usleep(500);
        }
        double began = now();
        EQUAL(kill(victim, SIGKILL), 0);
        VIP_RETURN result;
        if (way == POLLING || way == SENDING) {
            while ((result = VipRecvDone(vi, &d)) == VIP_NOT_DONE || result == VIP_SUCCESS)
                if (result == VIP_SUCCESS) post_recv(vi, &pool, ((char *)d - pool.base) / pool.stride, 100000);
        } else if (way == WAITING) {
            result = VipRecvWait(vi, 5000, &d);
        } else {
            VIP_VI_HANDLE which;
            VIP_BOOLEAN receive;
            OK(VipCQWait(cq, 5000, &which, &receive));
            CHECK(which == vi && receive);
            result = VipRecvDone(vi, &d);
        }
        EQUAL(result, VIP_DESCRIPTOR_ERROR);
        CHECK(d && d->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR);
        EQUAL(state(vi), VIP_STATE_ERROR);
        struct error told = next_error();
        CHECK(told.code == VIP_ERROR_CONN_LOST && told.vi == vi);
        CHECK(now() - began < patience());
        OK(VipDisconnect(vi));
        do VipRecvDone(vi, &d);
        while (d);
        OK(VipDestroyVi(vi));
    }
    OK(VipDestroyCQ(cq));
    EQUAL(errors_left(), 0);
    drop_pool(&pool);
    meet();
}

static void killed_client(void) {
    OK(VipCloseNic(nic)); /* the victims open it */
    for (int way = 0; way < VICTIMS; way++) {
        pid_t victim = fork();
        if (victim == 0) {
            OK(VipOpenNic("nic0", &nic));
            struct pool pool = make_pool(2, 100000, NULL);
            VIP_VI_HANDLE vi = make_vi(levels[way % 3] | (way == SENDING ? VIP_SERVICE_DFC : 0), NULL, NULL);
            if (way == ASKED) tell(getpid());
            OK(request(vi, "killed", 20000));
            tell(getpid());
            VIP_DESCRIPTOR *d;
            for (unsigned i = 0;; i++) {
                if (way != SENDING) pause();
                post_send(vi, &pool, 0, i % 2 ? 100000 : 10);
                VipSendWait(vi, VIP_INFINITE, &d);
                if (d->CS.Status & VIP_STATUS_ERROR_MASK) pause();
            }
        }
        int status;
        EQUAL(waitpid(victim, &status, 0), victim);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    meet();
    OK(VipOpenNic("nic0", &nic));
}

/* One connection after another, each by a Virtual Interface that takes the place of the last one, whose end the library's thread may not be done with: the
 * first message waits for a descriptor, so that a wake-up that it takes for the last one's is missed. */
enum { TURNS = 300 };

static void again_server(void) {
    struct pool pool = make_pool(1, 100, NULL);
    for (int turn = 0; turn < TURNS; turn++) {
        VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_RELIABLE_DELIVERY | VIP_SERVICE_DFC, NULL, NULL);
        VIP_DESCRIPTOR *d;
        connect_at(vi, "again");
        hear();
        post_recv(vi, &pool, 0, 100);
        OK(take_recv(vi, WAIT, &d));
        EQUAL(d->CS.Length, 10);
        meet();
        OK(VipDisconnect(vi));
        OK(VipDestroyVi(vi));
    }
    drop_pool(&pool);
}

static void again_client(void) {
    struct pool pool = make_pool(1, 100, NULL);
    for (int turn = 0; turn < TURNS; turn++) {
        VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_RELIABLE_DELIVERY | VIP_SERVICE_DFC, NULL, NULL);
        VIP_DESCRIPTOR *d;
        connect_at(vi, "again");
        post_send(vi, &pool, 0, 10);
        tell(0);
        OK(take_send(vi, turn % 2 ? POLL : WAIT, &d));
        meet();
        OK(VipDisconnect(vi));
        OK(VipDestroyVi(vi));
    }
    drop_pool(&pool);
}

const struct example examples[] = {
    {"disconnected", disconnected_server, disconnected_client, 0},
    {"connected", connected, connected, 0},
    {"again", again_server, again_client, 0},
    {"nothing_posted", nothing_posted_server, nothing_posted_client, 0},
    {"too_long", too_long_server, too_long_client, 0},
    {"forbidden", forbidden_server, forbidden_client, 0},
    {"wrong", wrong_server, wrong_client, 0},
    {"killed", killed_server, killed_client, 0},
    {0},
};

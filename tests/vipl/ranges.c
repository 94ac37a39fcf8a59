/* Receive segments that reach beyond their regions: what is touched is checked, when it is touched. ARMCI posts such ones, for acknowledgements of no bytes. */
#include "two.h"

#include <sys/mman.h>

enum { REGION = 8192, LONG = 65472 };

/* Registered are two pages; behind them there is nothing. */
static char *base;
static VIP_MEM_HANDLE region, other_region;

static void map(void) {
    base = mmap(NULL, 4 * REGION, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(base != MAP_FAILED);
    VIP_MEM_ATTRIBUTES with = {NULL, VIP_TRUE, VIP_TRUE};
    for (int i = 0; i < 2; i++) EQUAL(mprotect(base + 2 * i * REGION, REGION, PROT_READ | PROT_WRITE), 0);
    OK(VipRegisterMem(nic, base, REGION, &with, &region));
    OK(VipRegisterMem(nic, base + 2 * REGION, REGION, &with, &other_region));
}

static VIP_DESCRIPTOR *at(int place, size_t from, size_t length) {
    VIP_DESCRIPTOR *d = (VIP_DESCRIPTOR *)(base + place * 256);
    memset(d, 0, 256);
    d->CS.SegCount = 1;
    d->CS.Length = length;
    d->DS[0].Local.Data.Address = base + from;
    d->DS[0].Local.Handle = region;
    d->DS[0].Local.Length = length;
    return d;
}

/* Messages of so many bytes into a segment that begins 4096 bytes before the region's end. */
static const size_t fits[] = {0, 10, 112, 113, 1000, 4095, 4096};
enum { FITS = sizeof fits / sizeof *fits };

static void short_server(void) {
    map();
    for (int i = 0; i < 3; i++) {
        VIP_VI_HANDLE vi = make_vi(levels[i], NULL, NULL);
        VIP_DESCRIPTOR *d;
        OK(VipPostRecv(vi, at(0, REGION / 2, LONG), region)); /* before there is a connection, too */
        connect_at(vi, "short");
        for (int m = 0; m < FITS; m++) {
            if (m) OK(VipPostRecv(vi, at(m, REGION / 2, LONG), region));
            meet();
            OK(take_recv(vi, m % 2 ? WAIT : POLL, &d));
            EQUAL(d->CS.Status, VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE);
            EQUAL(d->CS.Length, fits[m]);
            for (size_t b = 0; b < fits[m]; b++) EQUAL(base[REGION / 2 + b], m);
        }
        /* The region's very end: for messages of no bytes. */
        OK(VipPostRecv(vi, at(0, REGION, LONG), region));
        meet();
        OK(take_recv(vi, POLL, &d));
        EQUAL(d->CS.Length, 0);
        /* Two segments in two regions; no message comes to the second. */
        d = at(0, REGION / 2, LONG);
        d->CS.SegCount = 2;
        d->DS[1].Local.Data.Address = base + 2 * REGION;
        d->DS[1].Local.Handle = other_region;
        d->DS[1].Local.Length = 100;
        OK(VipPostRecv(vi, d, region));
        meet();
        OK(take_recv(vi, POLL, &d));
        EQUAL(d->CS.Length, 4096);
        /* The second of two. */
        d = at(0, REGION / 2, 96);
        d->CS.SegCount = 2;
        d->DS[1].Local.Data.Address = base + 3 * REGION - 4000;
        d->DS[1].Local.Handle = other_region;
        d->DS[1].Local.Length = LONG;
        OK(VipPostRecv(vi, d, region));
        meet();
        OK(take_recv(vi, POLL, &d));
        EQUAL(d->CS.Length, 4096);
        EQUAL(base[3 * REGION - 1], 9);
        EQUAL(state(vi), VIP_STATE_CONNECTED);
        meet();
        OK(VipDisconnect(vi));
        meet();
        OK(VipDestroyVi(vi));
    }
    OK(VipDeregisterMem(nic, base, region)); /* nothing holds them any more */
    OK(VipDeregisterMem(nic, base + 2 * REGION, other_region));
}

static void short_client(void) {
    struct pool pool = make_pool(1, REGION, NULL);
    for (int i = 0; i < 3; i++) {
        VIP_VI_HANDLE vi = make_vi(levels[i], NULL, NULL);
        VIP_DESCRIPTOR *d;
        connect_at(vi, "short");
        for (int m = 0; m < FITS + 3; m++) {
            meet();
            memset(data(&pool, 0), m, REGION);
            post_send(vi, &pool, 0, m < FITS ? fits[m] : m == FITS ? 0 : 4096);
            OK(take_send(vi, POLL, &d));
        }
        meet();
        meet();
        OK(VipDisconnect(vi));
        OK(VipDestroyVi(vi));
    }
    drop_pool(&pool);
}

/* One byte more: a message that would go beyond the region does not come, and it says so; the connection breaks, unless it is unreliable. */
static void long_server(void) {
    map();
    catch_errors();
    for (int i = 0; i < 3; i++)
        for (int m = 0; m < 2; m++) {
            VIP_VI_HANDLE vi = make_vi(levels[i], NULL, NULL);
            VIP_DESCRIPTOR *d;
            OK(VipPostRecv(vi, at(0, REGION / 2, 8192), region));
            connect_at(vi, "long");
            meet();
            EQUAL(take_recv(vi, POLL, &d), VIP_DESCRIPTOR_ERROR);
            EQUAL(d->CS.Status & VIP_STATUS_ERROR_MASK, m ? VIP_STATUS_LENGTH_ERROR : VIP_STATUS_PROTECTION_ERROR);
            wait_state(vi, i ? VIP_STATE_ERROR : VIP_STATE_CONNECTED);
            meet();
            OK(VipDisconnect(vi));
            meet();
            OK(VipDestroyVi(vi));
        }
}

static void long_client(void) {
    struct pool pool = make_pool(1, 10000, NULL);
    for (int i = 0; i < 3; i++)
        for (int m = 0; m < 2; m++) {
            VIP_VI_HANDLE vi = make_vi(levels[i], NULL, NULL);
            VIP_DESCRIPTOR *d;
            connect_at(vi, "long");
            meet(); /* what breaks the connection comes when the other end has seen it */
            post_send(vi, &pool, 0, m ? 8193 : 4097);
            VIP_UINT32 wanted[] = {0, VIP_STATUS_TRANSPORT_ERROR, VIP_STATUS_REMOTE_DESC_ERROR};
            EQUAL(take_send(vi, POLL, &d), i ? VIP_DESCRIPTOR_ERROR : VIP_SUCCESS);
            EQUAL(d->CS.Status & VIP_STATUS_ERROR_MASK, wanted[i]);
            meet();
            meet();
            OK(VipDisconnect(vi));
            OK(VipDestroyVi(vi));
        }
    drop_pool(&pool);
}

/* What is wrong at once: a segment that begins outside, or has no region; and what is sent must be there. */
static void outside(void) {
    map();
    VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_UNRELIABLE, NULL, NULL);
    VIP_DESCRIPTOR *d;
    for (int i = 0; i < 4; i++) {
        d = at(0, i ? REGION / 2 : REGION + 1, LONG);
        if (i == 1) d->DS[0].Local.Data.Address = base - 1;
        if (i == 2) d->DS[0].Local.Handle = 77;
        if (i == 3) OK(VipPostSend(vi, d, region));
        else OK(VipPostRecv(vi, d, region));
        EQUAL((i == 3 ? VipSendDone : VipRecvDone)(vi, &d), VIP_DESCRIPTOR_ERROR);
        EQUAL(d->CS.Status & VIP_STATUS_ERROR_MASK & ~VIP_STATUS_DESC_FLUSHED_ERROR, VIP_STATUS_PROTECTION_ERROR);
    }
    OK(VipDestroyVi(vi));
    OK(VipDeregisterMem(nic, base, region));
}

/* RDMA reads, which Unreliable ones do not have: wrong at once, and the connection stays. */
static void unread(void) {
    struct pool pool = make_pool(2, 100, NULL);
    VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_UNRELIABLE, NULL, NULL);
    VIP_DESCRIPTOR *d;
    post_recv(vi, &pool, 1, 100);
    connect_at(vi, "unread");
    meet();
    for (int i = 0; i < 2; i++) { /* one that waits behind others is as wrong */
        d = descriptor(&pool, 0);
        d->CS.Control = VIP_CONTROL_OP_RDMAREAD;
        d->CS.SegCount = 2;
        d->DS[1].Local = d->DS[0].Local;
        d->DS[0].Remote.Data.Address = data(&pool, 1);
        d->DS[0].Remote.Handle = pool.handle;
        d->DS[0].Remote.Reserved = 0;
        OK(VipPostSend(vi, d, pool.handle));
        EQUAL(take_send(vi, i ? WAIT : POLL, &d), VIP_DESCRIPTOR_ERROR);
        EQUAL(d->CS.Status, VIP_STATUS_DONE | VIP_STATUS_OP_RDMA_READ | VIP_STATUS_FORMAT_ERROR);
        EQUAL(d->CS.Length, 0);
        EQUAL(state(vi), VIP_STATE_CONNECTED);
    }
    post_send(vi, &pool, 0, 100);
    OK(take_send(vi, POLL, &d));
    OK(take_recv(vi, POLL, &d));
    meet();
    OK(VipDisconnect(vi));
    OK(VipDestroyVi(vi));
    drop_pool(&pool);
}

const struct example examples[] = {
    {"short", short_server, short_client, 0},
    {"long", long_server, long_client, 0},
    {"outside", NULL, outside, ALONE},
    {"unread", unread, unread, 0},
    {0},
};

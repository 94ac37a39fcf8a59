/* Messages and RDMA between two processes, every byte checked. */
#include "two.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>

static uint8_t byte_of(unsigned message, size_t at) {
    uint64_t x = message * 0x9e3779b97f4a7c15 + at / 8 * 0xbf58476d1ce4e5b9 + 1;
    x = (x ^ x >> 29) * 0x94d049bb133111eb;
    return x >> 8 * (at % 8);
}

static void fill(unsigned message, char *to, size_t length) {
    for (size_t i = 0; i < length; i++) to[i] = byte_of(message, i);
}

static void check(unsigned message, const char *from, size_t length) {
    for (size_t i = 0; i < length; i++)
        if ((uint8_t)from[i] != byte_of(message, i)) {
            fprintf(stderr, "message %u: byte %zu is wrong\n", message, i);
            fail(__FILE__, __LINE__, "the byte is the one sent", (uint8_t)from[i], byte_of(message, i));
        }
}

static const size_t sizes[] = {0,    1,    2,    3,    4,    7,    8,     15,    16,    47,    48,    49,    63,     64,     65,     100,     127,    1000,
                               4095, 4096, 4097, 8191, 8192, 8193, 16384, 32768, 65472, 65535, 65536, 65537, 100000, 250000, 262144, 1000000, 1048576};
enum { SIZES = sizeof sizes / sizeof *sizes, ROOM = 1 << 20 };

/* All sizes, by each level, polling and waiting. */
static void sizes_server(void) {
    struct pool pool = make_pool(SIZES, ROOM, NULL);
    for (int round = 0; round < 6; round++) {
        VIP_VI_HANDLE vi = make_vi(levels[round % 3], NULL, NULL);
        for (int i = 0; i < SIZES; i++) post_recv(vi, &pool, i, ROOM);
        connect_at(vi, "sizes");
        for (int i = 0; i < SIZES; i++) {
            VIP_DESCRIPTOR *d;
            OK(take_recv(vi, round / 3 ? WAIT : POLL, &d));
            CHECK(d == posted(&pool, i));
            EQUAL(d->CS.Status, VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE | (i % 2 ? VIP_STATUS_IMMEDIATE : 0));
            EQUAL(d->CS.Length, sizes[i]);
            if (i % 2) EQUAL(d->CS.ImmediateData, 0xfffffff0u + i);
            check(i, data(&pool, i), sizes[i]);
        }
        meet();
        OK(VipDisconnect(vi));
        drain(vi, 0);
        OK(VipDestroyVi(vi));
    }
    drop_pool(&pool);
}

static void sizes_client(void) {
    struct pool pool = make_pool(1, ROOM, NULL);
    for (int round = 0; round < 6; round++) {
        VIP_VI_HANDLE vi = make_vi(levels[round % 3], NULL, NULL);
        connect_at(vi, "sizes");
        for (int i = 0; i < SIZES; i++) {
            VIP_DESCRIPTOR *d = descriptor(&pool, 0), *done;
            fill(i, data(&pool, 0), sizes[i]);
            d->CS.Length = d->DS[0].Local.Length = sizes[i];
            d->CS.ImmediateData = 0xfffffff0u + i;
            if (i % 2) d->CS.Control = VIP_CONTROL_IMMEDIATE;
            OK(VipPostSend(vi, d, pool.handle));
            OK(take_send(vi, round / 3 ? WAIT : POLL, &done));
            CHECK(done == d);
            EQUAL(d->CS.Status, VIP_STATUS_DONE | VIP_STATUS_OP_SEND);
            EQUAL(d->CS.Length, sizes[i]);
            /* The buffer is ours again. */
            memset(data(&pool, 0), 0xee, sizes[i]);
        }
        meet();
        OK(VipDisconnect(vi));
        OK(VipDestroyVi(vi));
    }
    drop_pool(&pool);
}

/* Gathered from, and scattered into, up to as many segments as a descriptor may have: 320 bytes and their descriptor stand in a row. */
struct wide {
    _Alignas(64) VIP_CONTROL_SEGMENT control;
    VIP_DATA_SEGMENT segments[252];
};

static VIP_DESCRIPTOR *spread(struct wide *wide, struct pool *pool, unsigned seed, size_t count, size_t length) {
    memset(&wide->control, 0, sizeof wide->control);
    wide->control.SegCount = count;
    wide->control.Length = length;
    for (size_t i = 0, at = 0; i < count; i++) {
        size_t part = i + 1 == count ? length - at : (length - at) * (seed % 7) / 9;
        seed = seed * 1103515245 + 12345;
        wide->segments[i].Data.Address = data(pool, 0) + at;
        wide->segments[i].Handle = pool->handle;
        wide->segments[i].Length = part;
        at += part;
    }
    return (VIP_DESCRIPTOR *)wide;
}

static struct wide wide;
static VIP_MEM_HANDLE wide_handle;

static void segments_server(void) {
    struct pool pool = make_pool(1, ROOM, NULL);
    OK(VipRegisterMem(nic, &wide, sizeof wide, NULL, &wide_handle));
    VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    connect_at(vi, "segments");
    for (unsigned message = 0; message < 400; message++) {
        size_t length = sizes[message % SIZES], count = message % nic_attributes.MaxSegmentsPerDesc + 1;
        VIP_DESCRIPTOR *d = spread(&wide, &pool, message, count, length), *done;
        OK(VipPostRecv(vi, d, wide_handle));
        tell(0);
        OK(take_recv(vi, POLL, &done));
        CHECK(done == d);
        EQUAL(d->CS.Length, length);
        check(message, data(&pool, 0), length);
    }
    meet();
    OK(VipDisconnect(vi));
    OK(VipDestroyVi(vi));
    OK(VipDeregisterMem(nic, &wide, wide_handle));
    drop_pool(&pool);
}

static void segments_client(void) {
    struct pool pool = make_pool(1, ROOM, NULL);
    OK(VipRegisterMem(nic, &wide, sizeof wide, NULL, &wide_handle));
    VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    connect_at(vi, "segments");
    for (unsigned message = 0; message < 400; message++) {
        size_t length = sizes[message % SIZES], count = message * 7 % nic_attributes.MaxSegmentsPerDesc + 1;
        VIP_DESCRIPTOR *d = spread(&wide, &pool, message + 1000, count, length), *done;
        fill(message, data(&pool, 0), length);
        hear();
        OK(VipPostSend(vi, d, wide_handle));
        OK(take_send(vi, POLL, &done));
    }
    meet();
    OK(VipDisconnect(vi));
    OK(VipDestroyVi(vi));
    OK(VipDeregisterMem(nic, &wide, wide_handle));
    drop_pool(&pool);
}

/* Nothing but immediate data: no segment at all, at either end. */
static void immediate_server(void) {
    struct pool pool = make_pool(100, 0, NULL);
    VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_RELIABLE_RECEPTION, NULL, NULL);
    for (int i = 0; i < 100; i++) {
        VIP_DESCRIPTOR *d = descriptor(&pool, i);
        d->CS.SegCount = 0;
        d->CS.Control = VIP_CONTROL_IMMEDIATE; /* programs leave it set; it says nothing here */
        OK(VipPostRecv(vi, d, pool.handle));
    }
    connect_at(vi, "immediate");
    for (int i = 0; i < 100; i++) {
        VIP_DESCRIPTOR *d;
        OK(take_recv(vi, POLL, &d));
        EQUAL((int32_t)d->CS.ImmediateData, -i);
        EQUAL(d->CS.Length, 0);
    }
    meet();
    OK(VipDisconnect(vi));
    OK(VipDestroyVi(vi));
    drop_pool(&pool);
}

static void immediate_client(void) {
    struct pool pool = make_pool(1, 0, NULL);
    VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_RELIABLE_RECEPTION, NULL, NULL);
    connect_at(vi, "immediate");
    for (int i = 0; i < 100; i++) {
        VIP_DESCRIPTOR *d = descriptor(&pool, 0);
        d->CS.SegCount = 0;
        d->CS.Control = VIP_CONTROL_IMMEDIATE;
        d->CS.ImmediateData = -i;
        OK(VipPostSend(vi, d, pool.handle));
        OK(take_send(vi, POLL, &d));
    }
    meet();
    OK(VipDisconnect(vi));
    OK(VipDestroyVi(vi));
    drop_pool(&pool);
}

/* Many messages with few descriptors: slots and places are used over and over, and more than the first ones. */
enum { MESSAGES = 50000 };

static void stream_server(void) {
    size_t depth = nic_attributes.MaxDescriptorsPerQueue;
    struct pool pool = make_pool(depth, 300, NULL);
    VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    size_t now_posted = 0;
    for (; now_posted < 10; now_posted++) post_recv(vi, &pool, now_posted, 300);
    connect_at(vi, "stream");
    tell(10);
    for (unsigned i = 0; i < MESSAGES; i++) {
        VIP_DESCRIPTOR *d;
        OK(take_recv(vi, i % 1000 < 10 ? WAIT : POLL, &d));
        EQUAL(d->CS.Length, i % 300);
        check(i, (char *)d + 64, i % 300);
        size_t index = ((char *)d - pool.base) / pool.stride;
        post_recv(vi, &pool, index, 300);
        if (i % 5000 == 4999 && now_posted < depth)
            for (size_t more = now_posted * 3; now_posted < depth && now_posted < more; now_posted++) post_recv(vi, &pool, now_posted, 300);
        if (i % 5 == 4) tell(i % 5000 == 4999 ? (int64_t)now_posted : 0);
    }
    meet();
    OK(VipDisconnect(vi));
    drain(vi, now_posted);
    OK(VipDestroyVi(vi));
    drop_pool(&pool);
}

static void stream_client(void) {
    struct pool pool = make_pool(1, 300, NULL);
    VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    connect_at(vi, "stream");
    int64_t depth = hear(), sent = 0, done = 0;
    while (sent < MESSAGES) {
        if (sent - done >= depth - 5 || sent - done >= 5000) {
            int64_t more = hear();
            if (more) depth = more;
            done += 5;
            continue;
        }
        VIP_DESCRIPTOR *d;
        fill(sent, data(&pool, 0), sent % 300);
        post_send(vi, &pool, 0, sent % 300);
        OK(take_send(vi, POLL, &d));
        sent++;
    }
    while (done < MESSAGES) hear(), done += 5;
    meet();
    OK(VipDisconnect(vi));
    OK(VipDestroyVi(vi));
    drop_pool(&pool);
}

/* Both send at once, to each other, large and small in turn. */
static void both_ways(void) {
    struct pool in = make_pool(32, 40000, NULL), out = make_pool(1, 40000, NULL);
    VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_RELIABLE_RECEPTION, NULL, NULL);
    for (int i = 0; i < 32; i++) post_recv(vi, &in, i, 40000);
    connect_at(vi, "both");
    /* Neither is ahead of the other by more than there are descriptors. */
    for (unsigned sent = 0, received = 0; sent < 5000 || received < 5000;) {
        VIP_DESCRIPTOR *d;
        if (sent < 5000 && sent <= received + 8) {
            size_t length = sent % 3 ? sent % 300 : 20000 + sent;
            fill(sent, data(&out, 0), length);
            post_send(vi, &out, 0, length);
            OK(take_send(vi, POLL, &d));
            sent++;
        }
        VIP_RETURN result = VipRecvDone(vi, &d);
        if (result == VIP_NOT_DONE) continue;
        EQUAL(result, VIP_SUCCESS);
        size_t length = received % 3 ? received % 300 : 20000 + received;
        EQUAL(d->CS.Length, length);
        check(received, (char *)d + 64, length);
        received++;
        post_recv(vi, &in, ((char *)d - in.base) / in.stride, 40000);
    }
    meet();
    OK(VipDisconnect(vi));
    OK(VipDestroyVi(vi));
    drop_pool(&in);
    drop_pool(&out);
}

/* RDMA. The server's memory is the target; it tells where. */
static void rdma_server(void) {
    for (int level = 1; level < 3; level++) {
        struct pool pool = make_pool(8, ROOM, NULL);
        VIP_VI_HANDLE vi = make_vi(levels[level], NULL, NULL);
        for (int i = 0; i < 4; i++) post_recv(vi, &pool, i, 100);
        connect_at(vi, "rdma");
        tell((intptr_t)data(&pool, 5));
        tell(pool.handle);
        for (int i = 0; i < SIZES; i++) {
            hear(); /* written */
            check(i, data(&pool, 5), sizes[i]);
            memset(data(&pool, 5), 0, sizes[i]);
            fill(i + 100, data(&pool, 5), sizes[i]);
            tell(0); /* may be read */
        }
        /* With immediate data it uses up a descriptor, whose buffers stay as they are; RDMA before a message is there before it. */
        VIP_DESCRIPTOR *d;
        memset(data(&pool, 0), 0x77, 100);
        tell(0);
        OK(take_recv(vi, POLL, &d));
        CHECK(d == posted(&pool, 0));
        EQUAL(d->CS.Status, VIP_STATUS_DONE | VIP_STATUS_OP_REMOTE_RDMA_WRITE | VIP_STATUS_IMMEDIATE);
        EQUAL(d->CS.ImmediateData, 0xdeadbeef);
        EQUAL(d->CS.Length, 5000);
        check(200, data(&pool, 5), 5000);
        EQUAL(data(&pool, 0)[0], 0x77);
        OK(take_recv(vi, WAIT, &d));
        EQUAL(d->CS.Status, VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE);
        check(201, data(&pool, 5) + 5000, 300);
        EQUAL(VipRecvDone(vi, &d), VIP_NOT_DONE); /* the last RDMA write without immediate data is invisible */
        meet();
        OK(VipDisconnect(vi));
        OK(VipDestroyVi(vi));
        drop_pool(&pool);
    }
}

static VIP_DESCRIPTOR *rdma_to(struct pool *pool, VIP_UINT16 op, int64_t address, int64_t handle, size_t length) {
    VIP_DESCRIPTOR *d = descriptor(pool, 0);
    d->CS.Control = op;
    d->CS.SegCount = 2;
    d->CS.Length = length;
    d->DS[1].Local = d->DS[0].Local;
    d->DS[1].Local.Length = length;
    d->DS[0].Remote.Data.AddressBits = address;
    d->DS[0].Remote.Handle = handle;
    d->DS[0].Remote.Reserved = 0;
    return d;
}

static void rdma_client(void) {
    for (int level = 1; level < 3; level++) {
        struct pool pool = make_pool(1, ROOM, NULL);
        VIP_VI_HANDLE vi = make_vi(levels[level], NULL, NULL);
        connect_at(vi, "rdma");
        int64_t address = hear(), handle = hear();
        VIP_DESCRIPTOR *d, *done;
        for (int i = 0; i < SIZES; i++) {
            fill(i, data(&pool, 0), sizes[i]);
            d = rdma_to(&pool, VIP_CONTROL_OP_RDMAWRITE, address, handle, sizes[i]);
            OK(VipPostSend(vi, d, pool.handle));
            OK(take_send(vi, POLL, &done));
            CHECK(done == d);
            EQUAL(d->CS.Status, VIP_STATUS_DONE | VIP_STATUS_OP_RDMA_WRITE);
            EQUAL(d->CS.Length, sizes[i]);
            tell(0);
            hear();
            memset(data(&pool, 0), 0, sizes[i]);
            d = rdma_to(&pool, VIP_CONTROL_OP_RDMAREAD | VIP_CONTROL_QFENCE, address, handle, sizes[i]);
            OK(VipPostSend(vi, d, pool.handle));
            OK(take_send(vi, WAIT, &done));
            EQUAL(d->CS.Status, VIP_STATUS_DONE | VIP_STATUS_OP_RDMA_READ);
            check(i + 100, data(&pool, 0), sizes[i]);
        }
        hear();
        fill(200, data(&pool, 0), 5000);
        d = rdma_to(&pool, VIP_CONTROL_OP_RDMAWRITE | VIP_CONTROL_IMMEDIATE, address, handle, 5000);
        d->CS.ImmediateData = 0xdeadbeef;
        OK(VipPostSend(vi, d, pool.handle));
        OK(take_send(vi, POLL, &done));
        fill(201, data(&pool, 0), 300);
        OK(VipPostSend(vi, rdma_to(&pool, VIP_CONTROL_OP_RDMAWRITE, address + 5000, handle, 300), pool.handle));
        OK(take_send(vi, POLL, &done));
        post_send(vi, &pool, 0, 10);
        OK(take_send(vi, POLL, &done));
        OK(VipPostSend(vi, rdma_to(&pool, VIP_CONTROL_OP_RDMAWRITE, address + 8000, handle, 300), pool.handle));
        OK(take_send(vi, POLL, &done));
        meet();
        OK(VipDisconnect(vi));
        OK(VipDestroyVi(vi));
        drop_pool(&pool);
    }
}

/* Request splitting: what is longer than a descriptor goes on in the next one; with flow control it waits for it. */
static const size_t rooms[] = {100, 30, 7, 64, 20000, 1, 5000, 48, 49, 8193};
enum { SPLIT = VIP_SERVICE_RELIABLE_DELIVERY | VIP_SERVICE_SPLIT, PIECES = 10 };

static void split_server(void) {
    for (int deferred = 0; deferred < 2; deferred++) {
        struct pool pool = make_pool(PIECES, 20000, NULL);
        VIP_VI_HANDLE vi = make_vi(SPLIT | (deferred ? VIP_SERVICE_DFC : 0), NULL, NULL);
        char *whole = malloc(ROOM);
        size_t next = 0;
        for (; next < PIECES; next++) post_recv(vi, &pool, next % PIECES, rooms[next % PIECES]);
        connect_at(vi, "split");
        for (unsigned message = 0; message < 100; message++) {
            size_t length = message * 331, have = 0;
            for (;;) {
                VIP_DESCRIPTOR *d;
                OK(take_recv(vi, WAIT, &d));
                memcpy(whole + have, (char *)d + 64, d->CS.Length);
                have += d->CS.Length;
                VIP_UINT32 status = d->CS.Status, immediate = d->CS.ImmediateData;
                if (deferred && next % 7 == 0) usleep(100); /* the sender has to wait */
                if (deferred) post_recv(vi, &pool, next % PIECES, rooms[next % PIECES]), next++;
                if (!(status & VIP_STATUS_CONTINUES)) {
                    CHECK(status & VIP_STATUS_IMMEDIATE);
                    EQUAL(immediate, message);
                    break;
                }
                CHECK(!(status & VIP_STATUS_IMMEDIATE));
            }
            EQUAL(have, length);
            check(message, whole, length);
            if (!deferred) {
                /* All of them again for the next one: without flow control there must be enough. */
                VIP_DESCRIPTOR *d;
                meet();
                if (message == 20) break; /* 6,950 bytes of 33,492 */
                OK(VipDisconnect(vi));
                do VipRecvDone(vi, &d);
                while (d);
                for (next = 0; next < PIECES; next++) post_recv(vi, &pool, next, rooms[next]);
                connect_at(vi, "split");
            }
        }
        meet();
        OK(VipDisconnect(vi));
        OK(VipDestroyVi(vi));
        drop_pool(&pool);
        free(whole);
    }
}

static void split_client(void) {
    for (int deferred = 0; deferred < 2; deferred++) {
        struct pool pool = make_pool(1, ROOM, NULL);
        VIP_VI_HANDLE vi = make_vi(SPLIT | (deferred ? VIP_SERVICE_DFC : 0), NULL, NULL);
        connect_at(vi, "split");
        for (unsigned message = 0; message < 100; message++) {
            VIP_DESCRIPTOR *d = descriptor(&pool, 0), *done;
            size_t length = message * 331;
            fill(message, data(&pool, 0), length);
            d->CS.Length = d->DS[0].Local.Length = length;
            d->CS.Control = VIP_CONTROL_IMMEDIATE;
            d->CS.ImmediateData = message;
            OK(VipPostSend(vi, d, pool.handle));
            OK(take_send(vi, message % 2 ? WAIT : POLL, &done));
            EQUAL(d->CS.Length, length);
            if (!deferred) {
                meet();
                if (message == 20) break;
                OK(VipDisconnect(vi));
                connect_at(vi, "split");
            }
        }
        meet();
        OK(VipDisconnect(vi));
        OK(VipDestroyVi(vi));
        drop_pool(&pool);
    }
}

/* A descriptor that the program changes while the library has it: what was asked for when it was posted counts, and nothing crashes. */
static void scribbled_server(void) {
    struct pool pool = make_pool(8, 20000, NULL);
    VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    for (int i = 0; i < 8; i++) post_recv(vi, &pool, i, 20000);
    for (int i = 0; i < 8; i++) memset(posted(&pool, i), 0xff, 64);
    connect_at(vi, "scribble");
    for (int i = 0; i < 8; i++) memset(posted(&pool, i), i * 31, 64);
    tell(0);
    for (int i = 0; i < 8; i++) {
        VIP_DESCRIPTOR *d;
        OK(take_recv(vi, POLL, &d));
        CHECK(d == posted(&pool, i));
        size_t length = i % 2 ? 20000 : 30;
        EQUAL(d->CS.Status, VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE);
        EQUAL(d->CS.Length, length);
        check(i, data(&pool, i), length);
    }
    meet();
    OK(VipDisconnect(vi));
    OK(VipDestroyVi(vi));
    drop_pool(&pool);
}

static void scribbled_client(void) {
    struct pool pool = make_pool(1, 20000, NULL);
    VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    connect_at(vi, "scribble");
    hear();
    for (int i = 0; i < 8; i++) {
        size_t length = i % 2 ? 20000 : 30;
        VIP_DESCRIPTOR *d;
        fill(i, data(&pool, 0), length);
        post_send(vi, &pool, 0, length);
        OK(take_send(vi, POLL, &d));
    }
    meet();
    OK(VipDisconnect(vi));
    OK(VipDestroyVi(vi));
    drop_pool(&pool);
}

/* Waiting costs no processor time. */
static void waiting_server(void) {
    struct pool pool = make_pool(2, 8, NULL);
    VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    post_recv(vi, &pool, 0, 8);
    post_recv(vi, &pool, 1, 8);
    connect_at(vi, "waiting");
    struct timespec before, after;
    VIP_DESCRIPTOR *d;
    OK(VipRecvWait(vi, 5000, &d));
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    double began = now();
    tell(0);
    OK(VipRecvWait(vi, VIP_INFINITE, &d));
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    CHECK(now() - began > 0.4);
    double used = after.tv_sec - before.tv_sec + (after.tv_nsec - before.tv_nsec) * 1e-9;
    if (used > 0.02) fprintf(stderr, "%.3f s of processor time\n", used);
    CHECK(used < 0.02);
    meet();
    OK(VipDisconnect(vi));
    OK(VipDestroyVi(vi));
    drop_pool(&pool);
}

static void waiting_client(void) {
    struct pool pool = make_pool(1, 8, NULL);
    VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    connect_at(vi, "waiting");
    VIP_DESCRIPTOR *d;
    post_send(vi, &pool, 0, 8);
    OK(take_send(vi, POLL, &d));
    hear();
    usleep(500000);
    post_send(vi, &pool, 0, 8);
    OK(take_send(vi, POLL, &d));
    meet();
    OK(VipDisconnect(vi));
    OK(VipDestroyVi(vi));
    drop_pool(&pool);
}

/* A kernel that lets no process at another's memory, as in some containers: large messages go another way. One refusal is enough. */
static void refuse(void) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof rules / sizeof *rules, rules};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) == 0);
    CHECK(process_vm_readv(getpid(), NULL, 0, NULL, 0, 0) == -1 && errno == EPERM);
}

static void refused_server(void) {
    refuse();
    sizes_server();
}

static void refused_client(void) {
    refuse();
    sizes_client();
}

static void refused_both_ways(void) {
    refuse();
    both_ways();
}

/* Messages that are split, more of them than there is room for: each goes on where it had to wait. */
enum { PARTS = 40, PART = 100000, SPLIT_MESSAGES = 4 };

static void refused_split_server(void) {
    struct pool pool = make_pool(PARTS, PART, NULL);
    VIP_VI_HANDLE vi = make_vi(SPLIT, NULL, NULL);
    for (int i = 0; i < PARTS; i++) post_recv(vi, &pool, i, PART);
    connect_at(vi, "refused");
    char *whole = malloc(PARTS * PART);
    meet();
    for (int i = 0; i < PARTS; i++) {
        VIP_DESCRIPTOR *d;
        OK(take_recv(vi, POLL, &d));
        EQUAL(d->CS.Length, PART);
        EQUAL(!(d->CS.Status & VIP_STATUS_CONTINUES), i % 10 == 9);
        memcpy(whole + i * PART, (char *)d + 64, PART);
    }
    for (int i = 0; i < SPLIT_MESSAGES; i++) check(i, whole + i * 10 * PART, 10 * PART);
    free(whole);
    meet();
    OK(VipDisconnect(vi));
    OK(VipDestroyVi(vi));
    drop_pool(&pool);
}

static void refused_split_client(void) {
    refuse();
    struct pool pool = make_pool(SPLIT_MESSAGES, ROOM, NULL);
    VIP_VI_HANDLE vi = make_vi(SPLIT, NULL, NULL);
    connect_at(vi, "refused");
    for (int i = 0; i < SPLIT_MESSAGES; i++) {
        fill(i, data(&pool, i), 10 * PART);
        post_send(vi, &pool, i, 10 * PART);
    }
    VIP_DESCRIPTOR *d;
    meet();
    for (int i = 0; i < SPLIT_MESSAGES; i++) OK(take_send(vi, WAIT, &d));
    meet();
    OK(VipDisconnect(vi));
    OK(VipDestroyVi(vi));
    drop_pool(&pool);
}

/* A message that was dropped in its middle, as nobody expected the rest: the next one is whole. */
static void split_dropped_server(void) {
    struct pool pool = make_pool(2, 100, NULL);
    VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_UNRELIABLE | VIP_SERVICE_SPLIT, NULL, NULL);
    catch_errors();
    post_recv(vi, &pool, 0, 100);
    connect_at(vi, "dropped");
    VIP_DESCRIPTOR *d;
    OK(take_recv(vi, WAIT, &d));
    EQUAL(d->CS.Length, 100);
    CHECK(d->CS.Status & VIP_STATUS_CONTINUES);
    EQUAL(next_error().code, VIP_ERROR_RECVQ_EMPTY);
    post_recv(vi, &pool, 1, 100);
    meet();
    OK(take_recv(vi, WAIT, &d));
    EQUAL(d->CS.Length, 50);
    check(2, data(&pool, 1), 50);
    meet();
    OK(VipDisconnect(vi));
    OK(VipDestroyVi(vi));
    drop_pool(&pool);
}

static void split_dropped_client(void) {
    struct pool pool = make_pool(1, 300, NULL);
    VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_UNRELIABLE | VIP_SERVICE_SPLIT, NULL, NULL);
    connect_at(vi, "dropped");
    VIP_DESCRIPTOR *d;
    fill(1, data(&pool, 0), 300);
    post_send(vi, &pool, 0, 300);
    OK(take_send(vi, POLL, &d));
    meet();
    fill(2, data(&pool, 0), 50);
    post_send(vi, &pool, 0, 50);
    OK(take_send(vi, POLL, &d));
    meet();
    OK(VipDisconnect(vi));
    OK(VipDestroyVi(vi));
    drop_pool(&pool);
}

/* RDMA has no other way, but to memory that both map, and to another host: it fails, and what went before has arrived. */
static void refused_rdma_server(void) {
    catch_errors();
    struct pool pool = make_pool(2, 1000, NULL);
    VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    post_recv(vi, &pool, 0, 1000);
    connect_at(vi, "refused");
    memset(data(&pool, 1), 0x11, 1000);
    VIP_MEM_ATTRIBUTES open = {NULL, VIP_TRUE, VIP_TRUE};
    OK(VipSetMemAttributes(nic, pool.base, pool.handle, &open));
    tell((int64_t)(uintptr_t)data(&pool, 1));
    tell(pool.handle);
    VIP_DESCRIPTOR *d;
    OK(take_recv(vi, WAIT, &d));
    check(1, data(&pool, 0), 1000);
    if (allocates() || far) {
        meet();
        check(1, data(&pool, 1), 1000);
    } else {
        wait_state(vi, VIP_STATE_ERROR);
        for (int i = 0; i < 1000; i++) EQUAL(data(&pool, 1)[i], 0x11);
    }
    OK(VipDisconnect(vi));
    OK(VipDestroyVi(vi));
    drop_pool(&pool);
}

static void refused_rdma_client(void) {
    refuse();
    catch_errors();
    struct pool pool = make_pool(1, 1000, NULL);
    VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    connect_at(vi, "refused");
    int64_t address = hear(), handle = hear();
    VIP_DESCRIPTOR *d;
    fill(1, data(&pool, 0), 1000);
    post_send(vi, &pool, 0, 1000);
    OK(take_send(vi, POLL, &d));
    OK(VipPostSend(vi, rdma_to(&pool, VIP_CONTROL_OP_RDMAWRITE, address, handle, 1000), pool.handle));
    if (allocates() || far) {
        OK(take_send(vi, POLL, &d));
        meet();
    } else {
        EQUAL(take_send(vi, POLL, &d), VIP_DESCRIPTOR_ERROR);
        EQUAL(d->CS.Status, VIP_STATUS_DONE | VIP_STATUS_OP_RDMA_WRITE | VIP_STATUS_TRANSPORT_ERROR);
        EQUAL(state(vi), VIP_STATE_ERROR);
    }
    OK(VipDisconnect(vi));
    OK(VipDestroyVi(vi));
    drop_pool(&pool);
}

const struct example examples[] = {
    {"sizes", sizes_server, sizes_client, 0},
    {"segments", segments_server, segments_client, 0},
    {"immediate", immediate_server, immediate_client, 0},
    {"stream", stream_server, stream_client, 0},
    {"both_ways", both_ways, both_ways, 0},
    {"rdma", rdma_server, rdma_client, 0},
    {"split", split_server, split_client, 0},
    {"scribbled", scribbled_server, scribbled_client, 0},
    {"waiting", waiting_server, waiting_client, MEASURES},
    {"refused", refused_server, refused_client, 0},
    {"refused_to_one", sizes_server, refused_client, 0},
    {"refused_to_other", refused_server, sizes_client, 0},
    {"refused_both_ways", refused_both_ways, refused_both_ways, 0},
    {"refused_split", refused_split_server, refused_split_client, 0},
    {"split_dropped", split_dropped_server, split_dropped_client, 0},
    {"refused_rdma", refused_rdma_server, refused_rdma_client, 0},
    {0},
};

/* Children of fork(): they have no part in what their parent has opened, and what they open is their own. */
#include "two.h"

static pid_t begin(void (*part)(void)) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        part();
        _exit(0);
    }
    return child;
}

static void end(pid_t child) {
    int status;
    EQUAL(waitpid(child, &status, 0), child);
    EQUAL(status, 0);
}

static VIP_NIC_HANDLE parents_nic;
static VIP_PROTECTION_HANDLE tag;
static VIP_CQ_HANDLE cq;
static VIP_VI_HANDLE vi;
static struct pool pool;
static char *allocated;
static VIP_MEM_HANDLE allocated_region;
static int came[2], go[2];
static char byte;

/* Nothing that the parent has works. */
static void has_nothing(void) {
    VIP_NIC_ATTRIBUTES nics;
    VIP_MEM_ATTRIBUTES with = {NULL, VIP_TRUE, VIP_TRUE};
    VIP_PROTECTION_HANDLE new_tag;
    VIP_VI_ATTRIBUTES vis = attributes(VIP_SERVICE_RELIABLE_DELIVERY);
    VIP_VI_HANDLE new_vi;
    VIP_MEM_HANDLE region;
    VIP_DESCRIPTOR *d;
    VIP_BOOLEAN flag;
    VIP_PVOID memory;
    EQUAL(VipQueryNic(nic, &nics), VIP_INVALID_PARAMETER);
    EQUAL(VipCreatePtag(nic, &new_tag), VIP_INVALID_PARAMETER);
    EQUAL(VipDestroyPtag(nic, tag), VIP_INVALID_PARAMETER);
    EQUAL(VipRegisterMem(nic, pool.base, 100, &with, &region), VIP_INVALID_PARAMETER);
    EQUAL(VipDeregisterMem(nic, pool.base, pool.handle), VIP_INVALID_PARAMETER);
    EQUAL(VipAllocateMem(nic, 100, &memory), VIP_INVALID_PARAMETER);
    EQUAL(VipFreeMem(nic, allocated), VIP_INVALID_PARAMETER);
    EQUAL(VipCreateVi(nic, &vis, NULL, NULL, &new_vi), VIP_INVALID_PARAMETER);
    EQUAL(VipPostRecv(vi, descriptor(&pool, 1), pool.handle), VIP_INVALID_PARAMETER);
    EQUAL(VipRecvDone(vi, &d), VIP_INVALID_PARAMETER);
    EQUAL(VipRecvWait(vi, 10, &d), VIP_INVALID_PARAMETER);
    EQUAL(VipDisconnect(vi), VIP_INVALID_PARAMETER);
    EQUAL(VipDestroyVi(vi), VIP_INVALID_PARAMETER);
    EQUAL(VipCQDone(cq, &new_vi, &flag), VIP_INVALID_PARAMETER);
    EQUAL(VipDestroyCQ(cq), VIP_INVALID_PARAMETER);
    EQUAL(VipCloseNic(nic), VIP_INVALID_PARAMETER);
}

static void query(struct pool *which, VIP_RETURN wanted) {
    VIP_MEM_ATTRIBUTES with;
    EQUAL(VipQueryMem(nic, which->base, which->handle, &with), wanted);
}

/* The child of a child is as the child. */
static void has_its_own(void) {
    has_nothing();
    parents_nic = nic;
    OK(VipOpenNic("/dev/via_lo", &nic));
    CHECK(nic != parents_nic);
    query(&pool, VIP_INVALID_PARAMETER);
    VIP_PVOID memory;
    OK(VipAllocateMem(nic, 100, &memory));
    CHECK(memory != allocated); /* which the program may still read */
    EQUAL(strcmp(allocated, "parent's"), 0);
    strcpy(memory, "child's");
    struct pool own = make_pool(2, 1000, NULL);
    query(&own, VIP_SUCCESS);
    VIP_VI_HANDLE own_vi = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    post_recv(own_vi, &own, 0, 100);
    EQUAL(write(came[1], &byte, 1), 1);
    EQUAL(read(go[0], &byte, 1), 1);
    query(&own, VIP_SUCCESS);
    EQUAL(strcmp(memory, "child's"), 0);
    OK(VipCloseNic(nic));
}

/* Registered, allocated and posted before, while and after a child does the same. */
static void apart(void) {
    VIP_PVOID memory;
    /* Less than 16 GB of addresses are set aside then, of which valgrind keeps books. */
    EQUAL(setrlimit(RLIMIT_FSIZE, &(struct rlimit){64 << 20, RLIM_INFINITY}), 0);
    OK(VipCreatePtag(nic, &tag));
    OK(VipCreateCQ(nic, 10, &cq));
    vi = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    pool = make_pool(2, 1000, tag);
    post_recv(vi, &pool, 0, 100);
    OK(VipAllocateMem(nic, 100, &memory));
    allocated = memory;
    strcpy(allocated, "parent's");
    OK(VipRegisterMem(nic, allocated, 100, NULL, &allocated_region));
    EQUAL(pipe(came), 0);
    EQUAL(pipe(go), 0);
    pid_t child = begin(has_its_own);
    EQUAL(read(came[0], &byte, 1), 1);
    struct pool more = make_pool(2, 1000, NULL);
    query(&more, VIP_SUCCESS);
    OK(VipAllocateMem(nic, 100, &memory));
    EQUAL(((char *)memory)[0], 0); /* nothing of the child's */
    strcpy(memory, "more");
    EQUAL(write(go[1], &byte, 1), 1);
    end(child);
    query(&more, VIP_SUCCESS);
    query(&pool, VIP_SUCCESS);
    EQUAL(strcmp(memory, "more"), 0);
    EQUAL(strcmp(allocated, "parent's"), 0);
    VIP_DESCRIPTOR *d;
    EQUAL(VipRecvDone(vi, &d), VIP_NOT_DONE);
    OK(VipDestroyVi(vi));
    OK(VipDeregisterMem(nic, allocated, allocated_region));
    drop_pool(&more);
    drop_pool(&pool);
}

static void sleeps(void) {
    EQUAL(read(go[0], &byte, 1), 1);
}

static void *waits(void *for_whom) {
    struct address at = address("waits"), from = {{0}};
    VIP_VI_ATTRIBUTES theirs;
    VIP_CONN_HANDLE asked;
    EQUAL(VipConnectWait(nic, NET(at), 300, NET(from), &theirs, &asked), VIP_TIMEOUT);
    return for_whom;
}

/* A child that was made while a thread of its parent waited for clients, or had heard one, does not hold the address, nor the client. */
static void does_not_listen(void) {
    pthread_t thread;
    struct address from = address("me"), to = address("waits");
    VIP_VI_ATTRIBUTES theirs;
    vi = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    EQUAL(pipe(go), 0);
    EQUAL(pthread_create(&thread, NULL, waits, NULL), 0);
    usleep(50000);
    pid_t child = begin(sleeps);
    EQUAL(pthread_join(thread, NULL), 0);
    double began = now();
    EQUAL(VipConnectRequest(vi, NET(from), NET(to), 2000, &theirs), VIP_NO_MATCH);
    CHECK(now() - began < patience());
    EQUAL(write(go[1], &byte, 1), 1);
    end(child);
    OK(VipDestroyVi(vi));
}

/* Connections of children among themselves and with their parent, by what is their own. */
static void talks(void) {
    OK(VipOpenNic("/dev/via_lo", &nic));
    VIP_VI_HANDLE own = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    struct pool mine = make_pool(2, 100000, NULL);
    VIP_DESCRIPTOR *d;
    post_recv(own, &mine, 0, 100000);
    OK(request(own, "family", 5000));
    memset(data(&mine, 1), 'c', 100000);
    post_send(own, &mine, 1, 100000);
    OK(take_send(own, WAIT, &d));
    OK(take_recv(own, WAIT, &d));
    EQUAL(data(&mine, 0)[99999], 'p');
    OK(VipDisconnect(own));
    OK(VipCloseNic(nic));
}

static void family(void) {
    pool = make_pool(2, 100000, NULL);
    for (int i = 0; i < 3; i++) {
        VIP_DESCRIPTOR *d;
        vi = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
        post_recv(vi, &pool, 0, 100000);
        pid_t child = begin(talks);
        OK(VipConnectAccept(wait_request("family"), vi));
        OK(take_recv(vi, WAIT, &d));
        EQUAL(data(&pool, 0)[99999], 'c');
        memset(data(&pool, 1), 'p', 100000);
        post_send(vi, &pool, 1, 100000);
        OK(take_send(vi, WAIT, &d));
        wait_state(vi, VIP_STATE_ERROR);
        OK(VipDisconnect(vi));
        OK(VipDestroyVi(vi));
        end(child);
    }
    drop_pool(&pool);
}

const struct example examples[] = {
    {"apart", NULL, apart, ALONE},
    {"does_not_listen", NULL, does_not_listen, ALONE},
    {"family", NULL, family, ALONE},
    {0},
};

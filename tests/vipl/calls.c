/* What each call returns, in one process, without a connection: good and bad handles, attributes, addresses, states. */
#include "two.h"

static void *const noise[] = {NULL, (void *)1, (void *)~0UL, (void *)0x123456789abcUL};
enum { NOISE = sizeof noise / sizeof *noise };

static void nics(void) {
    VIP_NIC_HANDLE other_nic, none;
    VIP_NIC_ATTRIBUTES told;
    OK(VipOpenNic("VINIC0", &other_nic));
    CHECK(other_nic != nic);
    OK(VipQueryNic(other_nic, &told));
    EQUAL(strcmp(told.Name, "VINIC0"), 0);
    CHECK(told.MaxTransferSize >= 65472 && told.MaxDiscriminatorLen >= 32 && told.NicAddressLen == 6 && told.ThreadSafe);
    EQUAL(told.ReliabilityLevelSupport, 7);
    EQUAL(told.RDMAReadSupport, VIP_SERVICE_RELIABLE_DELIVERY | VIP_SERVICE_RELIABLE_RECEPTION);
    OK(VipCloseNic(other_nic));
    EQUAL(VipCloseNic(other_nic), VIP_INVALID_PARAMETER);
    EQUAL(VipQueryNic(other_nic, &told), VIP_INVALID_PARAMETER);
    EQUAL(VipQueryNic(nic, NULL), VIP_INVALID_PARAMETER);
    EQUAL(VipOpenNic("/dev/null", &none), VIP_INVALID_PARAMETER);
    EQUAL(VipOpenNic(NULL, &none), VIP_INVALID_PARAMETER);
    EQUAL(VipOpenNic("nic0", NULL), VIP_INVALID_PARAMETER);
    for (int i = 0; i < NOISE; i++) {
        EQUAL(VipCloseNic(noise[i]), VIP_INVALID_PARAMETER);
        EQUAL(VipQueryNic(noise[i], &told), VIP_INVALID_PARAMETER);
    }
}

static void tags(void) {
    VIP_PROTECTION_HANDLE tag;
    OK(VipCreatePtag(nic, &tag));
    EQUAL(VipCreatePtag(NULL, &tag), VIP_INVALID_PARAMETER);
    EQUAL(VipCreatePtag(nic, NULL), VIP_INVALID_PARAMETER);
    VIP_VI_ATTRIBUTES with = attributes(VIP_SERVICE_UNRELIABLE);
    VIP_VI_HANDLE vi;
    with.Ptag = tag;
    OK(VipCreateVi(nic, &with, NULL, NULL, &vi));
    OK(VipDestroyVi(vi));
    struct pool pool = make_pool(1, 64, tag);
    EQUAL(VipDestroyPtag(nic, tag), VIP_ERROR_RESOURCE);
    drop_pool(&pool);
    OK(VipDestroyPtag(nic, tag));
    EQUAL(VipDestroyPtag(nic, tag), VIP_INVALID_PARAMETER);
    EQUAL(VipCreateVi(nic, &with, NULL, NULL, &vi), VIP_INVALID_PTAG);
    for (int i = 0; i < NOISE; i++) EQUAL(VipDestroyPtag(nic, noise[i]), VIP_INVALID_PARAMETER);
}

static void memory(void) {
    static char area[100000];
    VIP_MEM_HANDLE one, two;
    VIP_MEM_ATTRIBUTES with = {NULL, VIP_TRUE, VIP_FALSE}, told;
    OK(VipRegisterMem(nic, area, sizeof area, &with, &one));
    OK(VipRegisterMem(nic, area + 10, 1000, NULL, &two));
    CHECK(one && two && one != two);
    OK(VipQueryMem(nic, area + 99999, one, &told));
    CHECK(told.Ptag == NULL && told.EnableRdmaWrite && !told.EnableRdmaRead);
    OK(VipQueryMem(nic, area + 10, two, &told));
    CHECK(!told.EnableRdmaWrite && !told.EnableRdmaRead);
    EQUAL(VipQueryMem(nic, area + 9, two, &told), VIP_INVALID_PARAMETER);
    EQUAL(VipQueryMem(nic, area + 1010, two, &told), VIP_INVALID_PARAMETER);
    with.EnableRdmaRead = VIP_TRUE;
    OK(VipSetMemAttributes(nic, area + 10, two, &with));
    OK(VipQueryMem(nic, area + 10, two, &told));
    CHECK(told.EnableRdmaWrite && told.EnableRdmaRead);
    with.Ptag = (void *)77;
    EQUAL(VipSetMemAttributes(nic, area + 10, two, &with), VIP_INVALID_PTAG);
    EQUAL(VipRegisterMem(nic, area, 10, &with, &two), VIP_INVALID_PTAG);
    EQUAL(VipSetMemAttributes(nic, area + 10, two, NULL), VIP_INVALID_PARAMETER);
    EQUAL(VipDeregisterMem(nic, area + 11, two), VIP_INVALID_PARAMETER);
    EQUAL(VipDeregisterMem(nic, area, two), VIP_INVALID_PARAMETER);
    EQUAL(VipDeregisterMem(nic, area + 10, two ^ 1), VIP_INVALID_PARAMETER);
    OK(VipDeregisterMem(nic, area + 10, two));
    EQUAL(VipDeregisterMem(nic, area + 10, two), VIP_INVALID_PARAMETER);
    OK(VipDeregisterMem(nic, area, one));
    EQUAL(VipRegisterMem(nic, area, 0, NULL, &one), VIP_INVALID_PARAMETER);
    EQUAL(VipRegisterMem(nic, NULL, 10, NULL, &one), VIP_INVALID_PARAMETER);
    EQUAL(VipRegisterMem(nic, area, 10, NULL, NULL), VIP_INVALID_PARAMETER);
    EQUAL(VipRegisterMem(nic, area, ~0UL - 10, NULL, &one), VIP_INVALID_PARAMETER);
    EQUAL(VipRegisterMem(nic, (void *)4096, 10, NULL, &one), VIP_ERROR_RESOURCE);
    EQUAL(VipRegisterMem(NULL, area, 10, NULL, &one), VIP_INVALID_PARAMETER);
}

/* What the library has allocated is memory like any other, and zero; it goes back only when no region has any of it. */
static void allocated_memory(void) {
    VIP_PVOID one, two, again;
    VIP_MEM_HANDLE region;
    VIP_NIC_HANDLE second;
    OK(VipAllocateMem(nic, 1, &one));
    OK(VipAllocateMem(nic, 100000, &two));
    EQUAL((uintptr_t)one % 4096, 0);
    for (int i = 0; i < 100000; i++) EQUAL(((char *)two)[i], 0);
    memset(two, 7, 100000);
    OK(VipRegisterMem(nic, (char *)two + 50000, 10, NULL, &region));
    EQUAL(VipFreeMem(nic, two), VIP_ERROR_RESOURCE);
    OK(VipFreeMem(nic, one));
    EQUAL(VipFreeMem(nic, one), VIP_INVALID_PARAMETER);
    OK(VipDeregisterMem(nic, (char *)two + 50000, region));
    EQUAL(VipFreeMem(nic, (char *)two + 4096), VIP_INVALID_PARAMETER);
    EQUAL(VipFreeMem(nic, NULL), VIP_INVALID_PARAMETER);
    EQUAL(VipFreeMem(NULL, two), VIP_INVALID_PARAMETER);
    OK(VipOpenNic("nic0", &second));
    EQUAL(VipFreeMem(second, two), VIP_INVALID_PARAMETER);
    OK(VipFreeMem(nic, two));
    OK(VipAllocateMem(second, 100000, &again));
    CHECK(again == one || again == two);
    for (int i = 0; i < 100000; i++) EQUAL(((char *)again)[i], 0);
    OK(VipCloseNic(second)); /* with it what it has allocated */
    EQUAL(VipAllocateMem(second, 1, &one), VIP_INVALID_PARAMETER);
    EQUAL(VipAllocateMem(nic, 0, &one), VIP_INVALID_PARAMETER);
    EQUAL(VipAllocateMem(nic, 1, NULL), VIP_INVALID_PARAMETER);
    EQUAL(VipAllocateMem(nic, ~0UL, &one), VIP_ERROR_RESOURCE);
}

static void posted_memory(void) {
    struct pool pool = make_pool(2, 100, NULL);
    VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_UNRELIABLE, NULL, NULL);
    post_recv(vi, &pool, 0, 100);
    EQUAL(VipDeregisterMem(nic, pool.base, pool.handle), VIP_ERROR_RESOURCE);
    OK(VipDestroyVi(vi)); /* with a descriptor posted: programs that end do that */
    drop_pool(&pool);
}

static void vis(void) {
    VIP_VI_HANDLE vi;
    VIP_CQ_HANDLE cq;
    OK(VipCreateCQ(nic, 16, &cq));
    for (int i = 0; i < 3; i++) OK(VipDestroyVi(make_vi(levels[i], NULL, cq)));
    struct {
        VIP_VI_ATTRIBUTES with;
        VIP_RETURN wanted;
    } wrong[] = {
        {{0, 1000, 0, NULL, 0, 0}, VIP_INVALID_RELIABILITY_LEVEL},
        {{3, 1000, 0, NULL, 0, 0}, VIP_INVALID_RELIABILITY_LEVEL},
        {{8, 1000, 0, NULL, 0, 0}, VIP_INVALID_RELIABILITY_LEVEL},
        {{1, 0, 0, NULL, 0, 0}, VIP_INVALID_MTU},
        {{1, nic_attributes.MaxTransferSize + 1, 0, NULL, 0, 0}, VIP_INVALID_MTU},
        {{1, 1000, (void *)1, NULL, 0, 0}, VIP_INVALID_QOS},
        {{1, 1000, 0, (void *)1, 0, 0}, VIP_INVALID_PTAG},
        {{1, 1000, 0, NULL, 0, 1}, VIP_INVALID_RDMAREAD},
    };
    vi = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, cq, cq);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        VIP_VI_HANDLE none;
        EQUAL(VipCreateVi(nic, &wrong[i].with, NULL, NULL, &none), wrong[i].wanted);
        EQUAL(VipSetViAttributes(vi, &wrong[i].with), wrong[i].wanted);
    }
    VIP_VI_ATTRIBUTES with = {VIP_SERVICE_RELIABLE_RECEPTION, 5000, 0, NULL, VIP_FALSE, VIP_TRUE}, told;
    OK(VipSetViAttributes(vi, &with));
    VIP_VI_STATE now_state;
    VIP_BOOLEAN send_empty, receive_empty;
    OK(VipQueryVi(vi, &now_state, &told, &send_empty, &receive_empty));
    CHECK(now_state == VIP_STATE_IDLE && send_empty && receive_empty);
    CHECK(told.ReliabilityLevel == VIP_SERVICE_RELIABLE_RECEPTION && told.MaxTransferSize == 5000 && told.EnableRdmaRead && !told.EnableRdmaWrite);
    struct pool pool = make_pool(2, 100, NULL);
    post_recv(vi, &pool, 0, 100);
    OK(VipQueryVi(vi, &now_state, &told, &send_empty, &receive_empty));
    CHECK(send_empty && !receive_empty);
    EQUAL(VipCreateVi(nic, NULL, NULL, NULL, &vi), VIP_INVALID_PARAMETER);
    EQUAL(VipCreateVi(nic, &with, (void *)5, NULL, &vi), VIP_INVALID_PARAMETER);
    EQUAL(VipCreateVi(nic, &with, NULL, (void *)5, &vi), VIP_INVALID_PARAMETER);
    EQUAL(VipCreateVi(nic, &with, cq, (void *)5, &vi), VIP_INVALID_PARAMETER);
    EQUAL(VipCreateVi(nic, &with, NULL, NULL, NULL), VIP_INVALID_PARAMETER);
    EQUAL(VipDestroyCQ(cq), VIP_ERROR_RESOURCE);
    OK(VipDestroyVi(vi));
    OK(VipDestroyCQ(cq));
    drop_pool(&pool);
    VIP_DESCRIPTOR *d;
    for (int i = 0; i < NOISE; i++) {
        EQUAL(VipDestroyVi(noise[i]), VIP_INVALID_PARAMETER);
        EQUAL(VipDisconnect(noise[i]), VIP_INVALID_PARAMETER);
        EQUAL(VipQueryVi(noise[i], &now_state, &told, &send_empty, &receive_empty), VIP_INVALID_PARAMETER);
        EQUAL(VipSetViAttributes(noise[i], &with), VIP_INVALID_PARAMETER);
        EQUAL(VipSendDone(noise[i], &d), VIP_INVALID_PARAMETER);
        EQUAL(VipRecvDone(noise[i], &d), VIP_INVALID_PARAMETER);
        EQUAL(VipSendWait(noise[i], 1, &d), VIP_INVALID_PARAMETER);
        EQUAL(VipRecvWait(noise[i], 1, &d), VIP_INVALID_PARAMETER);
        EQUAL(VipConnectPeerDone(noise[i], &told), VIP_INVALID_PARAMETER);
        EQUAL(VipConnectPeerWait(noise[i], &told), VIP_INVALID_PARAMETER);
        EQUAL(VipConnectAccept(noise[i], vi), VIP_INVALID_PARAMETER);
        EQUAL(VipConnectReject(noise[i]), VIP_INVALID_PARAMETER);
    }
    EQUAL(VipDestroyVi(vi), VIP_INVALID_PARAMETER);
}

static void idle(void) {
    struct pool pool = make_pool(4, 100, NULL);
    VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    VIP_DESCRIPTOR *d = (void *)1;
    EQUAL(VipRecvDone(vi, &d), VIP_DESCRIPTOR_ERROR);
    CHECK(d == NULL);
    d = (void *)1;
    EQUAL(VipSendDone(vi, &d), VIP_DESCRIPTOR_ERROR);
    CHECK(d == NULL);
    EQUAL(VipRecvWait(vi, 10, &d), VIP_DESCRIPTOR_ERROR);
    EQUAL(VipSendWait(vi, 10, &d), VIP_DESCRIPTOR_ERROR);
    EQUAL(VipRecvDone(vi, NULL), VIP_INVALID_PARAMETER);
    /* A receive waits for a connection, a send is flushed. */
    post_recv(vi, &pool, 0, 100);
    EQUAL(VipRecvDone(vi, &d), VIP_NOT_DONE);
    CHECK(d == NULL);
    double began = now();
    EQUAL(VipRecvWait(vi, 50, &d), VIP_TIMEOUT);
    CHECK(now() - began > 0.045 && now() - began < 2);
    post_send(vi, &pool, 1, 100);
    EQUAL(VipSendDone(vi, &d), VIP_DESCRIPTOR_ERROR);
    CHECK(d == posted(&pool, 1));
    EQUAL(d->CS.Status, VIP_STATUS_DONE | VIP_STATUS_DESC_FLUSHED_ERROR | VIP_STATUS_OP_SEND);
    OK(VipDisconnect(vi)); /* of no connection: nothing */
    OK(VipDestroyVi(vi));
    drop_pool(&pool);
}

static void cqs(void) {
    VIP_CQ_HANDLE cq;
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN receive;
    OK(VipCreateCQ(nic, 1, &cq));
    EQUAL(VipCQDone(cq, &vi, &receive), VIP_NOT_DONE);
    double began = now();
    EQUAL(VipCQWait(cq, 50, &vi, &receive), VIP_TIMEOUT);
    CHECK(now() - began > 0.045 && now() - began < 2);
    OK(VipResizeCQ(cq, 1024));
    EQUAL(VipResizeCQ(cq, 0), VIP_INVALID_PARAMETER);
    EQUAL(VipResizeCQ(cq, nic_attributes.MaxCQEntries + 1), VIP_ERROR_RESOURCE);
    EQUAL(VipCreateCQ(nic, 0, &cq), VIP_INVALID_PARAMETER);
    EQUAL(VipCreateCQ(nic, nic_attributes.MaxCQEntries + 1, &cq), VIP_ERROR_RESOURCE);
    EQUAL(VipCreateCQ(nic, 10, NULL), VIP_INVALID_PARAMETER);
    EQUAL(VipCQDone(cq, NULL, &receive), VIP_INVALID_PARAMETER);
    OK(VipDestroyCQ(cq));
    for (int i = -1; i < NOISE; i++) {
        VIP_CQ_HANDLE none = i < 0 ? cq : noise[i];
        EQUAL(VipDestroyCQ(none), VIP_INVALID_PARAMETER);
        EQUAL(VipResizeCQ(none, 10), VIP_INVALID_PARAMETER);
        EQUAL(VipCQDone(none, &vi, &receive), VIP_INVALID_PARAMETER);
        EQUAL(VipCQWait(none, 1, &vi, &receive), VIP_INVALID_PARAMETER);
    }
}

static void queues_on_a_cq(void) {
    VIP_CQ_HANDLE cq;
    VIP_VI_HANDLE told;
    VIP_BOOLEAN receive;
    VIP_DESCRIPTOR *d;
    OK(VipCreateCQ(nic, 10, &cq));
    VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_UNRELIABLE, cq, NULL);
    struct pool pool = make_pool(2, 10, NULL);
    post_send(vi, &pool, 0, 10);
    EQUAL(VipSendWait(vi, 10, &d), VIP_INVALID_PARAMETER); /* though it is done */
    OK(VipCQWait(cq, 1000, &told, &receive));
    CHECK(told == vi && !receive);
    EQUAL(VipSendDone(vi, &d), VIP_DESCRIPTOR_ERROR);
    CHECK(d == posted(&pool, 0));
    EQUAL(VipSendWait(vi, 10, &d), VIP_INVALID_PARAMETER); /* and if there is none */
    post_recv(vi, &pool, 1, 10);
    EQUAL(VipRecvWait(vi, 10, &d), VIP_TIMEOUT);
    OK(VipDestroyVi(vi));
    vi = make_vi(VIP_SERVICE_UNRELIABLE, NULL, cq);
    EQUAL(VipRecvWait(vi, 10, &d), VIP_INVALID_PARAMETER);
    post_recv(vi, &pool, 1, 10);
    EQUAL(VipRecvWait(vi, 10, &d), VIP_INVALID_PARAMETER);
    d = descriptor(&pool, 0);
    d->CS.Reserved = 1;
    OK(VipPostRecv(vi, d, pool.handle)); /* wrong, but behind another one */
    EQUAL(VipRecvWait(vi, 10, &d), VIP_INVALID_PARAMETER);
    post_send(vi, &pool, 0, 10);
    EQUAL(VipSendWait(vi, 10, &d), VIP_DESCRIPTOR_ERROR); /* of a queue without one */
    CHECK(d == posted(&pool, 0));
    OK(VipDestroyVi(vi));
    OK(VipDestroyCQ(cq));
    drop_pool(&pool);
}

static void names(void) {
    char room[40] = {0};
    VIP_NET_ADDRESS *net = (void *)room;
    char host[256], name[256];
    EQUAL(gethostname(host, sizeof host), 0);
    memset(room, 0x55, sizeof room);
    EQUAL(VipNSGetHostByName(nic, "localhost", net, 0), VIP_ERROR_NAMESERVICE); /* before VipNSInit */
    OK(VipNSInit(nic, NULL));
    OK(VipNSInit(nic, NULL));
    OK(VipNSGetHostByName(nic, "localhost", net, 0));
    EQUAL(net->HostAddressLen, nic_attributes.NicAddressLen);
    EQUAL(memcmp(net->HostAddress, "\0\0\177\0\0\1", 6), 0);
    EQUAL(room[10], 0x55); /* nothing behind the host's bytes */
    EQUAL(net->DiscriminatorLen, 0x5555);
    net->DiscriminatorLen = 0;
    VIP_ULONG length = sizeof name;
    OK(VipNSGetHostByAddr(nic, net, name, &length));
    EQUAL(length, strlen(name) + 1);
    length = 1;
    EQUAL(VipNSGetHostByAddr(nic, net, name, &length), VIP_ERROR_RESOURCE);
    EQUAL(length, strlen(name) + 1);
    EQUAL(VipNSGetHostByName(nic, "localhost", net, 1), VIP_ERROR_NAMESERVICE);
    EQUAL(VipNSGetHostByName(nic, "no such host.", net, 0), VIP_ERROR_NAMESERVICE);
    EQUAL(VipNSGetHostByName(nic, NULL, net, 0), VIP_INVALID_PARAMETER);
    EQUAL(VipNSGetHostByName(nic, "localhost", NULL, 0), VIP_INVALID_PARAMETER);
    OK(VipNSShutdown(nic));
    EQUAL(VipNSShutdown(nic), VIP_ERROR_NAMESERVICE);
    EQUAL(VipNSGetHostByAddr(nic, net, name, &length), VIP_ERROR_NAMESERVICE);
    EQUAL(VipNSInit(NULL, NULL), VIP_INVALID_PARAMETER);
}

static void management(void) {
    VIP_AUTODISCOVERY_LIST list;
    EQUAL(VipQuerySystemManagementInfo(nic, VIP_SMI_AUTODISCOVERY, &list), VIP_ERROR_NOT_SUPPORTED);
    EQUAL(VipQuerySystemManagementInfo(nic, 99, &list), VIP_INVALID_PARAMETER);
    EQUAL(VipQuerySystemManagementInfo(NULL, VIP_SMI_AUTODISCOVERY, &list), VIP_INVALID_PARAMETER);
}

static void never(VIP_PVOID context, VIP_NIC_HANDLE n, VIP_VI_HANDLE vi, VIP_DESCRIPTOR *d) {
    (void)context, (void)n, (void)vi, (void)d;
    abort();
}

static void never_cq(VIP_PVOID context, VIP_NIC_HANDLE n, VIP_VI_HANDLE vi, VIP_BOOLEAN receive) {
    (void)context, (void)n, (void)vi, (void)receive;
    abort();
}

static void handlers(void) {
    VIP_CQ_HANDLE cq;
    OK(VipCreateCQ(nic, 10, &cq));
    VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_UNRELIABLE, NULL, NULL);
    EQUAL(VipErrorCallback(NULL, NULL, NULL), VIP_INVALID_PARAMETER);
    EQUAL(VipSendNotify(NULL, NULL, never), VIP_INVALID_PARAMETER);
    EQUAL(VipRecvNotify(vi, NULL, NULL), VIP_INVALID_PARAMETER);
    EQUAL(VipCQNotify(NULL, NULL, never_cq), VIP_INVALID_PARAMETER);
    EQUAL(VipCQNotify(cq, NULL, NULL), VIP_INVALID_PARAMETER);
    /* They go with what they were registered for. */
    OK(VipSendNotify(vi, NULL, never));
    OK(VipRecvNotify(vi, NULL, never));
    OK(VipCQNotify(cq, NULL, never_cq));
    OK(VipDestroyVi(vi));
    OK(VipDestroyCQ(cq));
}

/* Descriptors that are not as they must be. */
static void descriptors(void) {
    catch_errors();
    VIP_PROTECTION_HANDLE tag, other_tag;
    OK(VipCreatePtag(nic, &tag));
    OK(VipCreatePtag(nic, &other_tag));
    struct pool pool = make_pool(4, 1000, tag), foreign = make_pool(4, 1000, other_tag);
    VIP_VI_ATTRIBUTES with = attributes(VIP_SERVICE_UNRELIABLE);
    with.Ptag = tag;
    with.MaxTransferSize = 900;
    VIP_VI_HANDLE vi;
    OK(VipCreateVi(nic, &with, NULL, NULL, &vi));
    /* Of these not even the status can be written. */
    VIP_DESCRIPTOR *d = descriptor(&pool, 0), *aside = (VIP_DESCRIPTOR *)((char *)d + 8), local;
    VIP_DESCRIPTOR *unusable[] = {aside, &local, NULL, descriptor(&foreign, 0)};
    for (int i = 0; i < 4; i++) {
        EQUAL(VipPostRecv(vi, unusable[i], i == 3 ? foreign.handle : pool.handle), VIP_INVALID_PARAMETER);
        struct error told = next_error();
        CHECK(told.code == VIP_ERROR_POST_DESC && told.vi == vi && told.descriptor == unusable[i]);
        EQUAL(VipPostSend(vi, unusable[i], i == 3 ? foreign.handle : pool.handle), VIP_INVALID_PARAMETER);
        EQUAL(next_error().code, VIP_ERROR_POST_DESC);
    }
    EQUAL(VipPostSend(vi, d, 0), VIP_INVALID_PARAMETER);
    EQUAL(next_error().code, VIP_ERROR_POST_DESC);
    EQUAL(errors_left(), 0);
    /* The others say it themselves. */
    struct {
        int part, value, receive;
        VIP_UINT32 wanted;
    } wrong[] = {
        {0, 1, 0, VIP_STATUS_FORMAT_ERROR},          /* reserved word */
        {0, 1, 1, VIP_STATUS_FORMAT_ERROR},
        {1, 0x10, 0, VIP_STATUS_FORMAT_ERROR},       /* reserved control bits */
        {1, VIP_CONTROL_OP_RESERVED, 0, VIP_STATUS_FORMAT_ERROR},
        {1, VIP_CONTROL_OP_RDMAWRITE, 1, VIP_STATUS_FORMAT_ERROR}, /* receive queues only receive */
        {1, VIP_CONTROL_OP_RDMAREAD, 1, VIP_STATUS_FORMAT_ERROR},
        {1, VIP_CONTROL_OP_RDMAREAD | VIP_CONTROL_IMMEDIATE, 0, VIP_STATUS_FORMAT_ERROR},
        {2, 17, 0, VIP_STATUS_FORMAT_ERROR},         /* too many segments */
        {2, 17, 1, VIP_STATUS_FORMAT_ERROR},
        {3, 99, 0, VIP_STATUS_LENGTH_ERROR},         /* not the sum of the segments */
        {4, 0, 0, VIP_STATUS_PROTECTION_ERROR},      /* no region */
        {4, 0, 1, VIP_STATUS_PROTECTION_ERROR},
        {4, foreign.handle, 0, VIP_STATUS_PROTECTION_ERROR},
        {4, foreign.handle, 1, VIP_STATUS_PROTECTION_ERROR},
        {5, 100000, 0, VIP_STATUS_PROTECTION_ERROR}, /* beyond the region */
        {6, 901, 0, VIP_STATUS_LENGTH_ERROR},        /* more than the Virtual Interface transfers at once */
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        d = descriptor(&pool, 1);
        d->CS.Length = d->DS[0].Local.Length = 100;
        switch (wrong[i].part) {
        case 0: d->CS.Reserved = wrong[i].value; break;
        case 1: d->CS.Control = wrong[i].value; break;
        case 2: d->CS.SegCount = wrong[i].value; break;
        case 3: d->CS.Length = wrong[i].value; break;
        case 4: d->DS[0].Local.Handle = wrong[i].value; break;
        case 5: d->CS.Length = d->DS[0].Local.Length = wrong[i].value; break;
        case 6: d->CS.Length = d->DS[0].Local.Length = wrong[i].value; break;
        }
        VIP_DESCRIPTOR *done;
        OK((wrong[i].receive ? VipPostRecv : VipPostSend)(vi, d, pool.handle));
        EQUAL((wrong[i].receive ? VipRecvDone : VipSendDone)(vi, &done), VIP_DESCRIPTOR_ERROR);
        CHECK(done == d);
        VIP_UINT32 flushed = wrong[i].receive ? 0 : VIP_STATUS_DESC_FLUSHED_ERROR; /* there is no connection */
        EQUAL(d->CS.Status & VIP_STATUS_ERROR_MASK & ~flushed, wrong[i].wanted);
        CHECK(d->CS.Status & VIP_STATUS_DONE);
    }
    /* One that is longer than its region, but not its segments. */
    VIP_MEM_HANDLE small;
    OK(VipRegisterMem(nic, posted(&pool, 2), 32, NULL, &small));
    d = descriptor(&pool, 2);
    VIP_VI_HANDLE any = make_vi(VIP_SERVICE_UNRELIABLE, NULL, NULL);
    OK(VipPostRecv(any, d, small));
    EQUAL(VipRecvDone(any, &d), VIP_DESCRIPTOR_ERROR);
    EQUAL(d->CS.Status & VIP_STATUS_ERROR_MASK, VIP_STATUS_PROTECTION_ERROR);
    OK(VipDestroyVi(any));
    OK(VipDestroyVi(vi));
    OK(VipDeregisterMem(nic, posted(&pool, 2), small));
    drop_pool(&pool);
    drop_pool(&foreign);
    OK(VipDestroyPtag(nic, tag));
    OK(VipDestroyPtag(nic, other_tag));
}

/* More than a queue has room for. */
static void overrun(void) {
    catch_errors();
    struct pool pool = make_pool(nic_attributes.MaxDescriptorsPerQueue + 1, 16, NULL);
    VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_UNRELIABLE, NULL, NULL);
    size_t i;
    for (i = 0; i < nic_attributes.MaxDescriptorsPerQueue; i++) post_recv(vi, &pool, i, 16);
    VIP_DESCRIPTOR *d = descriptor(&pool, i);
    EQUAL(VipPostRecv(vi, d, pool.handle), VIP_ERROR_RESOURCE);
    struct error told = next_error();
    CHECK(told.code == VIP_ERROR_VI_OVERRUN && told.vi == vi && told.descriptor == d);
    OK(VipDestroyVi(vi));
    drop_pool(&pool);
}

/* As many as there may be, and what was given back can be had again. */
static void as_many_as_there_may_be(void) {
    for (int round = 0; round < 2; round++) {
        static VIP_VI_HANDLE all[2000];
        struct rlimit files;
        EQUAL(getrlimit(RLIMIT_NOFILE, &files), 0);
        size_t most = files.rlim_cur / 2 < 2000 ? files.rlim_cur / 2 : 2000;
        for (size_t i = 0; i < most; i++) all[i] = make_vi(VIP_SERVICE_UNRELIABLE, NULL, NULL);
        for (size_t i = 0; i < most; i++) OK(VipDestroyVi(all[i]));
    }
}

/* What a NIC handle made goes with it. */
static void left_behind(void) {
    VIP_NIC_HANDLE mine = nic;
    OK(VipOpenNic("nic0", &nic));
    struct pool pool = make_pool(4, 10, NULL);
    VIP_CQ_HANDLE cq;
    OK(VipCreateCQ(nic, 10, &cq));
    VIP_VI_HANDLE vi = make_vi(VIP_SERVICE_RELIABLE_DELIVERY, cq, cq);
    post_recv(vi, &pool, 0, 10);
    OK(VipCloseNic(nic));
    VIP_DESCRIPTOR *d;
    EQUAL(VipRecvDone(vi, &d), VIP_INVALID_PARAMETER);
    EQUAL(VipDestroyCQ(cq), VIP_INVALID_PARAMETER);
    EQUAL(VipDeregisterMem(nic, pool.base, pool.handle), VIP_INVALID_PARAMETER);
    nic = mine;
    free(pool.base);
}

const struct example examples[] = {
    {"nics", NULL, nics, ALONE},
    {"tags", NULL, tags, ALONE},
    {"memory", NULL, memory, ALONE},
    {"allocated_memory", NULL, allocated_memory, ALONE},
    {"posted_memory", NULL, posted_memory, ALONE},
    {"vis", NULL, vis, ALONE},
    {"idle", NULL, idle, ALONE},
    {"cqs", NULL, cqs, ALONE},
    {"queues_on_a_cq", NULL, queues_on_a_cq, ALONE},
    {"names", NULL, names, ALONE},
    {"management", NULL, management, ALONE},
    {"handlers", NULL, handlers, ALONE},
    {"descriptors", NULL, descriptors, ALONE},
    {"overrun", NULL, overrun, ALONE},
    {"as_many_as_there_may_be", NULL, as_many_as_there_may_be, ALONE},
    {"left_behind", NULL, left_behind, ALONE},
    {0},
};

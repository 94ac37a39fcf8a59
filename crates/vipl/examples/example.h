/* What the examples share: opening a NIC, memory for descriptors and their data, a connection. Read pingpong.c first.
 *
 *     cc -o pingpong pingpong.c $(pkg-config --cflags --libs vipl)
 *     ./pingpong 20000 &                 the server: waits
 *     ./pingpong 20000 localhost         the client */
#ifndef EXAMPLE_H
#define EXAMPLE_H
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <vipl.h>

/* Every call says whether it went well; these programs have nothing better to do than to say where it did not. */
#define DO(call)                                                                            \
    do {                                                                                    \
        VIP_RETURN result_ = (call);                                                        \
        if (result_ != VIP_SUCCESS) {                                                       \
            fprintf(stderr, "%s:%d: %s is %d\n", __FILE__, __LINE__, #call, (int)result_);  \
            exit(1);                                                                        \
        }                                                                                   \
    } while (0)

static VIP_NIC_HANDLE nic;
static VIP_MEM_HANDLE memory; /* of all descriptors and data: one region will do */

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* A descriptor with its data right behind it. Descriptors begin at multiples of 64 bytes. */
struct message {
    VIP_DESCRIPTOR descriptor;
    char data[1 << 16];
};

static void *registered(size_t bytes) {
    void *memory_for = aligned_alloc(VIP_DESCRIPTOR_ALIGNMENT, bytes);
    memset(memory_for, 0, bytes);
    DO(VipRegisterMem(nic, memory_for, bytes, NULL, &memory));
    return memory_for;
}

/* Fills in a descriptor of one segment. */
static VIP_DESCRIPTOR *describe(struct message *m, VIP_UINT32 length) {
    VIP_DESCRIPTOR *d = &m->descriptor;
    memset(d, 0, sizeof *d);
    d->CS.SegCount = 1;
    d->CS.Length = length;
    d->DS[0].Local.Data.Address = m->data;
    d->DS[0].Local.Handle = memory;
    d->DS[0].Local.Length = length;
    return d;
}

/* A Virtual Interface, each of whose queues may be bound to a completion queue, or to none. */
static VIP_VI_HANDLE make_vi(VIP_CQ_HANDLE send_queue, VIP_CQ_HANDLE receive_queue) {
    VIP_VI_ATTRIBUTES attributes = {VIP_SERVICE_RELIABLE_DELIVERY, 1 << 16, NULL, NULL, VIP_FALSE, VIP_FALSE};
    VIP_VI_HANDLE vi;
    DO(VipCreateVi(nic, &attributes, send_queue, receive_queue, &vi));
    return vi;
}

/* Connects: as the server, who waits, if `host` is null, as the client otherwise. `where` tells services apart, as a port does. */
static void connect_vi(VIP_VI_HANDLE vi, const char *host, const char *where) {
    VIP_NIC_ATTRIBUTES own;
    VIP_VI_ATTRIBUTES theirs;
    union {
        VIP_NET_ADDRESS address;
        char room[64];
    } here = {{0}}, there = {{0}};
    DO(VipQueryNic(nic, &own));
    here.address.HostAddressLen = there.address.HostAddressLen = own.NicAddressLen;
    here.address.DiscriminatorLen = there.address.DiscriminatorLen = strlen(where);
    memcpy(here.address.HostAddress, own.LocalNicAddress, own.NicAddressLen);
    memcpy(here.address.HostAddress + own.NicAddressLen, where, strlen(where));
    if (!host) {
        VIP_CONN_HANDLE request;
        DO(VipConnectWait(nic, &here.address, VIP_INFINITE, &there.address, &theirs, &request));
        DO(VipConnectAccept(request, vi));
        return;
    }
    DO(VipNSInit(nic, NULL));
    DO(VipNSGetHostByName(nic, (char *)host, &there.address, 0));
    memcpy(there.address.HostAddress + own.NicAddressLen, where, strlen(where));
    /* Nobody waits there yet: ask again. */
    VIP_RETURN result;
    do result = VipConnectRequest(vi, &here.address, &there.address, VIP_INFINITE, &theirs);
    while (result == VIP_NO_MATCH);
    DO(result);
}
#endif

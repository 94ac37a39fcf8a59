/* Messages one way, as fast as they go. The receiver has DEPTH descriptors posted, and returns a credit (an empty message with immediate data)
 * for each half of them, so that the sender never sends what nobody expects.
 *
 *     ./bandwidth MBYTES [HOST]       without HOST: the receiver. Both are told the same number. */
#include "example.h"

enum { DEPTH = 32, HALF = DEPTH / 2 };
static const VIP_UINT32 sizes[] = {64, 512, 4096, 32768, 65536};
enum { SIZES = sizeof sizes / sizeof *sizes };

static VIP_DESCRIPTOR *next(VIP_VI_HANDLE vi, VIP_RETURN (*done)(VIP_VI_HANDLE, VIP_DESCRIPTOR **)) {
    VIP_DESCRIPTOR *d;
    VIP_RETURN result;
    while ((result = done(vi, &d)) == VIP_NOT_DONE) {}
    DO(result);
    return d;
}

int main(int count, char **words) {
    int megabytes = count > 1 ? atoi(words[1]) : 0;
    const char *host = count > 2 ? words[2] : NULL;
    if (megabytes < 1) {
        fprintf(stderr, "usage: %s MBYTES [HOST]\n", words[0]);
        return 2;
    }
    DO(VipOpenNic("nic0", &nic));
    struct message *messages = registered((DEPTH + 1) * sizeof *messages), *out = &messages[DEPTH];
    VIP_VI_HANDLE vi = make_vi(NULL, NULL);
    /* Either end receives: messages the one, credits the other. */
    for (int i = 0; i < DEPTH; i++) DO(VipPostRecv(vi, describe(&messages[i], sizeof messages->data), memory));
    connect_vi(vi, host, "bandwidth");
    int credits = DEPTH;
    for (int i = 0; i < SIZES; i++) {
        int all = ((long)megabytes << 20) / (sizes[i] < 4096 ? 4096 : sizes[i]) / DEPTH * DEPTH;
        double began = seconds();
        for (int sent = 0, received = 0; host ? sent < all : received < all;) {
            if (host) {
                if (credits == 0) {
                    VIP_DESCRIPTOR *credit = next(vi, VipRecvDone);
                    credits += credit->CS.ImmediateData;
                    DO(VipPostRecv(vi, describe((struct message *)credit, sizeof messages->data), memory));
                }
                DO(VipPostSend(vi, describe(out, sizes[i]), memory));
                next(vi, VipSendDone);
                credits--;
                sent++;
            } else {
                VIP_DESCRIPTOR *message = next(vi, VipRecvDone);
                DO(VipPostRecv(vi, describe((struct message *)message, sizeof messages->data), memory));
                if (++received % HALF == 0) {
                    VIP_DESCRIPTOR *credit = describe(out, 0);
                    credit->CS.Control = VIP_CONTROL_IMMEDIATE;
                    credit->CS.ImmediateData = HALF;
                    DO(VipPostSend(vi, credit, memory));
                    next(vi, VipSendDone);
                }
            }
        }
        double took = seconds() - began;
        if (!host) printf("%6u bytes: %8.0f MB/s, %7.0f messages/ms\n", sizes[i], all * (double)sizes[i] / took / 1e6, all / took / 1e3);
    }
    if (host) /* the credits that are still on the way */
        while (credits < DEPTH) credits += next(vi, VipRecvDone)->CS.ImmediateData;
    DO(VipDisconnect(vi));
    DO(VipCloseNic(nic)); /* what is left goes with it */
    return 0;
}

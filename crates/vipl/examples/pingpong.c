/* Half the time of a message there and back, for a few sizes.
 *
 *     ./pingpong ROUNDS [HOST]        without HOST: the server. Both are told the same number. */
#include "example.h"

static const VIP_UINT32 sizes[] = {4, 40, 400, 4000, 40000};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* Polling gives the shortest times; VipRecvWait() would leave the processor to others. */
static void receive(VIP_VI_HANDLE vi) {
    VIP_DESCRIPTOR *done;
    VIP_RETURN result;
    while ((result = VipRecvDone(vi, &done)) == VIP_NOT_DONE) {}
    DO(result);
}

static void send_one(VIP_VI_HANDLE vi, struct message *m, VIP_UINT32 length) {
    VIP_DESCRIPTOR *done;
    VIP_RETURN result;
    DO(VipPostSend(vi, describe(m, length), memory));
    while ((result = VipSendDone(vi, &done)) == VIP_NOT_DONE) {}
    DO(result);
}

int main(int count, char **words) {
    int rounds = count > 1 ? atoi(words[1]) : 0;
    const char *host = count > 2 ? words[2] : NULL;
    if (rounds < 1) {
        fprintf(stderr, "usage: %s ROUNDS [HOST]\n", words[0]);
        return 2;
    }
    DO(VipOpenNic("nic0", &nic));
    struct message *messages = registered(3 * sizeof *messages), *out = &messages[2];
    VIP_VI_HANDLE vi = make_vi(NULL, NULL);
    /* A message needs a descriptor that was posted for it before: so the first one is posted before there is a connection. */
    int next = 0;
    DO(VipPostRecv(vi, describe(&messages[next], sizeof messages->data), memory));
    connect_vi(vi, host, "pingpong");
    for (int i = 0; i < SIZES; i++) {
        double began = seconds();
        for (int round = 0; round < rounds; round++) {
            if (host) send_one(vi, out, sizes[i]);
            receive(vi);
            /* The next descriptor first, then the answer, to which the other end will answer at once. */
            next = !next;
            DO(VipPostRecv(vi, describe(&messages[next], sizeof messages->data), memory));
            if (!host) send_one(vi, out, sizes[i]);
        }
        if (host) printf("%6u bytes: %8.3f us\n", sizes[i], (seconds() - began) / rounds / 2 * 1e6);
    }
    DO(VipDisconnect(vi));
    VIP_DESCRIPTOR *left; /* flushed by the end of the connection */
    do VipRecvDone(vi, &left);
    while (left);
    DO(VipDestroyVi(vi));
    DO(VipDeregisterMem(nic, messages, memory));
    DO(VipCloseNic(nic));
    return 0;
}

/* Many connections on one completion queue: a server that answers whoever asks, and sleeps while nobody does.
 *
 *     ./many CONNECTIONS [HOST]       without HOST: the server */
#include "example.h"

enum { EACH = 1000, MOST = 256 };

int main(int count, char **words) {
    int connections = count > 1 ? atoi(words[1]) : 0;
    const char *host = count > 2 ? words[2] : NULL;
    if (connections < 1 || connections > MOST) {
        fprintf(stderr, "usage: %s CONNECTIONS [HOST]   (1 to %d)\n", words[0], MOST);
        return 2;
    }
    DO(VipOpenNic("nic0", &nic));
    struct message *messages = registered((2 * MOST + 1) * sizeof *messages), *out = &messages[2 * MOST];
    VIP_CQ_HANDLE queue;
    DO(VipCreateCQ(nic, 4 * MOST, &queue));
    VIP_VI_HANDLE vis[MOST];
    for (int i = 0; i < connections; i++) {
        vis[i] = make_vi(NULL, queue);
        for (int j = 0; j < 2; j++) DO(VipPostRecv(vis[i], describe(&messages[2 * i + j], 64), memory));
        connect_vi(vis[i], host, "many");
    }
    VIP_DESCRIPTOR *d;
    double began = seconds();
    if (host)
        for (int i = 0; i < connections; i++) {
            DO(VipPostSend(vis[i], describe(out, 64), memory));
            DO(VipSendWait(vis[i], VIP_INFINITE, &d));
        }
    for (int left = connections * EACH; left > 0; left--) {
        /* An entry says which Virtual Interface has a descriptor done, and in which queue; the descriptor is fetched there. */
        VIP_VI_HANDLE vi;
        VIP_BOOLEAN receive_queue;
        DO(VipCQWait(queue, VIP_INFINITE, &vi, &receive_queue));
        VIP_RETURN done = VipRecvDone(vi, &d);
        if (done == VIP_DESCRIPTOR_ERROR) {
            /* The other end has sent all its answers and disconnected: what is still posted there comes back. */
            left++;
            continue;
        }
        DO(done);
        DO(VipPostRecv(vi, describe((struct message *)d, 64), memory));
        if (host && left <= connections) continue; /* the last answer of each */
        DO(VipPostSend(vi, describe(out, 64), memory));
        DO(VipSendWait(vi, VIP_INFINITE, &d));
    }
    double took = seconds() - began;
    if (host) printf("%d connections: %.0f requests/ms\n", connections, connections * EACH / took / 1e3);
    for (int i = 0; i < connections; i++) DO(VipDisconnect(vis[i]));
    DO(VipCloseNic(nic));
    return 0;
}

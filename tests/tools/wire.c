/* wire.c -- frames from interface A to B and back, with delay, jitter and loss: a long or a bad cable between a host of the rig
 * and its switch (tests/tools/rig netem). The kernel's own netem is not on every machine.
 *
 *     wire A B DELAY_MS JITTER_MS LOSS_PERCENT
 *
 * Headers of offload (GSO, checksums) travel along, so that large segments stay whole. Frames stay in order. Ends when an
 * interface goes.
 */
#include "base/base.h"

#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { FRAME_BYTES = 70000, MAX_BYTES = 64 << 20 /* on the way in one direction; more is lost */ };

typedef struct frame {
    struct frame *next;
    double due_s;
    size_t num_bytes;
    char data[];
} frame;

typedef struct side {
    int fd;
    frame *first, *last; /* to be sent there */
    size_t num_bytes;
} side;

static int open_side(const char *name)
{
    struct sockaddr_ll address = {.sll_family = AF_PACKET,
                                  .sll_protocol = htons(ETH_P_ALL),
                                  .sll_ifindex = (int)if_nametoindex(name)};
    int fd = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL)), yes = 1, size = 16 << 20;

    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size);
    if (fd < 0 || !address.sll_ifindex ||
        setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &yes, sizeof yes) != 0 ||
        setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &yes, sizeof yes) != 0 ||
        bind(fd, (struct sockaddr *)(void *)&address, sizeof address) != 0) {
        perror(name);
        exit(1);
    }
    return fd;
}

static void take(side *from, side *to, double delay_s, double jitter_s, double loss)
{
    static char buffer[FRAME_BYTES];

    for (int k = 0; k < 64; k++) {
        ssize_t n = recv(from->fd, buffer, sizeof buffer, MSG_DONTWAIT);
        frame *f;
        if (n <= 0) return;
        if (drand48() < loss || to->num_bytes + (size_t)n > MAX_BYTES) continue;
        f = malloc(sizeof *f + (size_t)n);
        if (!f) continue;
        f->next = NULL;
        f->num_bytes = (size_t)n;
        f->due_s = cr_now_s() + delay_s + jitter_s * drand48();
        if (to->last && f->due_s < to->last->due_s) f->due_s = to->last->due_s;
        memcpy(f->data, buffer, (size_t)n);
        to->num_bytes += (size_t)n;
        if (to->last)
            to->last->next = f;
        else
            to->first = f;
        to->last = f;
    }
}

static void send_due(side *to)
{
    while (to->first && to->first->due_s <= cr_now_s()) {
        frame *f = to->first;
        cr_note(send(to->fd, f->data, f->num_bytes, MSG_DONTWAIT) < 0 ? CR_EIO : CR_OK);
        to->num_bytes -= f->num_bytes;
        to->first = f->next;
        if (!to->first) to->last = NULL;
        free(f);
    }
}

int main(int argc, char **argv)
{
    side s[2] = {{0}};
    double delay_s, jitter_s, loss;

    if (argc != 6) return 2;
    delay_s = atof(argv[3]) / 1e3;
    jitter_s = atof(argv[4]) / 1e3;
    loss = atof(argv[5]) / 100;
    for (int i = 0; i < 2; i++)
        s[i].fd = open_side(argv[1 + i]);
    for (;;) {
        struct pollfd fds[2] = {{s[0].fd, POLLIN, 0}, {s[1].fd, POLLIN, 0}};
        double wait_s = 10;
        struct timespec wait;
        for (int i = 0; i < 2; i++)
            if (s[i].first && s[i].first->due_s - cr_now_s() < wait_s)
                wait_s = s[i].first->due_s - cr_now_s();
        if (wait_s < 0) wait_s = 0;
        wait.tv_sec = (time_t)wait_s;
        wait.tv_nsec = (long)((wait_s - (double)wait.tv_sec) * 1e9);
        ppoll(fds, 2, &wait, NULL);
        for (int i = 0; i < 2; i++) {
            take(&s[i], &s[1 - i], delay_s, jitter_s, loss);
            if (fds[i].revents & (POLLERR | POLLHUP | POLLNVAL)) return 0;
        }
        for (int i = 0; i < 2; i++)
            send_due(&s[i]);
    }
}

/* A switch between hosts that makes every frame take its time.
 *
 *     relay DELAY_NS BYTES_PER_S FD...
 *
 * Each descriptor is the near end of a TAP device whose far end is a host's network interface; the last byte of its
 * MAC address is its place in the list, from 1. A frame from one host leaves it when the frames before have left at
 * BYTES_PER_S (0: at once), and arrives DELAY_NS later. Ends when its parent does, or when its input is closed.
 *
 * In C because the kernel here has no netem, and because a frame costs Python as much time as the shortest delay lasts.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { MOST_HOSTS = 64, LARGEST = 65600, QUEUE = 4096 };

/* A virtual machine wakes up late; so near to its time the relay looks again and again. Those it serves wait, too. */
enum { LOOK_NS = 150000 };

struct frame {
    int64_t due;
    int size;
    unsigned char *bytes;
};

struct host {
    int fd;
    int64_t free_at; /* when its last frame has left */
    unsigned head, tail;
    struct frame queue[QUEUE];
};

static struct host hosts[MOST_HOSTS];
static int count;

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Take all frames a host has sent. Where the queue is full they are lost, as in a switch. */
static void take(struct host *from, int64_t delay, int64_t rate) {
    static unsigned char buffer[LARGEST];
    for (;;) {
        ssize_t size = read(from->fd, buffer, sizeof buffer);
        if (size <= 0) return;
        if (from->tail - from->head == QUEUE) continue;
        int64_t leaves = now();
        if (leaves < from->free_at) leaves = from->free_at;
        if (rate) leaves += size * 1000000000LL / rate;
        from->free_at = leaves;
        struct frame *last = &from->queue[from->tail++ % QUEUE];
        last->due = leaves + delay;
        last->size = (int)size;
        last->bytes = malloc((size_t)size);
        if (!last->bytes) abort();
        memcpy(last->bytes, buffer, (size_t)size);
    }
}

/* Deliver what is due; returns when the next frame is, 0 for none. */
static int64_t deliver(struct host *from) {
    while (from->head != from->tail) {
        struct frame *first = &from->queue[from->head % QUEUE];
        if (first->due > now()) return first->due;
        int to = first->bytes[5] - 1;
        for (int i = 0; i < count; i++) {
            int wanted = (first->bytes[0] & 1) ? &hosts[i] != from : i == to; /* the first: broadcast, multicast */
            if (wanted && write(hosts[i].fd, first->bytes, (size_t)first->size) < 0) { /* its host is down */
            }
        }
        free(first->bytes);
        from->head++;
    }
    return 0;
}

int main(int argc, char **argv) {
    prctl(PR_SET_PDEATHSIG, 9);
    prctl(PR_SET_TIMERSLACK, 1);
    struct sched_param first = {.sched_priority = 1};
    if (sched_setscheduler(0, SCHED_FIFO, &first)) perror("relay: delays will be longer on a busy machine");
    mlockall(MCL_CURRENT);
    int64_t delay = atoll(argv[1]), rate = atoll(argv[2]);
    struct pollfd wait[MOST_HOSTS + 1];
    count = argc - 3;
    if (count > MOST_HOSTS) return 2;
    for (int i = 0; i < count; i++) {
        hosts[i].fd = atoi(argv[3 + i]);
        wait[i] = (struct pollfd){.fd = hosts[i].fd, .events = POLLIN};
    }
    wait[count] = (struct pollfd){.fd = 0, .events = 0}; /* hang-up is always told */
    int64_t next = 0;
    for (;;) {
        int64_t left = next ? next - now() - LOOK_NS : 0;
        if (left < 0) left = 0;
        struct timespec until = {left / 1000000000LL, left % 1000000000LL};
        ppoll(wait, (nfds_t)count + 1, next ? &until : NULL, NULL);
        if (wait[count].revents) return 0;
        next = 0;
        for (int i = 0; i < count; i++) {
            if (wait[i].revents) take(&hosts[i], delay, rate);
            int64_t due = deliver(&hosts[i]);
            if (due && (!next || due < next)) next = due;
        }
    }
}

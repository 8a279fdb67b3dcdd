/* One sum over the shards of one host, called by compiled JAX code: what `Hosts.exchange`, `Slots` and `Timers` do in
 * Python, step by step, in memory that both share. Whatever is not the common case (memory that must grow, a rank that
 * keeps the others waiting or is in another collective) is left to Python, which knows what to say.
 *
 * Compiled by `native.py`, which gives the places on the board (`LAYOUT` of shared_memory.py) and the phases by -D. The order
 * of additions is the tree's, written out as a program: no flag may let the compiler change it.
 */

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

enum { BLOCK = 512, ADD = -1 };

/* -- XLA's foreign function interface (xla/ffi/api/c_api.h): the first fields, which are stable -------------------- */

typedef struct Extension { size_t size; int type; struct Extension *next; } Extension;
typedef struct { size_t size; Extension *extension; int major, minor; } Version;
typedef struct { size_t size; Version version; } Metadata;
typedef struct { Extension base; Metadata *metadata; } MetadataExtension;
typedef struct { size_t size; Extension *extension; int dtype; void *data; } Buffer;
typedef struct { size_t size; Extension *extension; int64_t count; int *types; Buffer **buffers; } Buffers;
typedef struct { int dtype; int64_t *value; } Scalar;
typedef struct { size_t size; Extension *extension; int64_t count; int *types; void **names; Scalar **scalars; } Attributes;
typedef struct {
    size_t size;
    Extension *extension;
    void *api, *context;
    int stage;
    Buffers arguments, results;
    Attributes attributes;
} Frame;
enum { METADATA = 1, EXECUTE = 3 };

/* -- What Python tells; field by field as in native.py ------------------------------------------------------------- */

typedef struct {
    int64_t *board;     /* a record of LINE words for each rank of this host */
    int64_t *totals_ns; /* of this rank's phases */
    int64_t index, count, spin_ns;
} Host;

typedef struct {
    Host *host;
    int64_t length;           /* numbers in a row */
    int64_t rows, first, own; /* nodes of this host; the first of this rank, and how many are its */
    int64_t steps;
    const int32_t *program; /* n >= 0: push row n; ADD: add the two on top; ADD - 1 - n: add row n to the top */
    char tag[TEXT_SIZE];
    int64_t crc;
    int64_t calls;                           /* made here, not by Python */
    void *(*python)(Frame *), *(*wait)(Frame *); /* the whole sum; the rest of it after arriving, but for the adding */
} Use;

static Use *uses[MOST_USES];

void lockstep_use(int64_t number, Use *use) { uses[number] = use; }

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static int64_t enter(Host *host, int64_t *own, int64_t phase) { /* Timers.enter */
    int64_t now = now_ns(), previous = own[PHASE];
    host->totals_ns[previous] += now - own[SINCE_NS];
    own[PHASE] = phase;
    own[SINCE_NS] = now;
    return previous;
}

static int64_t arrive(Use *use, int64_t *own, int64_t signature) { /* Segment.arrive */
    int64_t sequence = own[SEQUENCE] + 1, turn = sequence & 1;
    memcpy((char *)own + TEXT + turn * TEXT_SIZE, use->tag, TEXT_SIZE);
    own[TAGS + 2 * turn] = use->crc;
    own[TAGS + 2 * turn + 1] = signature;
    __atomic_store_n(&own[SEQUENCE], sequence, __ATOMIC_RELEASE);
    return sequence;
}

/* Whether all ranks have come, to the same collective; waits for as long as it may spin. */
static int all_here(Use *use, int64_t sequence, int64_t signature) {
    Host *host = use->host;
    int64_t place = TAGS + 2 * (sequence & 1), until = 0;
    for (int64_t rank = 0; rank < host->count; rank++) {
        int64_t *record = host->board + rank * LINE;
        for (int64_t turns = 1; __atomic_load_n(&record[SEQUENCE], __ATOMIC_ACQUIRE) < sequence; turns++) {
            __builtin_ia32_pause();
            if (turns % 64 == 0) {
                int64_t now = now_ns();
                if (!until) until = now + host->spin_ns;
                if (now >= until) return 0;
            }
        }
        if (record[place] != use->crc || record[place + 1] != signature) return 0;
    }
    return 1;
}

static void add(const Use *use, const float *table, float *out) {
    float stack[DEPTH][BLOCK];
    for (int64_t start = 0; start < use->length; start += BLOCK) {
        int64_t count = use->length - start < BLOCK ? use->length - start : BLOCK, depth = 0;
        for (int64_t step = 0; step < use->steps; step++) {
            int32_t word = use->program[step];
            if (word >= 0) {
                memcpy(stack[depth++], table + word * use->length + start, count * sizeof(float));
                continue;
            }
            const float *right = word == ADD ? stack[--depth] : table + (ADD - 1 - word) * use->length + start;
            float *left = stack[depth - 1];
            for (int64_t i = 0; i < count; i++) left[i] += right[i];
        }
        memcpy(out + start, stack[0], count * sizeof(float));
    }
}

static void *sum(Use *use, Frame *frame) {
    Host *host = use->host;
    int64_t *own = host->board + host->index * LINE, bytes = use->length * sizeof(float), half = own[SLOTS_SIZE] / 2;
    if ((use->rows + 1) * bytes > half) return use->python(frame); /* one more row, as Python's table has */
    memcpy((char *)own + DOING, use->tag, TEXT_SIZE); /* Segment.enter */
    own[ENTERED]++;
    int64_t before = enter(host, own, SYNC);
    own[TURN] = 1 - own[TURN];
    float *table = (float *)((char *)own[SLOTS] + own[TURN] * half);
    memcpy(table + use->first * use->length, frame->arguments.buffers[0]->data, use->own * bytes);
    int64_t signature = bytes | FLOAT32, sequence = arrive(use, own, signature); /* message_signature */
    use->calls++;
    enter(host, own, WAIT);
    if (!all_here(use, sequence, signature)) {
        void *error = use->wait(frame);
        if (error) return error;
    }
    enter(host, own, SYNC);
    add(use, table, frame->results.buffers[0]->data);
    enter(host, own, before);
    return NULL;
}

void *lockstep_sum(Frame *frame) {
    if (frame->extension && frame->extension->type == METADATA) {
        Version *version = &((MetadataExtension *)frame->extension)->metadata->version;
        version->major = API_MAJOR;
        version->minor = API_MINOR;
        return NULL;
    }
    if (frame->stage != EXECUTE) return NULL;
    return sum(uses[*frame->attributes.scalars[0]->value], frame);
}

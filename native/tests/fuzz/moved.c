/* A session that was written down by a stranger: parts in any order, and frames of any kind. All of
 * executor/moves that reads them is here, over the decoders of calls and a driver that agrees.
 *
 * Input: parts of {what u8, form u8, length u16, payload}. What: an enum moved_part, modulo. Form:
 * bit 0 puts a right head before the payload of a session, of memory, of a load; bit 1 says more
 * bytes than there are; bit 2 of the first part: all is what comes before the session stops. In the
 * end comes a right digest.
 */
#define LLVMFuzzerTestOneInput session_input
#include "session.c"
#undef LLVMFuzzerTestOneInput
#include "../../executor/moves/stream.c"
#include "../../executor/moves/times.c"

void forget_moves(void); /* executor_moves.c */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum moved_form { HEADED = 1, TOO_LONG = 2, AHEAD = 4 };
#define RANGE (UINT64_C(1) << 45)

static CUresult reserves(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr wanted,
                         unsigned long long flags) {
    (void)bytes, (void)alignment, (void)flags;
    *address = wanted;
    return CUDA_SUCCESS;
}

static uint64_t said_digest;

static void say_part(uint32_t what, const void *head, size_t head_bytes, const uint8_t *payload,
                     size_t bytes, uint64_t more) {
    static uint8_t whole[MOVED_PART_BYTES];
    struct part_header header = {what, 0, head_bytes + bytes + more};
    memcpy(whole, head, head_bytes);
    if (bytes != 0) memcpy(whole + head_bytes, payload, bytes);
    said_digest = digest(digest(said_digest, (const uint8_t *)&header, sizeof header), whole,
                         head_bytes + bytes);
    say(&header, sizeof header);
    say(whole, head_bytes + bytes);
}

/* What comes before the payload. */
static size_t right_head(uint32_t what, size_t bytes, uint8_t *head) {
    size_t count;
    const uint8_t *snapshot;
    struct moved_session is = {.version = MOVED_VERSION,
                               .table = EGPU_WIRE_TABLE_HASH,
                               .taken = 1000,
                               .callbacks = 1,
                               .handles = {1, 1},
                               .arena = {RANGE, UINT64_C(1) << 40, 1000, 0, 0}};
    struct moved_ahead ahead = {is.version, is.table, is.arena.base, is.arena.bytes, 1};
    struct moved_data data = {RANGE, bytes}, same = {RANGE, ARENA_PAGE};
    struct moved_load load = {.total = 1, .kind = KIND_module};
    switch (what) {
    case PART_SESSION: memcpy(head, &is, sizeof is); return sizeof is;
    case PART_AHEAD: memcpy(head, &ahead, sizeof ahead); return sizeof ahead;
    case PART_CARDS:
        snapshot = connection_snapshot(&count);
        memcpy(head, snapshot, count);
        return count;
    case PART_DATA: memcpy(head, &data, sizeof data); return sizeof data;
    case PART_SAME: memcpy(head, &same, sizeof same); return sizeof same;
    case PART_LOAD: memcpy(head, &load, sizeof load); return sizeof load;
    default: return 0;
    }
}

static void say_input(const uint8_t *data, size_t size) {
    static uint8_t head[WIRE_MAX_SNAPSHOT];
    while (size >= 4) {
        uint32_t what = 1 + data[0] % PART_END;
        uint16_t length;
        uint8_t form = data[1];
        memcpy(&length, data + 2, sizeof length);
        data += 4, size -= 4;
        size_t bytes = length < size ? length : size;
        size_t head_bytes = form & HEADED ? right_head(what, bytes, head) : 0;
        say_part(what, head, head_bytes, data, bytes, form & TOO_LONG ? 1000 : 0);
        data += bytes, size -= bytes;
    }
    uint64_t end = said_digest;
    say_part(PART_END, &end, sizeof end, NULL, 0, 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char why[MOVES_WHY_BYTES] = "";
    if (session.settings == NULL) {
        set_up();
        functions[EGPU_FN_cuMemAddressReserve] = (driver_pointer)reserves;
    }
    uint8_t *room = said.bytes;
    memset(&said, 0, sizeof said);
    said.bytes = room;
    said.chunk = WIRE_ROOM;
    said_digest = 0;
    moves_on = true;
    session.transport = &transport_stream;
    say_input(data, size);
    bool ahead = size > 1 && data[1] & AHEAD;
    if (setjmp(over) == 0 && !session_rebuild(FIRST_SOCKET, ahead, why) && why[0] == 0) abort();
    struct handles_state fresh = {0, 1};
    handles_rebuild(false, &fresh);
    moves_on = false;
    loads_drop();
    forget_moves();
    time_count = base_count = 0;
    forget();
    return 0;
}

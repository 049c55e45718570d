/* The driver that it is linked with, but for tensor maps: a map is what it was made of, in order.
 */
#include <stdint.h>
#include <string.h>

struct map {
    uint64_t words[16];
};

static int written(struct map *map, const uint64_t *words, int count) {
    memset(map, 0, sizeof *map);
    memcpy(map, words, (size_t)count * sizeof *words);
    return 0;
}

static uint64_t two(uint32_t low, uint32_t high) { return low | (uint64_t)high << 32; }

int cuTensorMapEncodeTiled(struct map *map, int type, uint32_t rank, uint64_t address,
                           const uint64_t *sizes, const uint64_t *strides, const uint32_t *box,
                           const uint32_t *steps, int interleave, int swizzle, int promotion,
                           int fill) {
    uint64_t last = rank - 1;
    uint64_t words[] = {type,
                        rank,
                        address,
                        sizes[0],
                        sizes[last],
                        strides[0],
                        strides[last - 1],
                        two(box[0], box[last]),
                        two(steps[0], steps[last]),
                        two(interleave, swizzle),
                        two(promotion, fill)};
    return swizzle == 99 ? 1 : written(map, words, sizeof words / sizeof *words);
}

int cuTensorMapEncodeIm2col(struct map *map, int type, uint32_t rank, uint64_t address,
                            const uint64_t *sizes, const uint64_t *strides, const int *lower,
                            const int *upper, uint32_t channels, uint32_t pixels,
                            const uint32_t *steps, int interleave, int swizzle, int promotion,
                            int fill) {
    uint64_t last = rank - 1;
    uint64_t words[] = {type,
                        rank,
                        address,
                        sizes[0],
                        sizes[last],
                        strides[0],
                        strides[last - 1],
                        two(lower[0], lower[rank - 3]),
                        two(upper[0], upper[rank - 3]),
                        two(channels, pixels),
                        two(steps[0], steps[last]),
                        two(interleave, swizzle),
                        two(promotion, fill)};
    return written(map, words, sizeof words / sizeof *words);
}

int cuTensorMapEncodeIm2colWide(struct map *map, int type, uint32_t rank, uint64_t address,
                                const uint64_t *sizes, const uint64_t *strides, int lower,
                                int upper, uint32_t channels, uint32_t pixels,
                                const uint32_t *steps, int interleave, int mode, int swizzle,
                                int promotion, int fill) {
    uint64_t last = rank - 1;
    uint64_t words[] = {type,
                        rank,
                        address,
                        sizes[0],
                        sizes[last],
                        strides[0],
                        strides[last - 1],
                        two(lower, upper),
                        two(channels, pixels),
                        two(steps[0], steps[last]),
                        two(interleave, mode),
                        two(swizzle, promotion),
                        fill};
    return written(map, words, sizeof words / sizeof *words);
}

int cuTensorMapReplaceAddress(struct map *map, uint64_t address) {
    map->words[2] = address;
    return 0;
}

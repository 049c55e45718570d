/* Fat binaries from a tenant's program in the simulated driver: reads stay within the binary,
 * whatever its frames, texts and cubins claim. The result is PTX for the card and ends with NUL.
 *
 * Input: the bytes after the container's head; the executor has checked the head.
 */
#include "engine.h"
#include "common/fat_binary.h"

#include <stdlib.h>
#include <string.h>

#include "common/fat_binary.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

void engine_lacks(const char *what, const char *remedy) { (void)what, (void)remedy; }
void engine_needs_compiled(const char *kind) { (void)kind; }
void engine_needs_newer(unsigned target, unsigned card) { (void)target, (void)card; }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fat_binary head = {.unread = 1, .rest_bytes = size};
    memcpy(&head.magic, FAT_BINARY_MAGIC, sizeof head.magic);
    const unsigned card = 80;
    char *image = malloc(sizeof head + size); /* exact size: the sanitizer sees reads beyond it */
    if (image == NULL) return 0;
    memcpy(image, &head, sizeof head);
    if (size) memcpy(image + sizeof head, data, size);
    for (int outlines = 0; outlines < 2; outlines++) {
        char *text = NULL;
        CUresult result = fatbin_text(image, card, outlines, &text);
        if (!fat_binary_is(image) || (result == CUDA_SUCCESS) != (text != NULL)) abort();
        const char *target = text ? strstr(text, ".target sm_") : "";
        if (target == NULL || (text && strtoul(target + strlen(".target sm_"), NULL, 10) > card))
            abort();
        free(text);
    }
    free(image);
    return 0;
}

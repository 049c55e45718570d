/* Fat binaries, as a tenant's program hands them to the simulated driver: read within what is
 * there, whatever the frames and texts in them say of themselves. What is found is PTX for the card
 * and ends with NUL.
 *
 * Input: what follows the container's head, of which the executor has seen to it that it is true.
 */
#include "engine.h"
#include "common/fat_binary.h"

#include <stdlib.h>
#include <string.h>

#include "common/fat_binary.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

void engine_lacks(const char *what) { (void)what; }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fat_binary head = {.unread = 1, .rest_bytes = size};
    memcpy(&head.magic, FAT_BINARY_MAGIC, sizeof head.magic);
    const unsigned card = 80;
    char *image = malloc(sizeof head + size); /* exactly: the sanitizer sees whatever is behind */
    if (image == NULL) return 0;
    memcpy(image, &head, sizeof head);
    if (size) memcpy(image + sizeof head, data, size);
    char *text = NULL;
    CUresult result = fatbin_ptx(image, card, &text);
    if (!fat_binary_is(image) || (result == CUDA_SUCCESS) != (text != NULL)) abort();
    const char *target = text ? strstr(text, ".target sm_") : "";
    if (target == NULL || (text && strtoul(target + strlen(".target sm_"), NULL, 10) > card))
        abort();
    free(text);
    free(image);
    return 0;
}

/* Images of modules and libraries, as a tenant's program hands them to the driver: what they say of
 * their size is read with nothing but what is there, in time that grows as they do.
 *
 * Input: the file.
 */
#include "../../interposer/image.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *image = malloc(size + 1); /* exactly: the sanitizer sees whatever is behind it */
    if (image == NULL) return 0;
    memcpy(image, data, size);
    image[size] = 0;
    bytes_of(image, size);
    free(image);
    return 0;
}

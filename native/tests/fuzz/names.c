/* Lists of names from the client of an extender: a plain list is read exactly, byte for byte, and
 * no byte beyond it.
 *
 * Input: the known names, one per line, up to the first NUL; then the list.
 */
#include "../../names/names.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *nul = size > 0 ? memchr(data, 0, size) : NULL;
    if (nul == NULL) return 0;
    struct egpu_names *names = egpu_names_new();
    size_t known = 0;
    for (const char *line = (const char *)data; line < (const char *)nul;) {
        const char *end = memchr(line, '\n', (size_t)((const char *)nul - line));
        if (end == NULL) end = (const char *)nul;
        if (egpu_names_add(names, line, (size_t)(end - line)) >= 0) known++;
        line = end + 1;
    }
    /* Exact size: the sanitizer sees reads beyond it. */
    const size_t length = size - (size_t)(nul + 1 - data);
    char *list = malloc(length + 1);
    int64_t *numbers = malloc(known * sizeof *numbers + 1);
    memcpy(list, nul + 1, length);
    char *exact = realloc(list, length == 0 ? 1 : length);
    const int64_t count = egpu_names_read(names, exact, length, numbers, known);
    if (count >= 0) {
        static const struct egpu_names_row row = {"", "", "", 0, 0, 0};
        size_t written;
        const char *text = egpu_names_write(names, numbers, NULL, (size_t)count, &row, &written);
        if (text == NULL || written != length - 2 || memcmp(text, exact + 1, written) != 0) abort();
    }
    free(numbers);
    free(exact);
    egpu_names_free(names);
    return 0;
}

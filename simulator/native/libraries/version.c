/* A library with few or no functions of its own: programs check versions before they decide to do
 * without it. PROPERTY: the function to ask; VERSION: its answers. */
int PROPERTY(int which, int *value);

__attribute__((visibility("default"))) int PROPERTY(int which, int *value) {
    static const int version[] = {VERSION};
    if (which < 0 || which > 2 || !value) return INVALID_VALUE;
    *value = version[which];
    return 0;
}

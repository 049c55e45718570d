/* Whose names these are, of a library that has few of them or none: programs look at versions
 * before they decide what they do without it. PROPERTY: the function that says; VERSION: its
 * answers. */
int PROPERTY(int which, int *value);

__attribute__((visibility("default"))) int PROPERTY(int which, int *value) {
    static const int version[] = {VERSION};
    if (which < 0 || which > 2 || !value) return INVALID_VALUE;
    *value = version[which];
    return 0;
}

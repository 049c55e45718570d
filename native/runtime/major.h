/* For files that are compiled once per major version: IF_12(…) and IF_13(…) keep their own part. */
#ifndef EGPU_RUNTIME_MAJOR_H
#define EGPU_RUNTIME_MAJOR_H

#if EGPU_CUDART_MAJOR == 13
#define IF_12(...)
#define IF_13(...) __VA_ARGS__
#else
#define IF_12(...) __VA_ARGS__
#define IF_13(...)
#endif

#endif

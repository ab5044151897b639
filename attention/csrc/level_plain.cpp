// Whatever the compiler's default target has: 4 lanes.
#include "cpu_level.cpp"
#include "library.cpp"

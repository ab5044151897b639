// AVX-512: 16 lanes.
#include "library.cpp"

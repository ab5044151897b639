// AVX2 and FMA: 8 lanes.
#include "library.cpp"

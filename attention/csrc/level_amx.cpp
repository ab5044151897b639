// AVX-512 with bf16, and AMX tiles.
#include "library.cpp"

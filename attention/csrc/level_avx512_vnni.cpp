// AVX-512 and its dot product of bytes.
#include "library.cpp"

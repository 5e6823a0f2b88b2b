# The hash of a key: included by ``_compiled.pyx``.
#
# A cycle asks for the hash of each key in each turn. OpenSSL's object, its digest and the integer of it take 0.7 microseconds, and the calls around them as long;
# SHA-256 of the one block that a key fills takes 0.3, all in all. Source: FIPS 180-4, sections 4.1.2, 4.2.2, 5.3.3 and 6.2.2.

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #define RLE_KEY_SIZE_MAX 55  /* a byte with a bit, and 8 with the length, fill the block of 64 */
    #define RLE_ROTATED(x, n) (((x) >> (n)) | ((x) << (32 - (n))))

    static const uint32_t rle_sha_factors[64] = {  /* the fractions of the cube roots of the first 64 primes */
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
    };

    /* Return the first 8 bytes of the SHA-256 of at most RLE_KEY_SIZE_MAX bytes, most significant first. */
    static uint64_t rle_sha_start(const uint8_t *data, size_t size) {
        uint8_t block[64] = {0};
        uint32_t w[64], a = 0x6a09e667, b = 0xbb67ae85, c = 0x3c6ef372, d = 0xa54ff53a;
        uint32_t e = 0x510e527f, f = 0x9b05688c, g = 0x1f83d9ab, h = 0x5be0cd19;
        memcpy(block, data, size);
        block[size] = 0x80;
        block[62] = (uint8_t)(size >> 5);
        block[63] = (uint8_t)(size << 3);
        for (int t = 0; t < 16; t++) {
            w[t] = (uint32_t)block[4 * t] << 24 | (uint32_t)block[4 * t + 1] << 16 | block[4 * t + 2] << 8 | block[4 * t + 3];
        }
        for (int t = 16; t < 64; t++) {
            uint32_t x = w[t - 15], y = w[t - 2];
            w[t] = w[t - 16] + (RLE_ROTATED(x, 7) ^ RLE_ROTATED(x, 18) ^ (x >> 3))
                 + w[t - 7] + (RLE_ROTATED(y, 17) ^ RLE_ROTATED(y, 19) ^ (y >> 10));
        }
        for (int t = 0; t < 64; t++) {
            uint32_t one = h + (RLE_ROTATED(e, 6) ^ RLE_ROTATED(e, 11) ^ RLE_ROTATED(e, 25)) + ((e & f) ^ (~e & g))
                         + rle_sha_factors[t] + w[t];
            uint32_t two = (RLE_ROTATED(a, 2) ^ RLE_ROTATED(a, 13) ^ RLE_ROTATED(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
            h = g, g = f, f = e, e = d + one, d = c, c = b, b = a, a = one + two;
        }
        return (uint64_t)(a + 0x6a09e667) << 32 | (uint32_t)(b + 0xbb67ae85);
    }
    """
    size_t KEY_SIZE_MAX "RLE_KEY_SIZE_MAX"
    uint64_t sha_start "rle_sha_start"(const uint8_t* data, size_t size) noexcept


def key_hash(key):
    cdef uint8_t data[8]
    cdef int64_t number
    cdef int place
    if PyLong_CheckExact(key):
        try:
            number = key
        except OverflowError:
            return pure["key_hash"](key)
        for place in range(8):
            data[place] = <uint8_t>(<uint64_t>number >> (56 - 8 * place))
        return sha_start(data, 8)
    return pure["key_hash"](key)


def hash_of(bytes data not None):
    if <size_t>len(data) > KEY_SIZE_MAX:
        return pure["hash_of"](data)
    return sha_start(<const uint8_t*><char*>data, len(data))

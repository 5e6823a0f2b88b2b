# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The kernel's compiled body."""

cdef extern from *:
    """
    #ifndef KERNEL_SOURCE_CRC32
    #error "built by .packaging/build_kernel.py, which stamps the checksum of this file into the extension"
    #endif
    """
    const unsigned int KERNEL_SOURCE_CRC32

SOURCE_CRC32 = KERNEL_SOURCE_CRC32  # choice.py compares it with the source beside the extension

/* zygote.c -- zygote.py as it is, between two symbols. */
#include "sandbox/sandbox_impl.h"

__asm__(".section .rodata\n"
        ".global cri_zygote_begin, cri_zygote_end\n"
        "cri_zygote_begin: .incbin \"sandbox/zygote.py\"\n"
        ".byte 0\n"
        "cri_zygote_end:\n"
        ".previous\n");

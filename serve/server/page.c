/* page.c -- the page at `/`: page.html, which shows the state of the service and sends requests to its routes.
 * Nothing in it comes from outside of this service, and it may not load anything from elsewhere. */
#include "serve/server/server_impl.h"

/* The file as it is, between two symbols. */
__asm__(".section .rodata\n"
        ".global cri_page_begin, cri_page_end\n"
        "cri_page_begin: .incbin \"serve/server/page.html\"\n"
        "cri_page_end:\n"
        ".previous\n");
extern const char cri_page_begin[], cri_page_end[];

void cri_answer_page(cr_server *s, cr_http_exchange *x)
{
    (void)s;
    cr_http_set(x, "Content-Security-Policy",
                "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
                "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
    cr_http_answer(x, 200, "text/html; charset=utf-8", cri_page_begin,
                   (size_t)(cri_page_end - cri_page_begin));
}

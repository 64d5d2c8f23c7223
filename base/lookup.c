#include "base/lookup.h"

#include <string.h>

int cr_lookup(const char *host, const char *port, const struct addrinfo *hints,
              struct addrinfo **out)
{
    struct addrinfo loopback = *hints; /* without a name: 127.0.0.1 and ::1, if it is not passive */
    int code = getaddrinfo(host, port, hints, out);

    if (code == 0 || strcmp(host, "localhost") != 0) return code;
    loopback.ai_flags &= ~AI_PASSIVE;
    return getaddrinfo(NULL, port ? port : "0", &loopback, out);
}

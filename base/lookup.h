/* lookup.h -- addresses of a host's name. */
#ifndef CR_LOOKUP_H
#define CR_LOOKUP_H

#include <netdb.h>

/* getaddrinfo(), but "localhost" is this host's loopback interface even where nothing knows the name (no /etc/hosts), as RFC 6761,
 * section 6.3, wants it. Arguments, result and who frees *out are those of getaddrinfo(). */
int cr_lookup(const char *host, const char *port, const struct addrinfo *hints,
              struct addrinfo **out);

#endif

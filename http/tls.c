/* tls.c -- certificates and what of TLS is allowed: 1.2 with forward secrecy and authenticated ciphers, and 1.3. */
#include "http/server_impl.h"

#include <openssl/err.h>

static cr_status fail_tls(const char *what, const char *path, cr_err *err)
{
    char text[160];
    unsigned long code = ERR_get_error();

    ERR_error_string_n(code, text, sizeof text);
    ERR_clear_error();
    return cr_fail(err, CR_EUSAGE, "%s %s cannot be used: %s", what, path,
                   code ? text : "unknown reason");
}

cr_status cri_http_tls_open(const cr_http_options *o, SSL_CTX **out, cr_err *err)
{
    SSL_CTX *tls = SSL_CTX_new(TLS_server_method());
    char groups[] = "X25519:P-256:P-384"; /* not const: the macro casts */

    *out = NULL;
    CR_CHECK(tls, "OpenSSL has no memory");
    SSL_CTX_set_min_proto_version(tls, TLS1_2_VERSION);
    SSL_CTX_set_options(tls, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                 SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_mode(tls, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                              SSL_MODE_RELEASE_BUFFERS);
    if (!SSL_CTX_set_cipher_list(tls, "ECDHE+AESGCM:ECDHE+CHACHA20") ||
        !SSL_CTX_set1_groups_list(tls, groups))
        fail_tls("the list of ciphers or groups", "of TLS", err);
    else if (SSL_CTX_use_certificate_chain_file(tls, o->tls_cert) != 1)
        fail_tls("--tls-cert", o->tls_cert, err);
    else if (SSL_CTX_use_PrivateKey_file(tls, o->tls_key, SSL_FILETYPE_PEM) != 1 ||
             SSL_CTX_check_private_key(tls) != 1)
        fail_tls("--tls-key", o->tls_key, err);
    else if (o->tls_ca && SSL_CTX_load_verify_locations(tls, o->tls_ca, NULL) != 1)
        fail_tls("--tls-ca", o->tls_ca, err);
    if (o->tls_ca && err->status == CR_OK) {
        SSL_CTX_set_client_CA_list(tls, SSL_load_client_CA_file(o->tls_ca));
        SSL_CTX_set_verify(tls, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
        SSL_CTX_set_session_id_context(tls, (const unsigned char *)"croll", 5);
    }
    if (err->status == CR_OK)
        *out = tls;
    else
        SSL_CTX_free(tls);
    return err->status;
}

char *cri_http_tls_client_name(SSL *ssl)
{
    X509 *certificate = SSL_get1_peer_certificate(ssl);
    char name[128];
    int num = -1;

    if (!certificate) return NULL;
    num = X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, name,
                                    sizeof name);
    X509_free(certificate);
    return num > 0 ? cr_strdup(name) : NULL;
}

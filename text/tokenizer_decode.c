/* tokenizer_decode.c -- ids to text, one at a time or all at once (see tokenizer.h).
 *
 * A byte-level token is a row of bytes; a character may be spread over tokens, so at most three bytes
 * wait for the rest. With byte fallback a row of <0xXX> tokens is text only as a whole, so all of it
 * waits for the next ordinary token.
 */
#include "text/tokenizer_impl.h"

#include <string.h>

static const char REPLACEMENT[] = "\xEF\xBF\xBD"; /* U+FFFD */

/* What the bytes begin with: a whole character (*num bytes, true), a broken one whose longest part
 * that could begin a character has *num bytes (false), or something unfinished (*num 0). */
static bool scan_utf8(const unsigned char *s, size_t num_bytes, size_t *num)
{
    unsigned char min = 0x80, max = 0xBF;
    size_t want = s[0] < 0x80 ? 1 : s[0] < 0xC2 ? 0 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;

    *num = 1;
    if (want == 1) return true;
    if (want == 0 || s[0] > 0xF4) return false;
    if (s[0] == 0xE0) min = 0xA0;
    if (s[0] == 0xED) max = 0x9F;
    if (s[0] == 0xF0) min = 0x90;
    if (s[0] == 0xF4) max = 0x8F;
    for (; *num < want; ++*num) {
        if (*num == num_bytes) {
            *num = 0;
            return false;
        }
        if (s[*num] < min || s[*num] > max) return false;
        min = 0x80;
        max = 0xBF;
    }
    return true;
}

static void hold(cr_token_stream *stream, const void *bytes, size_t num_bytes)
{
    if (stream->num_run + num_bytes > stream->capacity_run) {
        size_t num = 2 * (stream->num_run + num_bytes) + 64;
        stream->run = cr_realloc(stream->run, stream->capacity_run, num);
        stream->capacity_run = num;
    }
    memcpy(stream->run + stream->num_run, bytes, num_bytes);
    stream->num_run += num_bytes;
}

/* ---- byte-level ---- */

/* Give out what is complete or broken; keep what may be completed. */
static void drain_bytes(cr_token_stream *stream, cr_buf *out)
{
    size_t at = 0, num;

    while (at < stream->num_run) {
        bool is_whole = scan_utf8(stream->run + at, stream->num_run - at, &num);
        if (num == 0) break;
        if (is_whole)
            cr_buf_add(out, stream->run + at, num);
        else
            cr_buf_adds(out, REPLACEMENT);
        at += num;
    }
    stream->num_run -= at;
    if (at && stream->num_run) memmove(stream->run, stream->run + at, stream->num_run);
}

/* Hold the bytes that the letters of a token stand for. */
static void hold_letters(cr_token_stream *stream, const char *text, size_t num_bytes)
{
    size_t before = stream->num_run;

    for (size_t i = 0; i < num_bytes;) {
        uint32_t letter;
        int num = cr_utf8_decode(text + i, num_bytes - i, &letter);
        int byte = num ? cri_letter_to_byte(letter) : -1;
        unsigned char c = (unsigned char)byte;
        if (byte < 0) { /* not of the alphabet: the token is text as it is */
            stream->num_run = before;
            hold(stream, text, num_bytes);
            break;
        }
        hold(stream, &c, 1);
        i += (size_t)num;
    }
}

/* ---- byte fallback, metaspace ---- */

static void emit(cr_token_stream *stream, const char *text, size_t num_bytes, cr_buf *out)
{
    const char *strip = stream->tokenizer->decoder.strip;
    size_t num = strip ? strlen(strip) : 0;

    while (stream->num_to_strip && num_bytes >= num && memcmp(text, strip, num) == 0) {
        text += num;
        num_bytes -= num;
        stream->num_to_strip--;
    }
    if (num_bytes) stream->num_to_strip = 0;
    cr_buf_add(out, text, num_bytes);
}

static void flush_run(cr_token_stream *stream, cr_buf *out)
{
    size_t num = stream->num_run;

    if (num == 0) return;
    stream->num_run = 0;
    if (cr_utf8_valid((const char *)stream->run, num)) {
        emit(stream, (const char *)stream->run, num, out);
        return;
    }
    while (num--)
        emit(stream, REPLACEMENT, 3, out);
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static bool is_byte_token(const char *text, size_t num_bytes, unsigned char *byte)
{
    if (num_bytes != 6 || memcmp(text, "<0x", 3) || text[5] != '>' || hex_digit(text[3]) < 0 ||
        hex_digit(text[4]) < 0)
        return false;
    *byte = (unsigned char)(hex_digit(text[3]) << 4 | hex_digit(text[4]));
    return true;
}

/* memmem, which is slow for short texts. */
static const char *find(const char *text, const char *end, const char *what, size_t num)
{
    while ((text = memchr(text, *what, (size_t)(end - text)))) {
        if ((size_t)(end - text) < num) return NULL;
        if (memcmp(text, what, num) == 0) return text;
        text++;
    }
    return NULL;
}

static void add_replaced(cr_buf *out, const char *text, size_t num_bytes, const char *from,
                         const char *to)
{
    const char *end = text + num_bytes, *found;
    size_t num_from = strlen(from);

    while ((found = find(text, end, from, num_from))) {
        cr_buf_add(out, text, (size_t)(found - text));
        cr_buf_adds(out, to);
        text = found + num_from;
    }
    cr_buf_add(out, text, (size_t)(end - text));
}

static void push_text(cr_token_stream *stream, const char *text, size_t num_bytes, bool is_first,
                      cr_buf *out)
{
    const cri_decoder *d = &stream->tokenizer->decoder;
    unsigned char byte;

    if (d->from) {
        bool drops = d->is_metaspace && d->metaspace_drops_first && is_first;
        cr_buf_clear(&stream->changed);
        add_replaced(&stream->changed, text, num_bytes, d->from, drops ? "" : d->to);
        text = stream->changed.data;
        num_bytes = stream->changed.num_bytes;
    }
    if (d->has_byte_fallback && is_byte_token(text, num_bytes, &byte)) {
        hold(stream, &byte, 1);
    } else {
        flush_run(stream, out);
        if (d->joins_by_space && !is_first) emit(stream, " ", 1, out);
        emit(stream, text, num_bytes, out);
    }
}

void cr_tokenizer_piece(const cr_tokenizer *t, int32_t id, cr_buf *out)
{
    const cri_decoder *d = &t->decoder;
    unsigned char byte;
    size_t num_bytes;
    const char *text = cr_tokenizer_token(t, id, &num_bytes);
    cr_token_stream stream = {.tokenizer = t};

    if (!text) return;
    if (cr_tokenizer_is_special(t, id)) {
        cr_buf_add(out, text, num_bytes);
    } else if (d->is_byte_level) {
        hold_letters(&stream, text, num_bytes);
        cr_buf_add(out, stream.run, stream.num_run);
        cr_free(stream.run);
    } else if (d->has_byte_fallback && is_byte_token(text, num_bytes, &byte)) {
        cr_buf_add(out, &byte, 1);
    } else if (d->from) {
        add_replaced(out, text, num_bytes, d->from, d->to);
    } else {
        cr_buf_add(out, text, num_bytes);
    }
}

/* ---- streams ---- */

void cr_token_stream_init(cr_token_stream *stream, const cr_tokenizer *tokenizer, bool skip_special)
{
    *stream = (cr_token_stream){.tokenizer = tokenizer,
                                .skip_special = skip_special,
                                .num_to_strip = tokenizer->decoder.num_strip};
}

void cr_token_stream_push(cr_token_stream *stream, int32_t id, cr_buf *out)
{
    const cr_tokenizer *t = stream->tokenizer;
    bool is_first = !stream->has_started;
    size_t num_bytes;
    const char *text = cr_tokenizer_token(t, id, &num_bytes);

    if (!text || (stream->skip_special && cr_tokenizer_is_special(t, id))) return;
    stream->has_started = true;
    if (t->decoder.is_byte_level) {
        hold_letters(stream, text, num_bytes);
        drain_bytes(stream, out);
    } else {
        push_text(stream, text, num_bytes, is_first, out);
    }
}

void cr_token_stream_end(cr_token_stream *stream, cr_buf *out)
{
    if (!stream->tokenizer->decoder.is_byte_level)
        flush_run(stream, out);
    else if (stream->num_run)
        cr_buf_adds(out, REPLACEMENT);
    cr_free(stream->run);
    cr_buf_free(&stream->changed);
    stream->run = NULL;
    stream->num_run = stream->capacity_run = 0;
}

void cr_tokenizer_decode(const cr_tokenizer *tokenizer, const int32_t *ids, size_t num,
                         bool skip_special, cr_buf *out)
{
    cr_token_stream stream;

    cr_token_stream_init(&stream, tokenizer, skip_special);
    for (size_t i = 0; i < num; i++)
        cr_token_stream_push(&stream, ids[i], out);
    cr_token_stream_end(&stream, out);
}

/* tokenizer_bpe.c -- vocabulary, merges, and the ids of one pre-token.
 *
 * Merging follows the reference library to the letter: a heap of (rank, position), where an entry is
 * stale when its pair no longer merges into the token it was pushed for. A word of n letters takes
 * O(n log n) steps, however long it is.
 */
#include "text/tokenizer_impl.h"

#include <string.h>

/* ---- vocabulary ---- */

static size_t hash_bytes(const char *text, size_t num_bytes)
{
    uint64_t h = 14695981039346656037u;

    for (size_t i = 0; i < num_bytes; i++)
        h = (h ^ (unsigned char)text[i]) * 1099511628211u;
    return (size_t)(h ^ h >> 29);
}

static const char *text_of(const cri_vocab *vocab, int32_t id)
{
    return vocab->bytes.data + vocab->token[id].begin;
}

/* The slot of a text: its id's or the free one where it would go. */
static size_t slot_of(const cri_vocab *vocab, const char *text, size_t num_bytes)
{
    size_t at = hash_bytes(text, num_bytes) & (vocab->num_slots - 1);

    for (;; at = (at + 1) & (vocab->num_slots - 1)) {
        int32_t id = vocab->slot[at];
        if (id < 0 || ((size_t)vocab->token[id].num_bytes == num_bytes &&
                       memcmp(text_of(vocab, id), text, num_bytes) == 0))
            return at;
    }
}

int32_t cri_vocab_find(const cri_vocab *vocab, const char *text, size_t num_bytes)
{
    return vocab->num_slots ? vocab->slot[slot_of(vocab, text, num_bytes)] : -1;
}

static void grow_slots(cri_vocab *vocab)
{
    vocab->num_slots = vocab->num_slots ? 2 * vocab->num_slots : 1024;
    cr_free(vocab->slot);
    vocab->slot = CR_NEW_ARRAY(int32_t, vocab->num_slots);
    memset(vocab->slot, 0xFF, vocab->num_slots * sizeof *vocab->slot);
    for (int32_t id = 0; id < vocab->num_ids; id++) {
        const cri_text_token *t = &vocab->token[id];
        if (t->is_used) vocab->slot[slot_of(vocab, text_of(vocab, id), (size_t)t->num_bytes)] = id;
    }
}

static void grow_ids(cri_vocab *vocab, int32_t num_ids)
{
    if (num_ids > vocab->capacity) {
        int32_t capacity = num_ids < 512 ? 1024 : 2 * num_ids;
        vocab->token = cr_realloc(vocab->token, (size_t)vocab->capacity * sizeof *vocab->token,
                                  (size_t)capacity * sizeof *vocab->token);
        vocab->capacity = capacity;
    }
    if (num_ids > vocab->num_ids) vocab->num_ids = num_ids;
}

cr_status cri_vocab_add(cri_vocab *vocab, const char *text, size_t num_bytes, int64_t id,
                        cr_err *err)
{
    int32_t known = cri_vocab_find(vocab, text, num_bytes);

    if (id < 0 || id >= CRI_MAX_IDS || num_bytes > INT32_MAX)
        return cr_fail(err, CR_EFORMAT, "token \"%.40s\" has id %lld, possible are 0 to %d", text,
                       (long long)id, CRI_MAX_IDS - 1);
    if (known == id) return CR_OK;
    if (known >= 0)
        return cr_fail(err, CR_EFORMAT, "token \"%.40s\" has the ids %d and %lld", text, known,
                       (long long)id);
    if (id < vocab->num_ids && vocab->token[id].is_used)
        return cr_fail(err, CR_EFORMAT, "id %lld belongs to \"%.40s\" and \"%.40s\"", (long long)id,
                       text_of(vocab, (int32_t)id), text);
    if (2 * ++vocab->num_used > vocab->num_slots) grow_slots(vocab);
    grow_ids(vocab, (int32_t)id + 1);
    vocab->token[id] = (cri_text_token){
        .begin = vocab->bytes.num_bytes, .num_bytes = (int32_t)num_bytes, .is_used = true};
    cr_buf_add(&vocab->bytes, text, num_bytes);
    cr_buf_addc(&vocab->bytes, '\0');
    vocab->slot[slot_of(vocab, text, num_bytes)] = (int32_t)id;
    return CR_OK;
}

static cr_status read_vocab(cri_vocab *vocab, const json_t *json, cr_err *err)
{
    const char *text;
    size_t num_bytes;
    json_t *id;

    if (!json_is_object(json)) return cr_fail(err, CR_EFORMAT, "model.vocab must be an object");
    for (void *at = json_object_iter((json_t *)(uintptr_t)json); at;
         at = json_object_iter_next((json_t *)(uintptr_t)json, at)) {
        text = json_object_iter_key(at);
        num_bytes = json_object_iter_key_len(at);
        id = json_object_iter_value(at);
        if (!json_is_integer(id))
            return cr_fail(err, CR_EFORMAT, "the id of token \"%.40s\" is not a whole number",
                           text);
        CR_TRY(cri_vocab_add(vocab, text, num_bytes, json_integer_value(id), err));
    }
    return CR_OK;
}

/* ---- merges ---- */

static cri_merge *merge_slot(const cri_bpe *bpe, int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9E3779B97F4A7C15u;
    size_t at = (size_t)(h >> 20) & (bpe->num_slots - 1);

    while (bpe->merge[at].left >= 0 &&
           (bpe->merge[at].left != left || bpe->merge[at].right != right))
        at = (at + 1) & (bpe->num_slots - 1);
    return &bpe->merge[at];
}

/* The two parts of a merge, as "a b" or ["a", "b"]. */
static bool split_merge(const json_t *json, const char *part[2], size_t num_bytes[2])
{
    const char *text, *space;
    size_t num;

    if (json_is_array(json)) {
        for (size_t i = 0; i < 2; i++) {
            const json_t *half = json_array_get(json, i);
            if (!json_is_string(half)) return false;
            part[i] = json_string_value(half);
            num_bytes[i] = json_string_length(half);
        }
        return json_array_size(json) == 2;
    }
    if (!json_is_string(json)) return false;
    text = json_string_value(json);
    num = json_string_length(json);
    space = memchr(text, ' ', num);
    if (!space || memchr(space + 1, ' ', num - (size_t)(space + 1 - text))) return false;
    part[0] = text;
    num_bytes[0] = (size_t)(space - text);
    part[1] = space + 1;
    num_bytes[1] = num - num_bytes[0] - 1;
    return true;
}

static cr_status add_merge(cri_bpe *bpe, const json_t *json, int32_t rank, cr_buf *joined,
                           cr_err *err)
{
    const char *part[2];
    size_t num_bytes[2];
    int32_t id[3];
    cri_merge *slot;

    if (!split_merge(json, part, num_bytes))
        return cr_fail(err, CR_EFORMAT, "model.merges[%d] must be two tokens", rank);
    cr_buf_clear(joined);
    cr_buf_add(joined, part[0], num_bytes[0]);
    cr_buf_add(joined, part[1], num_bytes[1]);
    for (int i = 0; i < 3; i++) {
        const char *text = i < 2 ? part[i] : joined->data;
        size_t num = i < 2 ? num_bytes[i] : joined->num_bytes;
        id[i] = cri_vocab_find(&bpe->vocab, text ? text : "", num);
        if (id[i] < 0)
            return cr_fail(err, CR_EFORMAT, "model.merges[%d]: \"%.*s\" is not in the vocabulary",
                           rank, (int)(num < 40 ? num : 40), text ? text : "");
    }
    slot = merge_slot(bpe, id[0], id[1]);
    *slot = (cri_merge){id[0], id[1], rank, id[2]}; /* of two equal ones the later counts */
    return CR_OK;
}

static cr_status read_merges(cri_bpe *bpe, const json_t *merges, cr_err *err)
{
    size_t num = json_array_size(merges), at;
    cr_status status = CR_OK;
    cr_buf joined = {0};
    int32_t rank = 0;
    const json_t *json;

    if (!json_is_array(merges) || num > CRI_MAX_IDS)
        return cr_fail(err, CR_EFORMAT, "model.merges must be a list");
    for (bpe->num_slots = 16; bpe->num_slots < 2 * num;)
        bpe->num_slots *= 2;
    bpe->merge = CR_NEW_ARRAY(cri_merge, bpe->num_slots);
    for (size_t i = 0; i < bpe->num_slots; i++)
        bpe->merge[i].left = -1;
    json_array_foreach(merges, at, json)
    {
        if (json_is_string(json) && strncmp(json_string_value(json), "#version", 8) == 0) continue;
        status = add_merge(bpe, json, rank++, &joined, err);
        if (status != CR_OK) break;
    }
    cr_buf_free(&joined);
    return status;
}

/* ---- reading the model ---- */

/* true, false, or absent (null): false. */
static cr_status read_flag(const json_t *model, const char *key, bool *out, cr_err *err)
{
    const json_t *value = json_object_get(model, key);

    *out = json_is_true(value);
    if (value && !json_is_boolean(value) && !json_is_null(value))
        return cr_fail(err, CR_EFORMAT, "model.%s must be true or false", key);
    return CR_OK;
}

/* Settings that no family here uses. */
static cr_status refuse_rest(const json_t *model, cr_err *err)
{
    static const char *const texts[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const json_t *dropout = json_object_get(model, "dropout");

    for (size_t i = 0; i < CR_COUNT(texts); i++) {
        const json_t *value = json_object_get(model, texts[i]);
        if (value && !json_is_null(value) && json_string_length(value) + !json_is_string(value))
            return cr_fail(err, CR_EFORMAT, "model.%s is not supported (only null or \"\")",
                           texts[i]);
    }
    if (dropout && !json_is_null(dropout) &&
        !(json_is_number(dropout) && json_number_value(dropout) == 0))
        return cr_fail(err, CR_EFORMAT, "model.dropout is not supported (only null or 0)");
    return CR_OK;
}

static void fill_shortcuts(cri_bpe *bpe)
{
    for (uint32_t i = 0; i < CR_COUNT(bpe->letter); i++) {
        char text[8];
        bpe->letter[i] = cri_vocab_find(&bpe->vocab, text, (size_t)cr_utf8_encode(i, text));
    }
    for (int i = 0; i < 256; i++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", i);
        bpe->byte_id[i] = cri_vocab_find(&bpe->vocab, text, 6);
    }
}

cr_status cri_bpe_read(cri_bpe *bpe, const json_t *model, cr_err *err)
{
    const json_t *type = json_object_get(model, "type"), *unk = json_object_get(model, "unk_token");

    if (!json_is_object(model)) return cr_fail(err, CR_EFORMAT, "model must be an object");
    if (type ? !json_is_string(type) || strcmp(json_string_value(type), "BPE")
             : !json_object_get(model, "merges"))
        return cr_fail(err, CR_EFORMAT, "model.type \"%.40s\" is not supported (only BPE)",
                       json_is_string(type) ? json_string_value(type) : "");
    CR_TRY(refuse_rest(model, err));
    CR_TRY(read_flag(model, "fuse_unk", &bpe->fuses_unk, err));
    CR_TRY(read_flag(model, "byte_fallback", &bpe->has_byte_fallback, err));
    CR_TRY(read_flag(model, "ignore_merges", &bpe->ignores_merges, err));
    CR_TRY(read_vocab(&bpe->vocab, json_object_get(model, "vocab"), err));
    CR_TRY(read_merges(bpe, json_object_get(model, "merges"), err));
    fill_shortcuts(bpe);
    bpe->unk = -1;
    if (!unk || json_is_null(unk)) return CR_OK;
    if (json_is_string(unk))
        bpe->unk = cri_vocab_find(&bpe->vocab, json_string_value(unk), json_string_length(unk));
    if (bpe->unk < 0)
        return cr_fail(err, CR_EFORMAT, "model.unk_token is not a token of the vocabulary");
    return CR_OK;
}

void cri_bpe_free(cri_bpe *bpe)
{
    cr_buf_free(&bpe->vocab.bytes);
    cr_free(bpe->vocab.token);
    cr_free(bpe->vocab.slot);
    cr_free(bpe->merge);
}

/* ---- one word ---- */

typedef struct symbol {
    int32_t id;         /* -1: merged into the one before */
    int32_t prev, next; /* -1: none */
} symbol;

typedef struct heap_entry {
    int32_t rank, at, merged;
} heap_entry;

enum { FEW_SYMBOLS = 64 };

typedef struct word {
    symbol *symbol;
    heap_entry *heap;
    size_t num, num_heap;
    symbol few_symbols[FEW_SYMBOLS];
    heap_entry few_entries[3 * FEW_SYMBOLS];
} word;

static bool is_before(const heap_entry *a, const heap_entry *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void heap_push(word *w, heap_entry entry)
{
    size_t at = w->num_heap++;

    for (; at && is_before(&entry, &w->heap[(at - 1) / 2]); at = (at - 1) / 2)
        w->heap[at] = w->heap[(at - 1) / 2];
    w->heap[at] = entry;
}

static heap_entry heap_pop(word *w)
{
    heap_entry top = w->heap[0], last = w->heap[--w->num_heap];
    size_t at = 0, child;

    while ((child = 2 * at + 1) < w->num_heap) {
        if (child + 1 < w->num_heap && is_before(&w->heap[child + 1], &w->heap[child])) child++;
        if (!is_before(&w->heap[child], &last)) break;
        w->heap[at] = w->heap[child];
        at = child;
    }
    w->heap[at] = last;
    return top;
}

static void push_pair(const cri_bpe *bpe, word *w, int32_t at)
{
    int32_t next = at < 0 ? -1 : w->symbol[at].next;
    const cri_merge *m;

    if (next < 0) return;
    m = merge_slot(bpe, w->symbol[at].id, w->symbol[next].id);
    if (m->left >= 0) heap_push(w, (heap_entry){m->rank, at, m->merged});
}

/* Every merge removes a symbol and pushes at most two entries: the heap never exceeds 3 num. */
static void merge_all(const cri_bpe *bpe, word *w)
{
    for (size_t i = 0; i + 1 < w->num; i++)
        push_pair(bpe, w, (int32_t)i);
    while (w->num_heap) {
        heap_entry top = heap_pop(w);
        symbol *s = &w->symbol[top.at], *right;
        const cri_merge *m;
        if (s->id < 0 || s->next < 0) continue;
        right = &w->symbol[s->next];
        m = merge_slot(bpe, s->id, right->id);
        if (m->left < 0 || m->merged != top.merged) continue;
        s->id = m->merged;
        right->id = -1;
        s->next = right->next;
        if (s->next >= 0) w->symbol[s->next].prev = top.at;
        push_pair(bpe, w, s->prev);
        push_pair(bpe, w, top.at);
    }
}

static void add_symbol(word *w, int32_t id)
{
    w->symbol[w->num] = (symbol){id, (int32_t)w->num - 1, (int32_t)w->num + 1};
    w->num++;
}

static bool add_byte_symbols(const cri_bpe *bpe, word *w, const char *text, int num_bytes)
{
    for (int i = 0; i < num_bytes; i++)
        if (bpe->byte_id[(unsigned char)text[i]] < 0) return false;
    for (int i = 0; i < num_bytes; i++)
        add_symbol(w, bpe->byte_id[(unsigned char)text[i]]);
    return true;
}

/* One symbol a character; at most one a byte, so the word has room for num_bytes. */
static void add_letters(const cri_bpe *bpe, word *w, const char *text, size_t num_bytes)
{
    bool has_unk = false;

    for (size_t i = 0; i < num_bytes;) {
        uint32_t letter;
        int num = cr_utf8_decode(text + i, num_bytes - i, &letter), id;
        CR_CHECK(num > 0, "a piece of text is no UTF-8");
        id = letter < CR_COUNT(bpe->letter) ? bpe->letter[letter]
                                            : cri_vocab_find(&bpe->vocab, text + i, (size_t)num);
        if (id >= 0) {
            if (has_unk) add_symbol(w, bpe->unk);
            has_unk = false;
            add_symbol(w, id);
        } else if (!bpe->has_byte_fallback || !add_byte_symbols(bpe, w, text + i, num)) {
            if (has_unk && !bpe->fuses_unk) add_symbol(w, bpe->unk);
            has_unk = bpe->unk >= 0;
        }
        i += (size_t)num;
    }
    if (has_unk) add_symbol(w, bpe->unk);
}

void cri_bpe_encode(const cri_bpe *bpe, const char *text, size_t num_bytes, cr_ids *ids)
{
    int32_t whole = bpe->ignores_merges ? cri_vocab_find(&bpe->vocab, text, num_bytes) : -1;
    word w;

    if (whole >= 0) {
        cr_ids_add(ids, whole);
        return;
    }
    CR_CHECK(num_bytes < INT32_MAX / 4, "a word of %zu bytes", num_bytes);
    w.num = w.num_heap = 0;
    w.symbol = num_bytes <= FEW_SYMBOLS ? w.few_symbols : CR_NEW_ARRAY(symbol, num_bytes);
    w.heap = num_bytes <= FEW_SYMBOLS ? w.few_entries : CR_NEW_ARRAY(heap_entry, 3 * num_bytes);
    add_letters(bpe, &w, text, num_bytes);
    if (w.num) {
        w.symbol[w.num - 1].next = -1;
        merge_all(bpe, &w);
        for (int32_t at = 0; at >= 0; at = w.symbol[at].next)
            cr_ids_add(ids, w.symbol[at].id);
    }
    if (num_bytes > FEW_SYMBOLS) {
        cr_free(w.symbol);
        cr_free(w.heap);
    }
}

/* A kernel in C against golden vectors: reads index.json and the safetensors files by itself.

   cc -O2 -o check check.c -lm && ./check DIR [BUG]

   The kernel is plain float32 attention, forward only.  BUG breaks it: see `bug` below.  For each case it says
   passed, failed or unsupported; the exit status is 0 if none failed and some passed, 1 if not, 2 if the folder
   cannot be read. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *bug = "";
static int is_bug(const char *name) { return strcmp(bug, name) == 0; }

static void die(const char *what, const char *of) {
    fprintf(stderr, "%s: %s\n", of, what);
    exit(2);
}

static char *read_all(const char *path, size_t *size) {
    FILE *f = fopen(path, "rb");
    if (!f) die("cannot be opened", path);
    fseek(f, 0, SEEK_END);
    *size = (size_t)ftell(f);
    rewind(f);
    char *data = malloc(*size + 1);
    if (!data || fread(data, 1, *size, f) != *size) die("cannot be read", path);
    data[*size] = 0;
    fclose(f);
    return data;
}

/* ---- JSON: a value is a pointer to its first character; what follows it is found by skipping it */

static const char *blank(const char *p) { return p + strspn(p, " \t\r\n"); }

static const char *skip(const char *p) {
    p = blank(p);
    if (*p == '"') {
        for (p++; *p != '"'; p++)
            if (!*p || (*p == '\\' && !*++p)) die("ends inside a text", "JSON");
        return p + 1;
    }
    if (*p != '{' && *p != '[') return p + strcspn(p, ",]} \t\r\n");
    char end = *p == '{' ? '}' : ']';
    for (p = blank(p + 1); *p != end; p = blank(p)) {
        if (!*p) die("ends inside an object or array", "JSON");
        p = *p == ',' || *p == ':' ? p + 1 : skip(p);
    }
    return p + 1;
}

static const char *get(const char *object, const char *key) { /* the value of a key, or NULL */
    const char *p = blank(object);
    size_t n = strlen(key);
    for (p = blank(p + 1); *p == '"'; p = blank(p)) {
        const char *name = p + 1, *value = blank(skip(p)) + 1;
        if (strncmp(name, key, n) == 0 && name[n] == '"') return blank(value);
        p = blank(skip(value));
        if (*p == ',') p++;
    }
    return NULL;
}

static const char *need(const char *object, const char *key) {
    const char *value = get(object, key);
    if (!value) die("is missing", key);
    return value;
}

static double number(const char *object, const char *key) { return strtod(need(object, key), NULL); }
static int is_null(const char *object, const char *key) { return strncmp(need(object, key), "null", 4) == 0; }

static void text(const char *value, char *out, size_t size) { /* one without escapes */
    size_t n = strcspn(value + 1, "\"");
    if (n >= size) die("is too long", value);
    memcpy(out, value + 1, n);
    out[n] = 0;
}

/* ---- tensors */

typedef struct {
    char dtype[16];
    size_t shape[8], count;
    const unsigned char *data;
} tensor;

static tensor find(const char *header, const unsigned char *data, size_t bytes, const char *name) {
    tensor t = {"", {0}, 1, NULL};
    const char *entry = get(header, name), *p;
    if (!entry) return t;
    text(need(entry, "dtype"), t.dtype, sizeof t.dtype);
    p = blank(need(entry, "shape") + 1);
    for (size_t n = 0; *p != ']'; n++) {
        if (n == 8) die("has more than 8 axes", name);
        t.count *= t.shape[n] = strtoull(p, NULL, 10);
        p = blank(skip(p));
        if (*p == ',') p = blank(p + 1);
    }
    p = need(entry, "data_offsets") + 1;
    size_t begin = strtoull(p, NULL, 10), end = strtoull(strchr(p, ',') + 1, NULL, 10);
    if (begin > end || end > bytes) die("lies beyond the end of the file", name);
    t.data = data + begin;
    return t;
}

static float small_float(unsigned bits, int exponent_bits, int mantissa_bits, int ieee) {
    unsigned mantissa = bits & ((1u << mantissa_bits) - 1);
    int top = (1 << exponent_bits) - 1, exponent = (int)(bits >> mantissa_bits) & top, bias = top / 2;
    float sign = bits >> (exponent_bits + mantissa_bits) ? -1.0f : 1.0f;
    if (ieee ? exponent == top : exponent == top && mantissa == (1u << mantissa_bits) - 1)
        return ieee && !mantissa ? sign * INFINITY : NAN;
    if (!exponent) return sign * ldexpf((float)mantissa, 1 - bias - mantissa_bits);
    return sign * ldexpf((float)(mantissa + (1u << mantissa_bits)), exponent - bias - mantissa_bits);
}

static double at(tensor t, size_t n) {
    if (!strcmp(t.dtype, "F64")) { double x; memcpy(&x, t.data + 8 * n, 8); return x; }
    if (!strcmp(t.dtype, "F32")) { float x; memcpy(&x, t.data + 4 * n, 4); return x; }
    uint16_t bits = t.data[n];
    if (!strcmp(t.dtype, "F8_E4M3")) return small_float(bits, 4, 3, 0);
    if (!strcmp(t.dtype, "F8_E5M2")) return small_float(bits, 5, 2, 1);
    if (!strcmp(t.dtype, "U8")) return bits;
    memcpy(&bits, t.data + 2 * n, 2);
    if (!strcmp(t.dtype, "BF16")) return small_float(bits, 8, 7, 1);
    if (!strcmp(t.dtype, "F16")) return small_float(bits, 5, 10, 1);
    die("is of a dtype that is not read here", t.dtype);
    return 0;
}

static double rounded(double x, const char *dtype) { /* to the nearest number of the dtype, ties to even */
    int bits = !strcmp(dtype, "BF16") ? 8 : !strcmp(dtype, "F16") ? 11 : 24;
    int least = !strcmp(dtype, "F16") ? -14 : -126, exponent;
    double most = !strcmp(dtype, "F16") ? 65504.0 : ldexp(2 - ldexp(1, 1 - bits), 127);
    if (x == 0 || !isfinite(x)) return x;
    frexp(x, &exponent);
    int step = (exponent - 1 > least ? exponent - 1 : least) - bits + 1;
    x = ldexp(nearbyint(ldexp(x, -step)), step);
    return fabs(x) > most ? copysign(INFINITY, x) : x;
}

/* ---- the check */

/* README: begin */
static int inside(const double *got, tensor lo, tensor hi, tensor free_, const char *name) {
    for (size_t n = 0; n < lo.count; n++) {
        double x = rounded(got[n], lo.dtype), a = at(lo, n), b = at(hi, n);
        int pardon = free_.data ? free_.data[n] : 0;
        if (pardon == 1 || (a <= x && x <= b) || (pardon == 2 && !isfinite(x))) continue;
        printf("    %s[%zu] = %.9g is not in [%.9g, %.9g]\n", name, n, x, a, b);
        return 0;
    }
    return 1;
}
/* README: end */

/* ---- the kernel */

typedef struct {
    size_t B, H, Hkv, Lq, Lk, D, Dv;
    float scale, softcap; /* softcap 0: none */
    tensor q, k, v, bias, sinks, mask;
} problem;

static size_t where(tensor t, size_t b, size_t h, size_t i, size_t j) { /* an axis of 1 stands for all */
    const size_t *n = t.shape;
    b = n[0] > 1 ? b : 0, h = n[1] > 1 ? h : 0, i = n[2] > 1 ? i : 0, j = n[3] > 1 ? j : 0;
    return ((b * n[1] + h) * n[2] + i) * n[3] + j;
}

static void row(const problem *x, size_t b, size_t h, size_t i, float *s, double *out, double *lse) {
    size_t group = x->H / x->Hkv, g = is_bug("heads_tiled") ? h % x->Hkv : h / group;
    const size_t keys = (b * x->Hkv + g) * x->Lk;
    float sink = x->sinks.data && !is_bug("sink_dropped") ? (float)at(x->sinks, h) : -INFINITY;
    float most = sink, sum;
    for (size_t j = 0; j < x->Lk; j++) {
        size_t seen = is_bug("key_late") && j ? j - 1 : j;
        s[j] = -INFINITY;
        if (!is_bug("mask_ignored") && !at(x->mask, where(x->mask, b, h, i, seen))) continue;
        float t = 0;
        for (size_t d = 0; d < x->D; d++)
            t += (float)at(x->q, ((b * x->H + h) * x->Lq + i) * x->D + d) * (float)at(x->k, (keys + j) * x->D + d);
        t *= is_bug("scale_of_1") ? 1 : x->scale;
        if (x->softcap && !is_bug("softcap_dropped")) t = x->softcap * tanhf(t / x->softcap);
        if (x->bias.data && !is_bug("bias_dropped")) t += (float)at(x->bias, where(x->bias, b, h, i, j));
        s[j] = t;
        if (t > most || t != t) most = t;
    }
    if (is_bug("last_key_dropped") && x->Lk) s[x->Lk - 1] = -INFINITY;
    if (is_bug("maximum_not_subtracted")) most = most == -INFINITY ? most : 0;
    sum = most == -INFINITY ? 0 : expf(sink - most);
    for (size_t j = 0; j < x->Lk; j++) sum += s[j] = s[j] == -INFINITY ? 0 : expf(s[j] - most);
    *lse = sum == 0 ? -INFINITY : most + logf(sum);
    if (is_bug("lse_base_2")) *lse /= log(2);
    for (size_t d = 0; d < x->Dv; d++) {
        float o = 0;
        for (size_t j = 0; j < x->Lk; j++)
            if (s[j] != 0 || is_bug("hidden_values_read")) o += s[j] * (float)at(x->v, (keys + j) * x->Dv + d);
        out[d] = sum == 0 ? 0 : o / sum;
    }
}

static const char *unsupported(const char *entry) {
    if (!is_null(entry, "score_mod")) return "score_mod";
    if (!is_null(entry, "dropout")) return "dropout";
    if (get(need(entry, "inputs"), "cos")) return "rotary";
    if (get(need(entry, "inputs"), "k_scale")) return "quantised";
    if (!strncmp(need(entry, "dtype"), "\"float64", 8)) return "float64";
    if (strncmp(need(entry, "storage"), "\"Dense", 6) && strncmp(need(entry, "storage"), "\"S", 2)) return "storage";
    if (strncmp(need(entry, "layout"), "\"BHLD", 5)) return "layout";
    if (!get(need(entry, "outputs"), "out") && !get(need(entry, "outputs"), "lse")) return "neither out nor lse";
    return NULL;
}

static int check(const char *entry, const char *folder) { /* 1 if it passes */
    char file[256], path[4096];
    size_t size;
    text(need(entry, "file"), file, sizeof file);
    if (strstr(file, "..") || file[0] == '/') die("is outside the folder", file);
    snprintf(path, sizeof path, "%s/%s", folder, file);
    char *all = read_all(path, &size);
    uint64_t length;
    if (size < 8 || (memcpy(&length, all, 8), length > size - 8)) die("is cut off", path);
    char *header = malloc(length + 1);
    memcpy(header, all + 8, length);
    header[length] = 0;
    const unsigned char *data = (unsigned char *)all + 8 + length;
#define TENSOR(name) find(header, data, size - 8 - length, name)
    problem x = {
        number(entry, "B"), number(entry, "H"), number(entry, "Hkv"), number(entry, "Lq"), number(entry, "Lk"),
        number(entry, "D"), number(entry, "Dv"), number(entry, "scale"),
        is_null(entry, "softcap") ? 0 : number(entry, "softcap"),
        TENSOR("q"), TENSOR("k"), TENSOR("v"), TENSOR("bias"), TENSOR("sinks"), TENSOR("mask"),
    };
    size_t rows = x.B * x.H * x.Lq;
    double *out = calloc(rows * x.Dv + 1, sizeof *out), *lse = calloc(rows + 1, sizeof *lse);
    float *s = calloc(x.Lk + 1, sizeof *s);
    for (size_t n = 0; n < rows; n++)
        row(&x, n / x.Lq / x.H, n / x.Lq % x.H, n % x.Lq, s, out + n * x.Dv, lse + n);
    const char *outputs = need(entry, "outputs");
    int good = 1;
    if (get(outputs, "out")) good &= inside(out, TENSOR("lo.out"), TENSOR("hi.out"), TENSOR("free.out"), "out");
    if (get(outputs, "lse")) good &= inside(lse, TENSOR("lo.lse"), TENSOR("hi.lse"), TENSOR("free.lse"), "lse");
    free(s), free(out), free(lse), free(header), free(all);
    return good;
}

int main(int count, char **arguments) {
    if (count < 2) die("usage: check DIR [BUG]", arguments[0]);
    if (count > 2) bug = arguments[2];
    char path[4096], id[256];
    size_t size;
    int passed = 0, failed = 0, refused = 0;
    snprintf(path, sizeof path, "%s/index.json", arguments[1]);
    char *index = read_all(path, &size);
    const char *p = blank(need(index, "cases") + 1);
    while (*p == '{') {
        text(need(p, "id"), id, sizeof id);
        const char *reason = unsupported(p);
        int good = reason ? 0 : check(p, arguments[1]);
        printf("%s %s %s\n", reason ? "unsupported" : good ? "passed" : "failed", id, reason ? reason : "");
        *(reason ? &refused : good ? &passed : &failed) += 1;
        p = blank(skip(p));
        if (*p == ',') p = blank(p + 1);
    }
    printf("%d passed, %d failed, %d unsupported\n", passed, failed, refused);
    free(index);
    return failed || !passed;
}

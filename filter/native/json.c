// Reads one value of a JSON text. The text is Envoy's own, but clients choose its contents: the length,
// the depth and each byte are checked.
#include "json.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { DEEPEST = 32, LONGEST = 1 << 20, LONGEST_NUMBER = 64 };

// A cursor is a place in a text. Functions that read report false for a mistake in it.
typedef struct cursor {
	const char *at, *end;
} cursor;

// append adds bytes to a buffer, and reports false if it would become too long.
static bool append(buffer *b, const void *bytes, size_t length) {
	if (length > LONGEST - b->length) {
		return false;
	}
	if (b->length + length > b->room) {
		size_t room = (b->length + length) * 2;
		char *grown = realloc(b->bytes, room);
		if (grown == NULL) {
			return false;
		}
		b->bytes = grown;
		b->room = room;
	}
	if (length > 0) {
		memcpy(b->bytes + b->length, bytes, length);
	}
	b->length += length;
	return true;
}

// peek skips spaces and returns the next byte, 0 at the end.
static char peek(cursor *c) {
	while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t' || *c->at == '\r')) {
		c->at++;
	}
	return c->at < c->end ? *c->at : 0;
}

// take reads one byte if it is the next.
static bool take(cursor *c, char want) {
	if (peek(c) != want) {
		return false;
	}
	c->at++;
	return true;
}

// read_hex reads the four digits of an escape.
static bool read_hex(cursor *c, uint32_t *n) {
	*n = 0;
	for (int i = 0; i < 4; i++) {
		char d = c->at < c->end ? *c->at++ : 0;
		if (d >= '0' && d <= '9') {
			*n = *n * 16 + (uint32_t)(d - '0');
		} else if ((d | 32) >= 'a' && (d | 32) <= 'f') {
			*n = *n * 16 + (uint32_t)((d | 32) - 'a' + 10);
		} else {
			return false;
		}
	}
	return true;
}

// append_rune appends a character in UTF-8.
static bool append_rune(buffer *to, uint32_t r) {
	char b[4];
	size_t n;
	if (r < 0x80) {
		b[0] = (char)r;
		n = 1;
	} else if (r < 0x800) {
		b[0] = (char)(0xc0 | r >> 6);
		b[1] = (char)(0x80 | (r & 63));
		n = 2;
	} else if (r < 0x10000) {
		b[0] = (char)(0xe0 | r >> 12);
		b[1] = (char)(0x80 | (r >> 6 & 63));
		b[2] = (char)(0x80 | (r & 63));
		n = 3;
	} else {
		b[0] = (char)(0xf0 | r >> 18);
		b[1] = (char)(0x80 | (r >> 12 & 63));
		b[2] = (char)(0x80 | (r >> 6 & 63));
		b[3] = (char)(0x80 | (r & 63));
		n = 4;
	}
	return append(to, b, n);
}

// read_escape reads the rest of an escape, behind its backslash.
static bool read_escape(cursor *c, buffer *to) {
	static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
	char e = c->at < c->end ? *c->at++ : 0;
	if (e != 'u') {
		const char *found = e != 0 ? strchr(from, e) : NULL;
		return found != NULL && append(to, &into[found - from], 1);
	}
	uint32_t r, low;
	if (!read_hex(c, &r)) {
		return false;
	}
	if (r >= 0xd800 && r < 0xdc00 && c->end - c->at >= 6 && c->at[0] == '\\' && c->at[1] == 'u') {
		c->at += 2;
		if (!read_hex(c, &low) || low < 0xdc00 || low >= 0xe000) {
			return false;
		}
		r = 0x10000 + ((r - 0xd800) << 10) + (low - 0xdc00);
	}
	return append_rune(to, r);
}

// read_string reads a string.
static bool read_string(cursor *c, buffer *to) {
	if (!take(c, '"')) {
		return false;
	}
	while (c->at < c->end && *c->at != '"') {
		const char *from = c->at;
		while (c->at < c->end && *c->at != '"' && *c->at != '\\') {
			c->at++;
		}
		if (!append(to, from, (size_t)(c->at - from))) {
			return false;
		}
		if (c->at < c->end && *c->at == '\\') {
			c->at++;
			if (!read_escape(c, to)) {
				return false;
			}
		}
	}
	return take(c, '"');
}

// read_number reads a number: eight bytes of a double.
static bool read_number(cursor *c, buffer *to) {
	char digits[LONGEST_NUMBER + 1];
	size_t n = 0;
	while (c->at < c->end && n < LONGEST_NUMBER && strchr("+-.0123456789eE", *c->at) != NULL && *c->at != 0) {
		digits[n++] = *c->at++;
	}
	digits[n] = 0;
	char *end;
	double number = strtod(digits, &end);
	return n > 0 && *end == 0 && append(to, &number, sizeof number);
}

// read_word reads one of the words of JSON.
static bool read_word(cursor *c, const char *word) {
	size_t n = strlen(word);
	if ((size_t)(c->end - c->at) < n || memcmp(c->at, word, n) != 0) {
		return false;
	}
	c->at += n;
	return true;
}

static bool read_value(cursor *c, buffer *to, int depth);

// append_pairs appends lists and objects as Envoy does: as a header map, a list with its elements as
// names.
static bool append_pairs(buffer *to, const buffer *lengths, const buffer *texts) {
	uint32_t count = (uint32_t)(lengths->length / (2 * sizeof(uint32_t)));
	return append(to, &count, sizeof count) && append(to, lengths->bytes, lengths->length) &&
		append(to, texts->bytes, texts->length);
}

// read_part reads a name or a value of a pair, and notes its length.
static bool read_part(cursor *c, buffer *lengths, buffer *texts, bool name, int depth) {
	size_t before = texts->length;
	if (!(name ? read_string(c, texts) : read_value(c, texts, depth))) {
		return false;
	}
	uint32_t length = (uint32_t)(texts->length - before);
	return append(texts, "", 1) && append(lengths, &length, sizeof length);
}

// read_pairs reads a list or an object, behind its first byte.
static bool read_pairs(cursor *c, buffer *lengths, buffer *texts, bool object, int depth) {
	const uint32_t none = 0;
	const char last = object ? '}' : ']';
	if (take(c, last)) {
		return true;
	}
	do {
		if (object) {
			if (!read_part(c, lengths, texts, true, depth) || !take(c, ':')) {
				return false;
			}
		}
		if (!read_part(c, lengths, texts, false, depth)) {
			return false;
		}
		if (!object && !(append(texts, "", 1) && append(lengths, &none, sizeof none))) {
			return false;
		}
	} while (take(c, ','));
	return take(c, last);
}

// read_value reads a value: a string as it is, a number as a double, a truth as one byte, and the other
// kinds as pairs. Of null nothing remains.
static bool read_value(cursor *c, buffer *to, int depth) {
	const char no = 0, yes = 1;
	switch (peek(c)) {
	case '"': return read_string(c, to);
	case 't': return read_word(c, "true") && append(to, &yes, 1);
	case 'f': return read_word(c, "false") && append(to, &no, 1);
	case 'n': return read_word(c, "null");
	case '{':
	case '[': break;
	default: return read_number(c, to);
	}
	if (depth >= DEEPEST) {
		return false;
	}
	bool object = *c->at++ == '{';
	buffer lengths = {0}, texts = {0};
	bool read = read_pairs(c, &lengths, &texts, object, depth + 1) && append_pairs(to, &lengths, &texts);
	free(lengths.bytes);
	free(texts.bytes);
	return read;
}

// enter goes to the value of an object's member, and reports false if there is none.
static bool enter(cursor *c, const char *name, size_t length) {
	buffer text = {0};
	bool found = false;
	if (take(c, '{') && !take(c, '}')) {
		do {
			text.length = 0;
			if (!read_string(c, &text) || !take(c, ':')) {
				break;
			}
			if (text.length == length && (length == 0 || memcmp(text.bytes, name, length) == 0)) {
				found = true;
				break;
			}
			text.length = 0;
			if (!read_value(c, &text, 0)) {
				break;
			}
		} while (take(c, ','));
	}
	free(text.bytes);
	return found;
}

// find_json appends the value at a path, whose names are separated by zeros, and reports false if the
// text has none there.
bool find_json(const char *json, size_t length, const char *path, size_t path_length, buffer *to) {
	cursor c = {json, json + length};
	const char *end = path + path_length;
	while (path <= end) {
		const char *zero = memchr(path, 0, (size_t)(end - path));
		size_t n = (size_t)((zero != NULL ? zero : end) - path);
		if (!enter(&c, path, n)) {
			return false;
		}
		path += n + 1;
	}
	return read_value(&c, to, 0);
}

package main

import (
	"errors"
	"fmt"
	"unicode/utf8"
)

// Section ids of the WebAssembly binary format that this program looks into; all others pass
// through untouched.
const (
	sectionCustom = 0
	sectionImport = 2
	sectionExport = 7
)

// maxEntries bounds every vector that is decoded, so that a length field alone can never make the
// program allocate much. A filter has a few dozen imports and exports.
const maxEntries = 10_000

var header = []byte{0x00, 'a', 's', 'm', 0x01, 0x00, 0x00, 0x00}

// kindNames are the five things a module can import or export, by their number in the binary
// format.
var kindNames = [...]string{"function", "table", "memory", "global", "tag"}

// section is one section as it stands in the file: its id and its bytes without id and length.
type section struct {
	id   byte
	body []byte
}

// entity is one import or export. Module is empty for exports. Index is the exported index and zero
// for imports.
type entity struct {
	module string
	name   string
	kind   byte
	index  uint32
}

func (e entity) String() string {
	name := e.name
	if e.module != "" {
		name = e.module + "." + e.name
	}
	return fmt.Sprintf("%s %q", kindNames[e.kind], name)
}

// module is a decoded file. Sections keep their order and alias the file's bytes.
type module struct {
	size     int
	sections []section
	imports  []entity
	exports  []entity
}

// decodeModule reads the section list, the imports and the exports of a module. Code, data and
// types are not looked at: the engine that loads the module validates those.
func decodeModule(file []byte) (*module, error) {
	if len(file) < len(header) || string(file[:len(header)]) != string(header) {
		return nil, errors.New("not a WebAssembly version 1 module: the first 8 bytes are wrong")
	}
	m := &module{size: len(file)}
	seen := map[byte]bool{}
	r := &reader{data: file, pos: len(header)}
	for r.pos < len(file) {
		at := r.pos
		s := section{id: r.readByte()}
		s.body = r.readBytes(r.uint32())
		if r.err != nil {
			return nil, fmt.Errorf("section at byte %d: %w", at, r.err)
		}
		if s.id != sectionCustom && seen[s.id] {
			return nil, fmt.Errorf("section at byte %d: a second section with id %d", at, s.id)
		}
		seen[s.id] = true
		m.sections = append(m.sections, s)
		if err := m.readSection(s); err != nil {
			return nil, fmt.Errorf("section %d at byte %d: %w", s.id, at, err)
		}
	}
	return m, nil
}

// readSection decodes s if it lists imports or exports.
func (m *module) readSection(s section) (err error) {
	switch s.id {
	case sectionImport:
		m.imports, err = decodeEntities(s.body, (*reader).importEntry)
	case sectionExport:
		m.exports, err = decodeEntities(s.body, (*reader).exportEntry)
	}
	return err
}

func decodeEntities(body []byte, next func(*reader) entity) ([]entity, error) {
	r := &reader{data: body}
	n := r.uint32()
	if n > maxEntries {
		return nil, fmt.Errorf("%d entries, at most %d are accepted", n, maxEntries)
	}
	var out []entity
	for i := uint32(0); i < n && r.err == nil; i++ {
		out = append(out, next(r))
	}
	if r.err == nil && r.pos != len(body) {
		r.failWith("%d bytes are left over", len(body)-r.pos)
	}
	return out, r.err
}

// reader takes values off a byte slice. After the first error it returns zero values only and keeps
// that error.
type reader struct {
	data []byte
	pos  int
	err  error
}

func (r *reader) failWith(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
}

func (r *reader) readByte() byte {
	b := r.readBytes(1)
	if len(b) == 0 {
		return 0
	}
	return b[0]
}

func (r *reader) readBytes(n uint32) []byte {
	if r.err != nil {
		return nil
	}
	if uint64(n) > uint64(len(r.data)-r.pos) {
		r.failWith("%d bytes wanted, %d left", n, len(r.data)-r.pos)
		return nil
	}
	b := r.data[r.pos : r.pos+int(n)]
	r.pos += int(n)
	return b
}

// readLEB reads an unsigned LEB128 number of at most the given bits.
func (r *reader) readLEB(bits uint) uint64 {
	var v uint64
	for shift := uint(0); shift < bits; shift += 7 {
		b := r.readByte()
		if r.err != nil {
			return 0
		}
		if left := bits - shift; left < 7 && b&0x7f>>left != 0 {
			break
		}
		v |= uint64(b&0x7f) << shift
		if b&0x80 == 0 {
			return v
		}
	}
	r.failWith("a number is longer than %d bits", bits)
	return 0
}

func (r *reader) uint32() uint32 { return uint32(r.readLEB(32)) }

func (r *reader) readName() string {
	b := r.readBytes(r.uint32())
	if !utf8.Valid(b) {
		r.failWith("a name is not UTF-8")
	}
	return string(b)
}

func (r *reader) readKind() byte {
	k := r.readByte()
	if int(k) >= len(kindNames) {
		r.failWith("unknown kind %d of import or export", k)
		return 0
	}
	return k
}

func (r *reader) exportEntry() entity {
	return entity{name: r.readName(), kind: r.readKind(), index: r.uint32()}
}

func (r *reader) importEntry() entity {
	e := entity{module: r.readName(), name: r.readName(), kind: r.readKind()}
	switch kindNames[e.kind] {
	case "function":
		r.uint32()
	case "table":
		r.readByte()
		r.readLimits()
	case "memory":
		r.readLimits()
	case "global":
		r.readBytes(2)
	case "tag":
		r.readByte()
		r.uint32()
	}
	return e
}

// readLimits skips the size limits of a table or memory; bit 2 of the flags means 64-bit numbers.
func (r *reader) readLimits() {
	flags := r.readByte()
	if flags > 7 {
		r.failWith("unknown flags %#x of a table or memory", flags)
		return
	}
	bits := uint(32)
	if flags&4 != 0 {
		bits = 64
	}
	r.readLEB(bits)
	if flags&1 != 0 {
		r.readLEB(bits)
	}
}

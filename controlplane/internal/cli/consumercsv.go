package cli

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
)

// rows reads consumers from a CSV file.
type rows struct {
	csv     *csv.Reader
	columns []string
	held    *row // the row that was read and is not in a batch yet; nil if there is none
	// problems are all problems so far, of this file and from the control plane.
	problems []lineProblem
	// lines has the line where each consumer was seen first, by a hash under seed.
	lines map[uint64]int
	seed  maphash.Seed
}

// row is a row of the file.
type row struct {
	item api.ConsumerItem
	// line is the number of the row's line. size is about the number of its bytes in a batch.
	line, size int
	// problems are the problems in the row.
	problems []lineProblem
}

// columns are the names of all columns that a file may have.
var columns = []string{
	"id", "source", "tier", "banned", "banned_reason", "banned_until",
	"bypass", "bypass_reason", "bypass_until", "overrides",
}

// newRows reads the line of column names.
func newRows(file io.Reader) (*rows, error) {
	r := &rows{csv: csv.NewReader(&shortLines{of: file, line: 1})}
	head, err := r.csv.Read()
	if err == io.EOF {
		return nil, errors.New("the file is empty: its first line names the columns, like id,tier")
	}
	if err != nil {
		return nil, fmt.Errorf("the line of column names cannot be read: %w", err)
	}
	r.columns = slices.Clone(head)
	r.columns[0] = strings.TrimPrefix(r.columns[0], "\ufeff") // as spreadsheets begin a file
	for i, name := range r.columns {
		if !slices.Contains(columns, name) {
			return nil, fmt.Errorf("there is no column %.64q; there are %s", name, strings.Join(columns, ", "))
		}
		if slices.Contains(r.columns[:i], name) {
			return nil, fmt.Errorf("the column %s is there twice", name)
		}
	}
	if !slices.Contains(r.columns, "id") {
		return nil, errors.New("the column id is missing: it names the consumer")
	}
	r.csv.ReuseRecord = true
	return r, nil
}

// readBatch reads a batch: at most batchSize rows and about batchBytes. It leaves out rows before
// the line from, and rows with a mistake. It reports whether there are more rows.
func (r *rows) readBatch(from int) (batch api.ConsumerBatch, lines []int, more bool) {
	size := 0
	for len(lines) < batchSize {
		if r.held == nil {
			r.held, more = r.readRow(from)
			if !more {
				return batch, lines, false
			}
		}
		size += r.held.size
		if size > batchBytes && len(lines) > 0 {
			break
		}
		if r.held.line >= from && len(r.held.problems) == 0 {
			batch.Consumers, lines = append(batch.Consumers, r.held.item), append(lines, r.held.line)
		}
		r.held = nil
	}
	return batch, lines, true
}

// readRow reads a row and notes its problems. It returns false at the end, and when the rest of the
// file is not CSV.
func (r *rows) readRow(from int) (*row, bool) {
	fields, err := r.csv.Read()
	var broken *csv.ParseError
	switch {
	case err == io.EOF:
		return nil, false
	case errors.As(err, &broken) && errors.Is(err, csv.ErrFieldCount):
		reason := "has " + plural(len(fields), "field", "fields")
		reason += fmt.Sprintf("; the line of column names has %d", len(r.columns))
		wrong := lineProblem{broken.StartLine, "", reason}
		return r.noteProblems(&row{line: wrong.line, problems: []lineProblem{wrong}}, from), true
	case errors.As(err, &broken):
		r.problems = append(r.problems, lineProblem{broken.StartLine, "", broken.Err.Error()})
		return nil, false
	case err != nil:
		r.problems = append(r.problems, lineProblem{0, "", err.Error()})
		return nil, false
	}
	line, _ := r.csv.FieldPos(0)
	read := &row{line: line}
	r.readFields(read, fields)
	if before, twice := r.noteConsumer(read.item, line); twice {
		reason := fmt.Sprintf("the same as in line %d", before)
		read.problems = append(read.problems, lineProblem{line, "id", reason})
	}
	return r.noteProblems(read, from), true
}

// noteProblems notes the problems of a row, unless it is before the line from.
func (r *rows) noteProblems(read *row, from int) *row {
	if read.line >= from {
		r.problems = append(r.problems, read.problems...)
	}
	return read
}

// noteConsumer notes a consumer. If the file has the consumer twice, it returns the line of the
// first. It keeps only a hash of each consumer, because files may be long.
func (r *rows) noteConsumer(item api.ConsumerItem, line int) (before int, twice bool) {
	if item.ID == "" {
		return 0, false
	}
	if r.lines == nil {
		r.lines, r.seed = map[uint64]int{}, maphash.MakeSeed()
	}
	hash := maphash.String(r.seed, item.Source+"\x00"+item.ID)
	before, twice = r.lines[hash]
	if !twice {
		r.lines[hash] = line
	}
	return before, twice
}

// readFields reads a row's fields.
func (r *rows) readFields(into *row, fields []string) {
	var banned, bypass mark
	for i, name := range r.columns {
		text := fields[i]
		into.size += len(text) + 64
		var err error
		if !utf8.ValidString(text) {
			// JSON would carry a replacement for each wrong byte, which is another consumer.
			into.noteProblem(name, errors.New("is not UTF-8: save the file in that encoding"))
			continue
		}
		switch name {
		case "id":
			into.item.ID = text
			if strings.TrimSpace(text) != text {
				err = errors.New("begins or ends with a blank")
			}
		case "source":
			into.item.Source = text
		case "tier":
			into.item.Tier = text
		case "overrides":
			if text != "" {
				err = json.Unmarshal([]byte(text), &into.item.Overrides)
			}
		default:
			m := &banned
			if strings.HasPrefix(name, "bypass") {
				m = &bypass
			}
			err = m.setColumn(name, text)
		}
		into.noteProblem(name, err)
	}
	into.item.Banned, into.item.Bypass = banned.answer(), bypass.answer()
}

// noteProblem adds the problem with a column, if there is any.
func (r *row) noteProblem(column string, err error) {
	if err != nil {
		r.problems = append(r.problems, lineProblem{r.line, column, err.Error()})
	}
}

// mark is a ban or a bypass, which takes several columns.
type mark struct {
	// on is true if the column banned or bypass says yes, off if it says no. Both are false if it
	// is empty.
	on, off bool
	api.ConsumerMark
}

// truths are the values that the columns banned and bypass may have.
var truths = map[string]bool{"true": true, "yes": true, "false": false, "no": false}

// setColumn reads one of the mark's columns: banned or bypass itself, the reason, or the end. An
// empty column changes nothing.
func (m *mark) setColumn(column, text string) error {
	if text == "" {
		return nil
	}
	switch {
	case strings.HasSuffix(column, "_reason"):
		m.Reason = text
	case strings.HasSuffix(column, "_until"):
		at, err := parseMoment(text)
		if err != nil {
			return err
		}
		m.ExpiresAt = &at
	default:
		yes, known := truths[strings.ToLower(text)]
		if !known {
			return fmt.Errorf("%q is none of true, yes, false and no", text)
		}
		m.on, m.off = yes, !yes
	}
	return nil
}

// answer returns the mark; nil if there is none. There is a mark if any of its columns has a value
// and no column says false.
func (m *mark) answer() *api.ConsumerMark {
	if m.off || !m.on && m.Reason == "" && m.ExpiresAt == nil {
		return nil
	}
	return &m.ConsumerMark
}

// maxLine is the largest number of bytes of a line: many times the longest possible consumer.
const maxLine = 1 << 20

// shortLines refuses a file with a line that is too long, before the line is in memory. Such a file
// may not be CSV at all.
type shortLines struct {
	of io.Reader
	// line is the number of the current line, and read is the number of bytes read of it.
	line, read int
}

// Read implements io.Reader.
func (s *shortLines) Read(p []byte) (int, error) {
	n, err := s.of.Read(p)
	for _, b := range p[:n] {
		s.read++
		if b == '\n' {
			s.line, s.read = s.line+1, 0
		}
		if s.read > maxLine {
			return 0, fmt.Errorf("line %d has more than %d bytes: is this the right file?", s.line, maxLine)
		}
	}
	return n, err
}

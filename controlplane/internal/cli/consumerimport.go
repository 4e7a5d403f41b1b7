package cli

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/api"
	"github.com/weir-proxy/weir/shared/policy"
)

// batchSize is how many consumers go into one request: as many as may, and no more bytes than it may have.
const (
	batchSize  = 1000
	batchBytes = 3 << 20

	// A store that does not answer is asked again after the one wait, and the double each time, up to the other.
	firstWait = 250 * time.Millisecond
	lastWait  = 8 * time.Second
)

type importConsumers struct {
	serverFlags
	File   string `arg:"" help:"CSV with a line of column names: id, and any of source, tier, banned, banned_reason, banned_until, bypass, bypass_reason, bypass_until, overrides (a JSON list)."`
	From   int    `help:"The line to begin at, to go on where an import has stopped." default:"2" placeholder:"LINE"`
	DryRun bool   `help:"Only check all lines."`
	Output string `short:"o" enum:"text,json" default:"text" help:"text or json."`
}

// imported is what an import has done.
type imported struct {
	Written int  `json:"written"`
	Batches int  `json:"batches"`
	DryRun  bool `json:"dry_run"`
	// Line is that of the file up to which all is written.
	Line int `json:"line"`
}

// Run sends the file batch by batch. What has been written stays written if a later batch is refused.
func (c *importConsumers) Run(env *environment) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	file, err := os.Open(c.File)
	if err != nil {
		return err
	}
	defer file.Close()
	rows, err := newRows(file)
	if err != nil {
		return fmt.Errorf("%s: %w", c.File, err)
	}
	shown := newProgress(env.Err, file)
	done := imported{DryRun: c.DryRun, Line: 1}
	for more := true; more && err == nil; {
		var batch api.ConsumerBatch
		var lines []int
		if batch, lines, more, err = rows.batch(c.From); err == nil && len(lines) > 0 {
			if err = c.send(cl, batch, lines); err == nil {
				done.Written, done.Batches, done.Line = done.Written+len(lines), done.Batches+1, lines[len(lines)-1]
				shown.at(rows.csv.InputOffset())
			}
		}
	}
	shown.end()
	if err != nil {
		err = fmt.Errorf("%s: %w", c.File, err)
		if done.Written > 0 && !c.DryRun {
			err = fmt.Errorf("%w\n%d consumers up to line %d are written; go on with --from %d", err, done.Written, done.Line, done.Line+1)
		}
		return err
	}
	if c.Output == "json" {
		return printJSON(env.Out, done)
	}
	verb := "written"
	if c.DryRun {
		verb = "checked"
	}
	_, err = fmt.Fprintf(env.Out, "%d consumers %s\n", done.Written, verb)
	return err
}

// send puts one batch; lines are those of its consumers.
func (c *importConsumers) send(cl *client, batch api.ConsumerBatch, lines []int) error {
	body, err := json.Marshal(batch)
	if err != nil {
		return err
	}
	path := "/v1/consumers"
	if c.DryRun {
		path += "?dry_run=true"
	}
	header := map[string]string{"If-Match": "*", "Content-Type": "application/json"}
	for wait := firstWait; ; wait *= 2 {
		_, err = cl.do(http.MethodPost, path, header, body)
		if !refusedWith(err, http.StatusServiceUnavailable) || wait > lastWait {
			break
		}
		time.Sleep(wait)
	}
	var refused *refusal
	if !errors.As(err, &refused) || len(refused.Problems) == 0 {
		return err
	}
	var problems policy.Problems
	for _, p := range refused.Problems {
		problems = append(problems, policy.Problem{Path: inFile(p.Path, lines), Reason: p.Reason})
	}
	return problems
}

// inFile says in which line of the file something is that the control plane calls consumers[n].
func inFile(path string, lines []int) string {
	rest, found := strings.CutPrefix(path, "consumers[")
	number, field, closed := strings.Cut(rest, "]")
	if n, err := strconv.Atoi(number); found && closed && err == nil && n < len(lines) {
		return strings.TrimSuffix(fmt.Sprintf("line %d %s", lines[n], strings.TrimPrefix(field, ".")), " ")
	}
	return path
}

// rows reads consumers from a CSV file.
type rows struct {
	csv     *csv.Reader
	columns []string
	held    *row // read and not yet in a batch
}

type row struct {
	item api.ConsumerItem
	line int
	size int
}

var columns = []string{"id", "source", "tier", "banned", "banned_reason", "banned_until", "bypass", "bypass_reason", "bypass_until", "overrides"}

func newRows(file io.Reader) (*rows, error) {
	r := &rows{csv: csv.NewReader(file)}
	head, err := r.csv.Read()
	if err != nil {
		return nil, fmt.Errorf("the line of column names cannot be read: %w", err)
	}
	r.columns = slices.Clone(head)
	r.columns[0] = strings.TrimPrefix(r.columns[0], "\ufeff") // as spreadsheets begin a file
	for i, name := range r.columns {
		if !slices.Contains(columns, name) {
			return nil, fmt.Errorf("there is no column %q; there are %s", name, strings.Join(columns, ", "))
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

// batch reads up to a batch full of rows, from a line on, and says whether there is more.
func (r *rows) batch(from int) (batch api.ConsumerBatch, lines []int, more bool, err error) {
	size := 0
	for len(lines) < batchSize {
		if r.held == nil {
			if r.held, err = r.next(); err == io.EOF {
				return batch, lines, false, nil
			} else if err != nil {
				return batch, lines, false, err
			}
		}
		if size += r.held.size; size > batchBytes && len(lines) > 0 {
			break
		}
		if r.held.line >= from {
			batch.Consumers, lines = append(batch.Consumers, r.held.item), append(lines, r.held.line)
		}
		r.held = nil
	}
	return batch, lines, true, nil
}

func (r *rows) next() (*row, error) {
	fields, err := r.csv.Read()
	if err != nil {
		return nil, err
	}
	line, _ := r.csv.FieldPos(0)
	read := &row{line: line}
	var banned, bypass mark
	for i, name := range r.columns {
		text := fields[i]
		read.size += len(text) + 64
		switch name {
		case "id":
			read.item.ID = text
		case "source":
			read.item.Source = text
		case "tier":
			read.item.Tier = text
		case "overrides":
			if text != "" {
				err = json.Unmarshal([]byte(text), &read.item.Overrides)
			}
		default:
			m := &banned
			if strings.HasPrefix(name, "bypass") {
				m = &bypass
			}
			err = m.set(name, text)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d %s: %w", line, name, err)
		}
	}
	read.item.Banned, read.item.Bypass = banned.answer(), bypass.answer()
	return read, nil
}

// mark is a ban or a bypass, spread over columns.
type mark struct {
	on, off bool
	api.ConsumerMark
}

func (m *mark) set(column, text string) error {
	switch {
	case text == "":
	case strings.HasSuffix(column, "_reason"):
		m.Reason = text
	case strings.HasSuffix(column, "_until"):
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return fmt.Errorf("%q is not like 2030-01-01T00:00:00Z", text)
		}
		m.ExpiresAt = &at
	case text == "true":
		m.on = true
	case text == "false":
		m.off = true
	default:
		return fmt.Errorf("%q is neither true nor false", text)
	}
	return nil
}

// answer is nil if there is none: it is there if any of its columns says something and none says false.
func (m *mark) answer() *api.ConsumerMark {
	if m.off || !m.on && m.Reason == "" && m.ExpiresAt == nil {
		return nil
	}
	return &m.ConsumerMark
}

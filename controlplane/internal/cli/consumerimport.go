package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
)

// batchSize and batchBytes bound the consumers and the bytes of one request: they are the maximum
// that the control plane accepts.
const (
	batchSize  = 1000
	batchBytes = 3 << 20

	// A store that does not answer is asked again after the one wait, and the double each time, up
	// to the other.
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

// imported is the result of an import.
type imported struct {
	Written int  `json:"written"`
	Batches int  `json:"batches"`
	DryRun  bool `json:"dry_run"`
	// Line is the line of the file up to which all consumers are written.
	Line int `json:"line"`
}

// Run checks the whole file and then writes it batch by batch: a file with a mistake changes
// nothing.
func (c *importConsumers) Run(env *environment) error {
	cl, err := c.newClient()
	if err != nil {
		return err
	}
	done, err := c.sendFile(env, cl, true)
	if err == nil && !c.DryRun {
		done, err = c.sendFile(env, cl, false)
	}
	if err != nil {
		return err
	}
	if c.Output == "json" {
		return printJSON(env.Out, done)
	}
	verb := "written"
	if c.DryRun {
		verb = "checked"
	}
	_, err = fmt.Fprintf(env.Out, "%s %s\n", plural(done.Written, "consumer", "consumers"), verb)
	return err
}

// sendFile sends the file once, to be checked or to be written. A check finds all that is wrong;
// writing ends at the first batch that is refused.
func (c *importConsumers) sendFile(
	env *environment, cl *client, check bool,
) (done imported, err error) {
	file, err := os.Open(c.File)
	if err != nil {
		return done, err
	}
	defer file.Close()
	rows, err := newRows(file)
	if err != nil {
		return done, fmt.Errorf("%s: %w", c.File, err)
	}
	shown := newProgress(env.Err, file)
	defer shown.end()
	done = imported{DryRun: check, Line: 1}
	for more := true; more && len(rows.problems) < maxProblems; {
		var batch api.ConsumerBatch
		var lines []int
		batch, lines, more = rows.readBatch(c.From)
		if !check && len(rows.problems) > 0 { // The file has changed since the check.
			break
		}
		if len(lines) == 0 {
			continue
		}
		problems, err := c.sendBatch(cl, batch, lines, check)
		if err != nil && done.Written > 0 && !check {
			err = fmt.Errorf("%w\n%s", err, done.goOn())
		}
		if err != nil {
			return done, fmt.Errorf("%s: %w", c.File, err)
		}
		rows.problems = append(rows.problems, problems...)
		if !check && len(problems) > 0 {
			break
		}
		done.Written += len(lines)
		done.Batches++
		done.Line = lines[len(lines)-1]
		shown.at(rows.csv.InputOffset())
	}
	return done, rows.problemsError(c.File, done)
}

// goOn says how much is written, and how to write the rest.
func (d imported) goOn() string {
	are := "are"
	if d.Written == 1 {
		are = "is"
	}
	return fmt.Sprintf("%s up to line %d %s written; go on with --from %d",
		plural(d.Written, "consumer", "consumers"), d.Line, are, d.Line+1)
}

// maxProblems is the largest number of mistakes that are listed of a file.
const maxProblems = 100

// problemsError returns an error with the problems of the file in the order of its lines, and with
// the written part; nil without problems.
func (r *rows) problemsError(file string, done imported) error {
	found := r.problems[:min(len(r.problems), maxProblems)]
	slices.SortStableFunc(found, func(a, b lineProblem) int { return a.line - b.line })
	some := done.Written > 0 && !done.DryRun
	switch {
	case len(found) == 0:
		return nil
	case len(found) == 1 && !some:
		return fmt.Errorf("%s: %s", file, found[0])
	}
	text := file + ": nothing is written, since"
	if some {
		text = fmt.Sprintf("%s: nothing after line %d is written, since", file, done.Line)
	}
	for _, p := range found {
		text += "\n  " + p.String()
	}
	if some {
		text += "\n" + done.goOn()
	}
	return errors.New(text)
}

// lineProblem is a problem in a line of the file.
type lineProblem struct {
	line          int
	field, reason string
}

func (p lineProblem) String() string {
	text := p.field
	if p.line > 0 {
		text = strings.TrimSpace(fmt.Sprintf("line %d %s", p.line, p.field))
	}
	return text + ": " + p.reason
}

// sendBatch puts one batch, or only checks it. lines are the lines of its consumers.
func (c *importConsumers) sendBatch(
	cl *client, batch api.ConsumerBatch, lines []int, check bool,
) (found []lineProblem, err error) {
	body, err := json.Marshal(batch)
	if err != nil {
		return nil, err
	}
	path := "/v1/consumers" + dryRunQuery(check)
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
		return nil, err
	}
	for _, p := range refused.Problems {
		at, field := inFile(p.Path, lines)
		reason := batchItem.ReplaceAllStringFunc(p.Reason, func(text string) string {
			line, _ := inFile(text, lines)
			return fmt.Sprintf("line %d", line)
		})
		found = append(found, lineProblem{at, field, reason})
	}
	return found, nil
}

// batchItem matches the control plane's name for a consumer of a batch.
var batchItem = regexp.MustCompile(`consumers\[\d+\]`)

// inFile returns the line of the file, and the field, for a path consumers[n].field of the control
// plane. For another path it returns line 0.
func inFile(path string, lines []int) (line int, field string) {
	rest, found := strings.CutPrefix(path, "consumers[")
	number, field, closed := strings.Cut(rest, "]")
	n, err := strconv.Atoi(number)
	if !found || !closed || err != nil || n >= len(lines) {
		return 0, path
	}
	return lines[n], strings.TrimPrefix(field, ".")
}

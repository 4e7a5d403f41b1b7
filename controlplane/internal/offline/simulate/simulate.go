// Package simulate replays recorded access logs against policy sets, in the time of the log: who
// would have been limited, when, how often and by which policy. It decides as the filter does, with
// one exact bucket for all nodes.
package simulate

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/weir-proxy/weir/shared/policy"
)

const (
	// maxLine is the longest line that is read, in bytes.
	maxLine = 1 << 20
	// shownProblems is how many malformed lines are shown.
	shownProblems = 5
)

// Options say what is simulated.
type Options struct {
	// Set is the policy set in question; Against, if not nil, one to compare it with, as a rule
	// that in force.
	Set, Against *policy.Set
	// Nodes is how many nodes there are: each has a local limit of its own. At least 1.
	Nodes int64
	// Secret keys the hash of partition keys, as that of a deployment does: windows that begin at
	// different times for different keys begin then as they do there. weir simulate does not know
	// it: with it a guess of a key can be checked by its hash.
	Secret [16]byte
	// Fields are the names of fields, by Names and by headers, where they are not as usual.
	Fields map[string]string
	// Top is how many callers are listed.
	Top int
}

// Report is what a simulation found.
type Report struct {
	// Lines are all that were read, Requests those that could be, Malformed the others but for
	// empty ones, of which Problems shows the first.
	Lines     int64    `json:"lines"`
	Requests  int64    `json:"requests"`
	Malformed int64    `json:"malformed"`
	Problems  []string `json:"problems"`
	// Adaptive are the policies of either set whose limit is adaptive. They refuse nothing here:
	// no log says how an upstream would have answered under another limit.
	Adaptive []string `json:"adaptive,omitempty"`
	// Late are requests that came later than Window after their place; they were taken at the time
	// of the one before.
	Late int64 `json:"late"`
	// From and To are the times of the first and the last request.
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	// Recorded are requests that the log says were refused with 429. They count as demand like all
	// others.
	Recorded int64 `json:"recorded_429"`
	// Result is what the policy set makes of them, Against what the other does.
	Result  Result  `json:"result"`
	Against *Result `json:"against,omitempty"`
	// Newly and Freed are the requests that the one refuses and the other does not; nil without
	// another.
	Newly *Change `json:"newly_limited,omitempty"`
	Freed *Change `json:"no_longer_limited,omitempty"`
}

// Result is what a policy set makes of all requests.
type Result struct {
	Refused int64 `json:"refused"`
	Banned  int64 `json:"banned"`
	// Policies are all policies in the order of the document.
	Policies []PolicyResult `json:"policies"`
	// Callers are those with the most refusals; Exact says that their counts are exact.
	Callers []Caller `json:"callers"`
	Limited int      `json:"limited_callers"`
	Exact   bool     `json:"exact"`
	// Forgotten are buckets that were forgotten too early: then too little is refused.
	Forgotten int64 `json:"forgotten_buckets,omitempty"`
	// Unseen are the policies for calls of Envoy's own filters: no access log shows descriptors.
	Unseen []string `json:"unseen_policies,omitempty"`
}

// PolicyResult is what one policy did.
type PolicyResult struct {
	Name    string `json:"name"`
	Refused int64  `json:"refused"`
	// Shadow are requests that it would have refused, in shadow or by its candidate.
	Shadow int64 `json:"shadow_refused"`
	// First is when it first refused.
	First *time.Time `json:"first,omitempty"`
}

// Change are requests that only one of two policy sets refuses.
type Change struct {
	Requests int64    `json:"requests"`
	Limited  int      `json:"callers_count"`
	Callers  []Caller `json:"callers"`
}

// Simulation replays logs. Make one with New.
type Simulation struct {
	o       Options
	fields  *fields
	order   order
	report  Report
	result  *run
	against *run
	newly   callers
	freed   callers
}

// run is one policy set at work.
type run struct {
	*decider
	result  Result
	callers callers
}

// New makes a simulation. The error is about a policy set that cannot be simulated.
func New(o Options) (*Simulation, error) {
	s := &Simulation{o: o, newly: newCallers(MaxCallers), freed: newCallers(MaxCallers)}
	s.report.Problems = []string{}
	var err error
	s.result, err = newRun(o.Set, &o)
	if err != nil {
		return nil, err
	}
	sets := []*policy.Set{o.Set}
	if o.Against != nil {
		sets = append(sets, o.Against)
		s.against, err = newRun(o.Against, &o)
		if err != nil {
			return nil, err
		}
	}
	for _, set := range sets {
		for i := range set.Policies {
			p := &set.Policies[i]
			if p.Adaptive.Max > 0 && !slices.Contains(s.report.Adaptive, p.Name) {
				s.report.Adaptive = append(s.report.Adaptive, p.Name)
			}
		}
	}
	s.fields = newFields(o.Fields, sets...)
	return s, nil
}

func newRun(set *policy.Set, o *Options) (*run, error) {
	d, err := newDecider(set, max(o.Nodes, 1), o.Secret)
	if err != nil {
		return nil, err
	}
	r := &run{decider: d, callers: newCallers(MaxCallers), result: Result{Policies: []PolicyResult{}}}
	for _, p := range set.Policies {
		r.result.Policies = append(r.result.Policies, PolicyResult{Name: p.Name})
		if p.Match.IsOfCalls() {
			r.result.Unseen = append(r.result.Unseen, p.Name)
		}
	}
	return r, nil
}

// Read replays a log: JSON, an object a line, or CSV with a header, plain or packed with gzip. name
// is for messages. The error is the reader's, or that of a header that cannot be read; what is
// wrong with a line is in the report.
func (s *Simulation) Read(name string, in io.Reader) error {
	plain, err := unpacked(in)
	if err != nil {
		return err
	}
	first, number, err := begin(plain)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return err
	}
	var split func(line []byte) (func(string) string, error) = fromJSON
	if first != '{' {
		number++
		split, err = fromCSV(plain)
		if err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
	}
	for {
		line, err := readLine(plain)
		number++
		if len(line) == 0 && errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, errLong) {
			return err
		}
		s.line(fmt.Sprintf("%s:%d", name, number), line, split, errors.Is(err, errLong))
	}
}

// begin skips a byte order mark and empty lines. It returns the first byte behind them, which stays
// to be read, and how many lines it has skipped.
func begin(in *bufio.Reader) (first byte, lines int64, err error) {
	const mark = "\ufeff" // As Windows and spreadsheets begin a file.
	if start, _ := in.Peek(len(mark)); string(start) == mark {
		_, _ = in.Discard(len(mark)) // It is there.
	}
	for {
		b, err := in.ReadByte()
		switch {
		case err != nil:
			return 0, lines, err
		case b == '\n':
			lines++
		case b != ' ' && b != '\t' && b != '\r':
			return b, lines, in.UnreadByte()
		}
	}
}

var errLong = fmt.Errorf("it is longer than %d bytes", maxLine)

// readLine reads a line without its end; errLong for one that is too long, which is skipped.
func readLine(in *bufio.Reader) ([]byte, error) {
	line, err := in.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return bytes.TrimRight(line, "\r\n"), err
	}
	for errors.Is(err, bufio.ErrBufferFull) {
		_, err = in.ReadSlice('\n')
	}
	return []byte{'?'}, errLong
}

func (s *Simulation) line(place string, line []byte, split func([]byte) (func(string) string, error), long bool) {
	if len(bytes.TrimSpace(line)) == 0 {
		return
	}
	s.report.Lines++
	get, err := split(line)
	if long {
		err = errLong
	}
	var r *record
	if err == nil {
		r, err = s.fields.record(get)
	}
	if err != nil {
		s.report.Malformed++
		if len(s.report.Problems) < shownProblems {
			s.report.Problems = append(s.report.Problems, place+": "+err.Error())
		}
		return
	}
	s.order.put(r, s.request)
}

// unpacked undoes gzip.
func unpacked(in io.Reader) (*bufio.Reader, error) {
	plain := bufio.NewReaderSize(in, maxLine)
	magic, err := plain.Peek(2)
	if err != nil || magic[0] != 0x1f || magic[1] != 0x8b {
		return plain, nil
	}
	unpacking, err := gzip.NewReader(plain)
	if err != nil {
		return nil, err
	}
	return bufio.NewReaderSize(unpacking, maxLine), nil
}

// fromCSV reads the header, and returns what reads a line.
func fromCSV(in *bufio.Reader) (func(line []byte) (func(string) string, error), error) {
	line, err := readLine(in)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	names, err := csv.NewReader(bytes.NewReader(line)).Read()
	if err != nil {
		return nil, errors.New("a CSV log needs a header like time,consumer,method,path")
	}
	columns := map[string]int{}
	for i, name := range names {
		columns[strings.ToLower(strings.TrimSpace(name))] = i
	}
	return func(line []byte) (func(string) string, error) {
		r := csv.NewReader(bytes.NewReader(line))
		r.FieldsPerRecord = len(names)
		values, err := r.Read()
		if err != nil {
			return nil, fmt.Errorf("it is no CSV line of %d fields", len(names))
		}
		return func(name string) string {
			if i, ok := columns[strings.ToLower(name)]; ok {
				return values[i]
			}
			return ""
		}, nil
	}, nil
}

// request decides one request, in the order of time.
func (s *Simulation) request(r *record) {
	s.report.Requests++
	if s.report.Requests == 1 {
		s.report.From = instant(r.at)
	}
	s.report.To = instant(r.at)
	if r.limited {
		s.report.Recorded++
	}
	is := s.result.take(r)
	if s.against == nil {
		return
	}
	was := s.against.take(r)
	switch refused := is.refused(); {
	case refused && !was.refused():
		s.newly.add(s.result.nameOf(is), is.who, r.at)
	case !refused && was.refused():
		s.freed.add(s.against.nameOf(was), was.who, r.at)
	}
}

func (v verdict) refused() bool { return v.banned || v.policy >= 0 }

// nameOf is the policy that refuses.
func (r *run) nameOf(v verdict) string {
	if v.banned {
		return "(banned)"
	}
	return r.set.Policies[v.policy].Name
}

// take decides a request and counts what comes of it.
func (r *run) take(request *record) verdict {
	v := r.decide(request)
	for _, i := range v.shadows {
		r.result.Policies[i].Shadow++
	}
	switch {
	case v.banned:
		r.result.Banned++
	case v.policy >= 0:
		r.result.Refused++
		p := &r.result.Policies[v.policy]
		p.Refused++
		if p.First == nil {
			at := instant(request.at)
			p.First = &at
		}
	default:
		return v
	}
	r.callers.add(r.nameOf(v), v.who, request.at)
	return v
}

// Report ends the simulation.
func (s *Simulation) Report() Report {
	s.order.end(s.request)
	s.report.Late = s.order.late
	s.report.Result = s.result.end(s.o.Top)
	if s.against != nil {
		against := s.against.end(s.o.Top)
		s.report.Against = &against
		s.report.Newly, s.report.Freed = s.newly.change(s.o.Top), s.freed.change(s.o.Top)
	}
	return s.report
}

func (r *run) end(top int) Result {
	all, exact := r.callers.all()
	r.result.Callers, r.result.Limited, r.result.Exact = first(all, top), len(all), exact
	r.result.Forgotten = r.forgotten
	return r.result
}

func (c callers) change(top int) *Change {
	all, _ := c.all()
	return &Change{Requests: c.Total(), Limited: len(all), Callers: first(all, top)}
}

// first are the first n callers, never nil.
func first(all []Caller, n int) []Caller { return append([]Caller{}, all[:min(n, len(all))]...) }

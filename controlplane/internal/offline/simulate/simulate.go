// Package simulate replays recorded access logs with policy sets, in the time of the log. It
// reports who would have been limited, when, how often and by which policy. It decides as the
// filter does, with one exact bucket for all nodes.
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
	// maxLine is the maximum length of a line, in bytes.
	maxLine = 1 << 20
	// shownProblems is the maximum number of malformed lines in the report.
	shownProblems = 5
)

// Options are the inputs of a simulation.
type Options struct {
	// Set is the policy set to simulate. Against is a set to compare it with, usually the one in
	// force; nil for none.
	Set, Against *policy.Set
	// Nodes is the number of nodes, at least 1: each has its own local limits.
	Nodes int64
	// Secret is the key of the partition hashes. With a deployment's own secret, windows that begin
	// at different times for different keys begin as they do there. weir simulate does not know
	// that secret, because with it anyone could check a guess of a key against its hash.
	Secret [16]byte
	// Fields are the names of fields in the log, by the keys of Names or by header, if they differ
	// from the usual names.
	Fields map[string]string
	// Top is the maximum number of callers in the report.
	Top int
}

// Report is the result of a simulation.
type Report struct {
	// Lines counts all lines, Requests the lines that are requests, and Malformed the others except
	// empty lines. Problems shows the first of these.
	Lines     int64    `json:"lines"`
	Requests  int64    `json:"requests"`
	Malformed int64    `json:"malformed"`
	Problems  []string `json:"problems"`
	// Adaptive are the policies of either set with an adaptive limit. They refuse nothing here,
	// because a log cannot show how an upstream would have answered under another limit.
	Adaptive []string `json:"adaptive,omitempty"`
	// Late counts requests that came more than Window too late. They count at the time of the
	// request before them.
	Late int64 `json:"late"`
	// From and To are the times of the first and the last request.
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	// Recorded counts requests that the log shows as refused with 429. They count as demand.
	Recorded int64 `json:"recorded_429"`
	// Result is the result of the policy set, Against the result of the other set.
	Result  Result  `json:"result"`
	Against *Result `json:"against,omitempty"`
	// Newly has requests that only this set refuses, Freed that only the other set refuses.
	Newly *Change `json:"newly_limited,omitempty"`
	Freed *Change `json:"no_longer_limited,omitempty"`
}

// Result is the result of one policy set for all requests.
type Result struct {
	Refused int64 `json:"refused"`
	Banned  int64 `json:"banned"`
	// Policies are all policies in the order of the document.
	Policies []PolicyResult `json:"policies"`
	// Callers are the callers with the most refusals. Exact is true if their counts are exact.
	Callers []Caller `json:"callers"`
	Limited int      `json:"limited_callers"`
	Exact   bool     `json:"exact"`
	// Forgotten counts buckets that were dropped too early. If it is not 0, the simulation refuses
	// too little.
	Forgotten int64 `json:"forgotten_buckets,omitempty"`
	// Unseen are the policies for calls of Envoy's own filters, because access logs do not contain
	// descriptors.
	Unseen []string `json:"unseen_policies,omitempty"`
}

// PolicyResult is the result of one policy.
type PolicyResult struct {
	Name    string `json:"name"`
	Refused int64  `json:"refused"`
	// Shadow counts requests that it would have refused in shadow or with its candidate.
	Shadow int64 `json:"shadow_refused"`
	// First is the time of the first refusal; nil if there is none.
	First *time.Time `json:"first,omitempty"`
}

// Change describes the requests that only one of two policy sets refuses.
type Change struct {
	Requests int64    `json:"requests"`
	Limited  int      `json:"callers_count"`
	Callers  []Caller `json:"callers"`
}

// Simulation replays logs. Make a Simulation with New.
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

// run is the state of one policy set in a simulation.
type run struct {
	*decider
	result  Result
	callers callers
}

// New makes a simulation. It fails if a policy set cannot be simulated.
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

// newRun makes the state for one policy set.
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

// Read replays a log. The log is JSON with one object per line, or CSV with a header, plain or
// compressed with gzip. name is used in messages. It fails if the log cannot be read or its header
// is invalid. The report lists malformed lines.
func (s *Simulation) Read(name string, in io.Reader) error {
	// Unpack the log, and find its form by its first character.
	plain, err := unpackLog(in)
	if err != nil {
		return err
	}
	first, number, err := skipToFirst(plain)
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
	// Read the requests, a line each.
	for {
		line, err := readLine(plain)
		number++
		if len(line) == 0 && errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, errLong) {
			return err
		}
		s.readRequest(fmt.Sprintf("%s:%d", name, number), line, split, errors.Is(err, errLong))
	}
}

// skipToFirst skips a byte order mark and empty lines. It returns the first byte after them, which
// is still unread, and the number of lines that it skipped.
func skipToFirst(in *bufio.Reader) (first byte, lines int64, err error) {
	const mark = "\ufeff" // Windows and spreadsheets write it.
	if start, _ := in.Peek(len(mark)); string(start) == mark {
		_, _ = in.Discard(len(mark)) // Peek has seen it.
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

// readLine reads a line without its end. It skips a line that is too long and returns errLong.
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

// readRequest reads the request of a line, and counts the line.
func (s *Simulation) readRequest(
	place string, line []byte, split func([]byte) (func(string) string, error), long bool,
) {
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
		r, err = s.fields.buildRecord(get)
	}
	if err != nil {
		s.report.Malformed++
		if len(s.report.Problems) < shownProblems {
			s.report.Problems = append(s.report.Problems, place+": "+err.Error())
		}
		return
	}
	s.order.putRecord(r, s.decideRequest)
}

// unpackLog decompresses gzip, if the log is compressed.
func unpackLog(in io.Reader) (*bufio.Reader, error) {
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

// fromCSV reads the header and returns a function that reads a line.
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

// decideRequest decides one request. Calls are in the order of time.
func (s *Simulation) decideRequest(r *record) {
	s.report.Requests++
	if s.report.Requests == 1 {
		s.report.From = timeOf(r.at)
	}
	s.report.To = timeOf(r.at)
	if r.limited {
		s.report.Recorded++
	}
	is := s.result.takeRequest(r)
	if s.against == nil {
		return
	}
	was := s.against.takeRequest(r)
	switch refused := is.refused(); {
	case refused && !was.refused():
		s.newly.addRefusal(s.result.nameOf(is), is.who, r.at)
	case !refused && was.refused():
		s.freed.addRefusal(s.against.nameOf(was), was.who, r.at)
	}
}

// refused reports whether the request is refused.
func (v verdict) refused() bool { return v.banned || v.policy >= 0 }

// nameOf returns the name of the policy that refuses.
func (r *run) nameOf(v verdict) string {
	if v.banned {
		return "(banned)"
	}
	return r.set.Policies[v.policy].Name
}

// takeRequest decides a request and counts the result.
func (r *run) takeRequest(request *record) verdict {
	v := r.decideRequest(request)
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
			at := timeOf(request.at)
			p.First = &at
		}
	default:
		return v
	}
	r.callers.addRefusal(r.nameOf(v), v.who, request.at)
	return v
}

// Report ends the simulation and returns the result.
func (s *Simulation) Report() Report {
	s.order.passOnRest(s.decideRequest)
	s.report.Late = s.order.late
	s.report.Result = s.result.resultOf(s.o.Top)
	if s.against != nil {
		against := s.against.resultOf(s.o.Top)
		s.report.Against = &against
		s.report.Newly, s.report.Freed = s.newly.changeOf(s.o.Top), s.freed.changeOf(s.o.Top)
	}
	return s.report
}

// resultOf returns the result of the policy set.
func (r *run) resultOf(top int) Result {
	all, exact := r.callers.listCallers()
	r.result.Callers, r.result.Limited, r.result.Exact = firstCallers(all, top), len(all), exact
	r.result.Forgotten = r.forgotten
	return r.result
}

// changeOf returns the counted requests with the top callers; nil if c is nil.
func (c callers) changeOf(top int) *Change {
	all, _ := c.listCallers()
	return &Change{Requests: c.Total(), Limited: len(all), Callers: firstCallers(all, top)}
}

// firstCallers returns the first n callers, never nil.
func firstCallers(all []Caller, n int) []Caller { return append([]Caller{}, all[:min(n, len(all))]...) }

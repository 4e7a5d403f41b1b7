package series

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"
)

// Query selects series.
type Query struct {
	By By
	// Names are the policies or nodes; nil for all.
	Names    []string
	Outcomes []Outcome
	Kind     Kind
	// Step is a multiple of the kind's step; Range is a multiple of Step.
	Step, Range time.Duration
	// Most is the maximum number of series; the series with the highest totals are returned.
	Most int
}

// Series is one line of a graph.
type Series struct {
	Policy  string  `json:"policy,omitempty"`
	Node    string  `json:"node,omitempty"`
	Outcome Outcome `json:"outcome"`
	// Total is the sum of the values; for InFlight their mean, and for Utilisation the highest.
	Total  float64    `json:"total"`
	Values []*float64 `json:"values"`
}

// Answer is the answer to a Query.
type Answer struct {
	// From is the start of the first value, Until the end of the last value, which may be in the
	// future.
	From, Until time.Time
	Series      []Series
	// Complete is false while the store is away.
	Complete bool
}

// Read answers a query. The series are sorted by their totals, the highest first.
func (s *Service) Read(q Query) Answer {
	end := s.Now().Truncate(q.Step).Add(q.Step)
	from := end.Add(-q.Range)
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := Answer{From: from.UTC(), Until: end.UTC(), Complete: s.complete, Series: []Series{}}
	r := s.rings[q.Kind]
	first, each := q.Kind.At(from).Number, int64(q.Step/q.Kind.Step())
	count := int64(q.Range / q.Step)
	// Find the series and their totals.
	for _, of := range r.selectRows(q) {
		for _, outcome := range q.Outcomes {
			special := outcome.isSpecial() && q.Names == nil
			if special && !r.hasOutcome(of, outcome) && !r.hasOutcome(of, outcome.shownBeside()) {
				continue // Most policies have no such limit.
			}
			one := Series{Outcome: outcome}
			if of.by == ByNode {
				one.Node = of.name
			} else {
				one.Policy = of.name
			}
			if total := s.valueOf(q.Kind, of, outcome, first, each*count); total != nil {
				one.Total = *total
			}
			answer.Series = append(answer.Series, one)
		}
	}
	// Keep the series with the highest totals, and read their values.
	slices.SortFunc(answer.Series, func(a, b Series) int {
		return cmp.Or(cmp.Compare(b.Total, a.Total), cmp.Compare(a.Outcome, b.Outcome),
			strings.Compare(a.Policy+a.Node, b.Policy+b.Node))
	})
	answer.Series = answer.Series[:min(q.Most, len(answer.Series))]
	for i := range answer.Series {
		one := &answer.Series[i]
		of := row{q.By, one.Policy + one.Node}
		for n := range count {
			one.Values = append(one.Values, s.valueOf(q.Kind, of, one.Outcome, first+n*each, each))
		}
	}
	return answer
}

// Fullest returns the Utilisation in the last half minute of each policy that nodes have reported.
// That is longer than nodes take to report and replicas take to read it.
func (s *Service) Fullest() map[string]float64 {
	step := Fine.Step()
	read := s.Read(Query{By: ByPolicy, Outcomes: []Outcome{Utilisation}, Kind: Fine, Step: step, Range: 4 * step,
		Most: maxPolicies})
	full := map[string]float64{}
	for _, one := range read.Series {
		full[one.Policy] = one.Total
	}
	return full
}

// valueOf returns an outcome over n slots, from a slot on; nil if none of the slots is known. The
// lock is held.
func (s *Service) valueOf(kind Kind, of row, outcome Outcome, from, n int64) *float64 {
	total, known := s.rings[kind].sumSpan(of, outcome.index(), from, n)
	if known == 0 {
		return nil
	}
	if outcome == Requests {
		return s.requestsOf(kind, of, from, n)
	}
	value := float64(total)
	if outcome == InFlight {
		now := s.Now()
		lasted, present := time.Duration(known)*kind.Step(), kind.At(now)
		if present.Number >= from && present.Number < from+n && s.rings[kind].knowsSlot(present.Number) {
			lasted -= kind.Step() - now.Sub(present.start()) // This slot is not over yet.
		}
		value = math.Round(value/hundredths/max(lasted.Seconds(), 1)*1000) / 1000
	}
	return &value
}

// requestsOf returns the number of decided requests: in each slot at least the refused requests,
// since the total is estimated from one request in sixteen. It is nil if no request was seen
// although tokens were granted. The lock is held.
func (s *Service) requestsOf(kind Kind, of row, from, n int64) *float64 {
	r, sum := s.rings[kind], int64(0)
	for slot := from; slot < from+n; slot++ {
		estimate, _ := r.sumSpan(of, Requests.index(), slot, 1)
		refused, _ := r.sumSpan(of, Refused.index(), slot, 1)
		sum += max(estimate, refused)
	}
	if tokens, _ := r.sumSpan(of, Tokens.index(), from, n); sum == 0 && tokens > 0 {
		return nil
	}
	value := float64(sum)
	return &value
}

// Names returns the names of the policies or nodes with counts.
func (s *Service) Names(by By) (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.rings {
		for of := range r.rows {
			if of.by == by {
				names = append(names, of.name)
			}
		}
	}
	return names
}

// selectRows returns the rows of a query. Named rows are returned even without counts.
func (r *ring) selectRows(q Query) (rows []row) {
	switch {
	case q.By == ByAll:
		return []row{{ByAll, ""}}
	case q.Names != nil:
		for _, name := range q.Names {
			rows = append(rows, row{q.By, name})
		}
		return rows
	}
	for of := range r.rows {
		if of.by == q.By {
			rows = append(rows, of)
		}
	}
	return rows
}

// isSpecial reports whether only some policies can have an outcome: policies in shadow or with a
// candidate, with limits of requests in flight, or with a bucket whose fill a node knows.
func (o Outcome) isSpecial() bool {
	return o == InFlight || o == Utilisation || o.shownBeside() != o
}

// shownBeside returns the outcome that is shown with an outcome of a trial; for other outcomes the
// outcome itself.
func (o Outcome) shownBeside() Outcome {
	switch o {
	case ShadowRefused:
		return ShadowUndetermined
	case ShadowUndetermined:
		return ShadowRefused
	case CandidateRefused:
		return CandidateUndetermined
	case CandidateUndetermined:
		return CandidateRefused
	}
	return o
}

// hasOutcome reports whether a row has counts of an outcome.
func (r *ring) hasOutcome(of row, outcome Outcome) bool {
	l := r.rows[of]
	return l != nil && l[outcome.index()] != nil
}

// Window is the length of the compared spans.
const Window = 5 * time.Minute

// Change compares a count with the counts of an hour and a day ago. Nil means not known.
type Change struct {
	Policy  string `json:"policy,omitempty"`
	Now     int64  `json:"now"`
	HourAgo *int64 `json:"hour_ago"`
	DayAgo  *int64 `json:"day_ago"`
}

// Comparison has the change of all policies together and the change of each policy.
type Comparison struct {
	Until    time.Time
	All      Change
	Policies []Change
	Complete bool
}

// Compare compares an outcome's count in the last Window with the count an hour before, and with
// the coarse slot a day before. It returns the policies, at most most, with the highest counts now,
// an hour ago or a day ago.
func (s *Service) Compare(outcome Outcome, most int) Comparison {
	end := s.Now().Truncate(fineStep)
	at := outcome.index()
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := Comparison{Until: end.UTC(), Complete: s.complete, Policies: []Change{}}
	fine, coarse := s.rings[Fine], s.rings[Coarse]
	ifKnown := func(total, known int64) *int64 {
		if known == 0 {
			return nil
		}
		return &total
	}
	// of compares one row.
	of := func(which row) (c Change) {
		count := int64(Window / fineStep)
		first := Fine.At(end).Number - count
		c.Policy = which.name
		c.Now, _ = fine.sumSpan(which, at, first, count)
		c.HourAgo = ifKnown(fine.sumSpan(which, at, first-int64(time.Hour/fineStep), count))
		middle := end.Add(-24*time.Hour - Window/2)
		c.DayAgo = ifKnown(coarse.sumSpan(which, at, Coarse.At(middle).Number, 1))
		return c
	}
	// Compare all policies together, then each policy.
	answer.All = of(row{ByAll, ""})
	names := map[row]bool{}
	for _, r := range []*ring{fine, coarse} {
		for which := range r.rows {
			if which.by == ByPolicy {
				names[which] = true
			}
		}
	}
	for which := range names {
		if c := of(which); c.highest() > 0 {
			answer.Policies = append(answer.Policies, c)
		}
	}
	// Keep the policies with the highest counts.
	slices.SortFunc(answer.Policies, func(a, b Change) int {
		return cmp.Or(cmp.Compare(b.Now, a.Now), cmp.Compare(b.highest(), a.highest()),
			strings.Compare(a.Policy, b.Policy))
	})
	answer.Policies = answer.Policies[:min(most, len(answer.Policies))]
	return answer
}

func (c Change) highest() int64 {
	high := c.Now
	for _, n := range []*int64{c.HourAgo, c.DayAgo} {
		if n != nil {
			high = max(high, *n)
		}
	}
	return high
}

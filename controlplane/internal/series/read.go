package series

import (
	"cmp"
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
	// Step is a multiple of the kind's, Range one of Step.
	Step, Range time.Duration
	// Most is how many series there may be: those with the highest totals.
	Most int
}

// Series is one line of a graph.
type Series struct {
	Policy  string   `json:"policy,omitempty"`
	Node    string   `json:"node,omitempty"`
	Outcome Outcome  `json:"outcome"`
	Total   int64    `json:"total"`
	Values  []*int64 `json:"values"`
}

// Answer is what a Query finds.
type Answer struct {
	// From is when the first value begins, Until when the last one ends, which may be later than
	// now.
	From, Until time.Time
	Series      []Series
	// Complete is false while the store is away.
	Complete bool
}

// Read answers a query. Series are in the order of their totals, the highest first.
func (s *Service) Read(q Query) Answer {
	end := s.Now().Truncate(q.Step).Add(q.Step)
	from := end.Add(-q.Range)
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := Answer{From: from.UTC(), Until: end.UTC(), Complete: s.complete, Series: []Series{}}
	r := s.rings[q.Kind]
	first, each := q.Kind.At(from).Number, int64(q.Step/q.Kind.Step())
	count := int64(q.Range / q.Step)
	for _, of := range r.selected(q) {
		for _, outcome := range q.Outcomes {
			at, one := outcome.place(), Series{Outcome: outcome}
			if of.by == ByNode {
				one.Node = of.name
			} else {
				one.Policy = of.name
			}
			if total := r.span(r.rows[of], at, first, each*count); total != nil {
				one.Total = *total
			}
			answer.Series = append(answer.Series, one)
		}
	}
	slices.SortFunc(answer.Series, func(a, b Series) int {
		return cmp.Or(cmp.Compare(b.Total, a.Total), cmp.Compare(a.Outcome, b.Outcome),
			strings.Compare(a.Policy+a.Node, b.Policy+b.Node))
	})
	answer.Series = answer.Series[:min(q.Most, len(answer.Series))]
	for i := range answer.Series {
		one := &answer.Series[i]
		of := row{q.By, one.Policy + one.Node}
		for n := range count {
			value := r.span(r.rows[of], one.Outcome.place(), first+n*each, each)
			one.Values = append(one.Values, value)
		}
	}
	return answer
}

// selected are the rows that a query is about. Those that it names are there even without counts.
func (r *ring) selected(q Query) (rows []row) {
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

// Window is the length of what is compared.
const Window = 5 * time.Minute

// Change compares a count with that of an hour and a day ago. Nil is not known.
type Change struct {
	Policy  string `json:"policy,omitempty"`
	Now     int64  `json:"now"`
	HourAgo *int64 `json:"hour_ago"`
	DayAgo  *int64 `json:"day_ago"`
}

// Comparison is the changes of all policies together and of each.
type Comparison struct {
	Until    time.Time
	All      Change
	Policies []Change
	Complete bool
}

// Compare compares the last Window with the same an hour before, and with the coarse slot a day
// before, for the most policies with the highest counts now, an hour ago or a day ago.
func (s *Service) Compare(outcome Outcome, most int) Comparison {
	end := s.Now().Truncate(fineStep)
	at := outcome.place()
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := Comparison{Until: end.UTC(), Complete: s.complete, Policies: []Change{}}
	fine, coarse := s.rings[Fine], s.rings[Coarse]
	of := func(which row) (c Change) {
		count := int64(Window / fineStep)
		first := Fine.At(end).Number - count
		if now := fine.span(fine.rows[which], at, first, count); now != nil {
			c.Now = *now
		}
		c.Policy = which.name
		c.HourAgo = fine.span(fine.rows[which], at, first-int64(time.Hour/fineStep), count)
		middle := end.Add(-24*time.Hour - Window/2)
		c.DayAgo = coarse.span(coarse.rows[which], at, Coarse.At(middle).Number, 1)
		return c
	}
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

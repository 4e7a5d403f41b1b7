package series

import (
	"strconv"
	"strings"
	"time"

	"github.com/weir-proxy/weir/shared/wire"
)

// byVersion rows count one policy of one version of the policy set. They are counted exactly, in
// Fine slots, while two versions are in force.
const (
	byVersion By = "version"

	// maxVersionRows bounds the rows of policies; rows of all requests have room of their own.
	maxVersionRows = 2 * maxPolicies
	maxRowsOfAll   = 100
	versionsKept   = int64(Window/fineStep) + 2

	decided = outcomes
	unsure  = outcomes + 1
	waited  = outcomes + 2
	held    = outcomes + 3
	places  = outcomes + 4
)

// Side is the decisions of nodes with one version about a policy.
type Side struct {
	// Decided are requests that the enforced policy let through or refused, Refused the refused
	// requests. Unsure are requests decided without the bucket: by a share, after a failure, or at
	// a bound.
	Decided, Refused, Unsure int64
	// Waited are requests that waited for tokens of the control plane; Held is their total waiting
	// time.
	Waited int64
	Held   time.Duration
}

// Add adds the decisions of other nodes.
func (s *Side) Add(other Side) {
	s.Decided += other.Decided
	s.Refused += other.Refused
	s.Unsure += other.Unsure
	s.Waited += other.Waited
	s.Held += other.Held
}

// Compared counts the decisions of a node, if the policy set of its version has the policy.
func (s *Service) Compared(m *wire.Measures, has func(version uint64, policy string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.ownAt(Fine.At(s.Now()))
	for i := range m.Items {
		one := &m.Items[i]
		name := string(one.Policy)
		if one.Decided == 0 || !has(one.Version, name) {
			continue
		}
		row := versionRow(one.Version, name)
		c := countsOf(t.Versions, row, mostVersionRows(row))
		if c == nil {
			continue
		}
		t.stored = false
		refused := Refused.index()
		for at, n := range map[int]int64{refused: one.Refused, decided: one.Decided, unsure: one.Unsure,
			waited: one.Waited, held: one.Held} {
			c.add(at, n)
		}
	}
}

// mostVersionRows returns the maximum number of rows at which a row of this name is still added.
func mostVersionRows(name string) int {
	if strings.HasSuffix(name, " "+wire.AllRequests) {
		return maxVersionRows + maxRowsOfAll
	}
	return maxVersionRows
}

func versionRow(version uint64, policy string) string {
	return strconv.FormatUint(version, 10) + " " + policy
}

// Decided returns the decisions of nodes with a version since an instant, by policy, and whether
// the counts of all replicas are included.
func (s *Service) Decided(version uint64, since time.Time) (sides map[string]Side, complete bool) {
	prefix, sides := versionRow(version, ""), map[string]Side{}
	first, last := Fine.At(since).Number, Fine.At(s.Now()).Number
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.versions
	for of := range r.rows {
		name, found := strings.CutPrefix(of.name, prefix)
		if of.by != byVersion || !found {
			continue
		}
		total := func(outcome int) int64 {
			n, _ := r.sumSpan(of, outcome, first, last-first+1)
			return n
		}
		side := Side{Decided: total(decided), Refused: total(Refused.index()), Unsure: total(unsure),
			Waited: total(waited), Held: time.Duration(total(held)) * time.Millisecond}
		if side.Decided > 0 {
			sides[name] = side
		}
	}
	return sides, s.complete
}

// Share returns the share of n requests in the decided requests, 0 to 1. Without decided requests
// it is n.
func (s Side) Share(n int64) float64 { return float64(n) / float64(max(s.Decided, 1)) }

package series

import (
	"strconv"
	"strings"
	"time"

	"github.com/weir-proxy/weir/shared/wire"
)

// byVersion rows are about one policy of one version of the policy set. They are counted while two
// versions are in force, in Fine slots, exactly.
const (
	byVersion By = "version"

	// maxVersionRows bounds the rows of policies; those of all requests have room beside them.
	maxVersionRows = 2 * maxPolicies
	maxRowsOfAll   = 100
	versionsKept   = int64(Window/fineStep) + 2

	decided = outcomes
	unsure  = outcomes + 1
	waited  = outcomes + 2
	held    = outcomes + 3
	places  = outcomes + 4
)

// Side is what nodes of one version have decided by a policy.
type Side struct {
	// Decided are the requests that the policy let through or refused, enforced; Refused the
	// latter. Unsure are those that it decided without its bucket: by a share, a failure, a bound.
	Decided, Refused, Unsure int64
	// Waited are those that waited for tokens of the control plane, Held for how long, added up.
	Waited int64
	Held   time.Duration
}

// Add adds what others have decided.
func (s *Side) Add(other Side) {
	s.Decided += other.Decided
	s.Refused += other.Refused
	s.Unsure += other.Unsure
	s.Waited += other.Waited
	s.Held += other.Held
}

// Compared counts what a node has decided, as far as a policy set has the policy of its version.
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
		c := named(t.Versions, row, mostVersionRows(row))
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

// mostVersionRows is how many rows there may be for one of a name to be among them.
func mostVersionRows(name string) int {
	if strings.HasSuffix(name, " "+wire.AllRequests) {
		return maxVersionRows + maxRowsOfAll
	}
	return maxVersionRows
}

func versionRow(version uint64, policy string) string {
	return strconv.FormatUint(version, 10) + " " + policy
}

// Decided returns what nodes with a version have decided since an instant, by policy, and whether
// the counts of all replicas are in it.
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
			n, _ := r.span(of, outcome, first, last-first+1)
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

// Share is how much n requests are of those that were decided; 0 where none was.
func (s Side) Share(n int64) float64 { return float64(n) / float64(max(s.Decided, 1)) }

// Package failover keeps the process's state on the failure ladder in Envoy's shared data: since
// when the control plane has not answered a worker, and the furthest step of each policy's requests
// since then. Every worker reads it at its tick and writes its own changes, so each change is
// counted and logged once. The leader reports it to the control plane.
package failover

import (
	"github.com/weir-proxy/weir/filter/internal/base/rpc"
	"github.com/weir-proxy/weir/filter/internal/base/ruleset"
	"github.com/weir-proxy/weir/filter/internal/base/shareddata"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// Log writes to Envoy's log.
type Log interface {
	Info(message string)
	Warn(message string)
}

// Trouble is what a worker knows about its own calls.
type Trouble struct {
	// Open: calls have failed since Since, and requests do not wait for them. Times grows when
	// calls begin to fail, and with each probe that fails. How is how the last call failed.
	Open  bool
	Since quota.Instant
	Times uint32
	How   rpc.Outcome
}

// Stats counts steps that the process entered and left.
type Stats struct{ Entered, Left [policy.Steps]uint64 }

// confirmation is how long a worker's report of trouble counts: longer than its longest pause and a
// call. So a worker that has ended leaves no trouble behind.
const confirmation = 4 * quota.Second

// watch is how often the leader looks for trouble of other workers.
const watch = 250 * quota.Millisecond

// Ladder is the failure ladder as one worker sees it. Make one with New.
type Ladder struct {
	Stats

	shared shareddata.Data
	key    shareddata.Key
	log    Log

	record record
	buf    []byte
	// stored is Times as this worker stored it last, open whether that was trouble. hastened:
	// another worker was answered since.
	stored         uint32
	open, hastened bool
	// noted: some policies are above the ground in ruleset.Steps of this worker.
	noted bool
	reported
}

// New makes a Ladder.
func New(shared shareddata.Data, space shareddata.Space, log Log) *Ladder {
	return &Ladder{shared: shared, key: space.Key(shareddata.Failover), log: log}
}

// Worst is the highest step of any policy, as of the last tick.
func (l *Ladder) Worst() policy.Step { return l.record.worst() }

// Tick merges the process's record and this worker's knowledge. Heard is since when a worker has
// had no answer, 0 for none. Hasten: another worker was answered, so this one should probe at once.
// The leader's ladder also has a section in reports.
func (l *Ladder) Tick(
	now quota.Instant, t Trouble, rules *ruleset.Rules, leads bool,
) (heard quota.Instant, hasten bool) {
	r := &l.record
	value, cas, found := l.shared.Get(l.key[:])
	r.read(value)
	if rules == nil {
		return r.since, false
	}
	was := l.standing()
	changed := l.change(now, t, rules, &hasten)
	if l.acked > r.reported {
		r.reported, changed = l.acked, true
	}
	if l.leads = leads; changed && !l.store(cas, found) {
		// Another worker wrote in between. The next tick starts from its record, and reports.
		l.leads = false
		value, _, _ = l.shared.Get(l.key[:])
		r.read(value)
		return r.since, hasten
	}
	if changed {
		l.stored, l.open = t.Times, t.Open
		l.announce(now, t, was, rules)
	}
	if r.since != 0 {
		rules.Steps.Changed = false
	}
	if r.since == 0 && !t.Open && (l.noted || rules.Steps.Changed) {
		rules.Steps.Reset(len(rules.Steps.At))
		l.noted = false
	}
	return r.since, hasten
}

// NextDue is when Tick has something to do: at once while a worker of the process has no answer.
// The leader looks for such a worker now and then, because it reports for all.
func (l *Ladder) NextDue(now quota.Instant, leads bool) quota.Instant {
	switch {
	case l.record.since != 0 || l.open:
		return now
	case leads:
		return now + quota.Instant(watch)
	}
	return quota.Forever
}

// change updates the record with what this worker knows.
func (l *Ladder) change(now quota.Instant, t Trouble, rules *ruleset.Rules, hasten *bool) (changed bool) {
	r, whole := &l.record, false
	switch {
	case t.Open && t.Times != l.stored:
		if r.since == 0 {
			r.since, whole = t.Since, true
			r.changes++
		}
		r.until = now + quota.Instant(confirmation)
		l.hastened, changed = false, true
	case t.Open && r.since == 0 && !l.hastened:
		l.hastened, *hasten = true, true
	case r.since != 0 && (!t.Open && l.open || now > r.until):
		r.since, r.steps = 0, r.steps[:0]
		r.changes++
		return true
	case !t.Open:
		l.open = false
	}
	return r.since != 0 && l.mark(rules, whole) || changed
}

// mark notes this worker's furthest steps in the record; all of them if the record is new.
func (l *Ladder) mark(rules *ruleset.Rules, whole bool) (changed bool) {
	r, own := &l.record, &rules.Steps
	newer := rules.Generation > r.generation
	empty := rules.Generation == r.generation && len(r.steps) == 0 && len(own.At) > 0
	if newer || empty {
		r.generation, whole, changed = rules.Generation, true, true
		r.steps = r.steps[:0]
		for range own.At {
			r.steps = append(r.steps, 0)
		}
	}
	if len(own.At) != len(r.steps) || rules.Generation < r.generation || !own.Changed && !whole {
		return changed
	}
	l.noted = true
	for i, step := range own.At {
		// A worker without recent requests of the policy may know an earlier step than others.
		on := &rules.Index.Policy(uint32(i)).OnFailure
		if on.Position(step) > on.Position(policy.Step(r.steps[i])) {
			r.steps[i], changed = byte(step), true
			r.changes++
		}
	}
	return changed
}

func (l *Ladder) store(cas uint32, found bool) bool {
	l.buf = l.record.append(l.buf[:0])
	return shareddata.Swap(l.shared, l.key[:], l.buf, cas, found)
}

func (l *Ladder) standing() standing { return standing{l.record.mask(), l.record.since} }

// standing is the steps that the process is on, one bit each, and since when.
type standing struct {
	mask  uint8
	since quota.Instant
}

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

// Trouble is a worker's knowledge about its own calls.
type Trouble struct {
	// Open: calls have failed since Since, and requests do not wait for them. Times grows when
	// calls begin to fail, and with each failed probe. How is the failure of the last call.
	Open  bool
	Since quota.Instant
	Times uint32
	How   rpc.Outcome
}

// Stats counts steps that the process entered and left.
type Stats struct{ Entered, Left [policy.Steps]uint64 }

// confirmation is the time for which a worker's trouble counts without a new sign: longer than its
// longest pause and a call. So a worker that has ended leaves no trouble behind.
const confirmation = 4 * quota.Second

// watch is the interval at which the leader looks for trouble of other workers.
const watch = 250 * quota.Millisecond

// Ladder gives one worker access to the failure ladder. Make a Ladder with New.
type Ladder struct {
	Stats

	shared shareddata.Data
	key    shareddata.Key
	log    Log

	record record
	buf    []byte
	// stored is the value of Times when this worker last stored it; open: that was trouble.
	// hastened: another worker was answered since.
	stored         uint32
	open, hastened bool
	// noted: some policies are above StepGround in ruleset.Steps of this worker.
	noted bool
	reported
}

// New makes a Ladder.
func New(shared shareddata.Data, space shareddata.Space, log Log) *Ladder {
	return &Ladder{shared: shared, key: space.Key(shareddata.Failover), log: log}
}

// Worst returns the highest step of any policy at the last tick.
func (l *Ladder) Worst() policy.Step { return l.record.worstStep() }

// Tick merges the process's record and this worker's knowledge. Heard is the instant since which a
// worker has had no answer, 0 if all have. Hasten: another worker was answered, so this worker
// should probe at once. The leader's ladder also has a section in reports.
func (l *Ladder) Tick(
	now quota.Instant, t Trouble, rules *ruleset.Rules, leads bool,
) (heard quota.Instant, hasten bool) {
	r := &l.record
	value, cas, found := l.shared.Get(l.key[:])
	r.decode(value)
	if rules == nil {
		return r.since, false
	}
	was := l.standingNow()
	changed := l.updateRecord(now, t, rules, &hasten)
	if l.acked > r.reported {
		r.reported, changed = l.acked, true
	}
	if l.leads = leads; changed && !l.storeRecord(cas, found) {
		// Another worker wrote in between. The next tick starts from its record, and reports.
		l.leads = false
		value, _, _ = l.shared.Get(l.key[:])
		r.decode(value)
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

// NextDue returns when Tick has something to do: at once while a worker of the process has no
// answer. The leader looks for such a worker every watch, because it reports for all workers.
func (l *Ladder) NextDue(now quota.Instant, leads bool) quota.Instant {
	switch {
	case l.record.since != 0 || l.open:
		return now
	case leads:
		return now + quota.Instant(watch)
	}
	return quota.Forever
}

// updateRecord updates the record with this worker's knowledge.
func (l *Ladder) updateRecord(now quota.Instant, t Trouble, rules *ruleset.Rules, hasten *bool) (changed bool) {
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
	return r.since != 0 && l.markSteps(rules, whole) || changed
}

// markSteps notes this worker's furthest steps in the record; all of them if the record is new.
func (l *Ladder) markSteps(rules *ruleset.Rules, whole bool) (changed bool) {
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
		// A worker without recent requests of the policy may know an earlier step than other
		// workers.
		on := &rules.Index.Policy(uint32(i)).OnFailure
		if on.Position(step) > on.Position(policy.Step(r.steps[i])) {
			r.steps[i], changed = byte(step), true
			r.changes++
		}
	}
	return changed
}

// storeRecord stores the record if no other worker has changed it.
func (l *Ladder) storeRecord(cas uint32, found bool) bool {
	l.buf = l.record.appendTo(l.buf[:0])
	return shareddata.Swap(l.shared, l.key[:], l.buf, cas, found)
}

// standingNow returns the steps of the record.
func (l *Ladder) standingNow() standing { return standing{l.record.stepMask(), l.record.since} }

// standing are the steps that the process is on, one bit each, and since when it is on them.
type standing struct {
	mask  uint8
	since quota.Instant
}

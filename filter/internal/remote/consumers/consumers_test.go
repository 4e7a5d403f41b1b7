package consumers_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/base/shareddatatest"
	"github.com/weir-proxy/weir/filter/internal/remote/consumers"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

const sec = quota.Instant(quota.Second)

// process is an Envoy with VMs over one shared store, and a control plane that knows the tiers.
type process struct {
	t                  *testing.T
	now                quota.Instant
	data               shareddatatest.Data
	vms                []*consumers.Cache
	tiers              map[keyhash.Key]string
	special            map[keyhash.Key][]byte
	revision           uint64
	exceptionsRevision uint64
	err                error
	questions          []question
}

type question struct {
	body []byte
	done func(int, []byte)
}

func (p *process) Now() quota.Instant { return p.now }

func (p *process) Call(_ string, body []byte, _ quota.Span, done func(int, []byte)) error {
	if p.err != nil {
		return p.err
	}
	p.questions = append(p.questions, question{append([]byte(nil), body...), done})
	return nil
}

func newProcess(t *testing.T, vms, sets int) *process {
	p := &process{t: t, now: 1000 * sec, tiers: map[keyhash.Key]string{}, revision: 100}
	for range vms {
		p.vms = append(p.vms, consumers.New(&p.data, p, p, [4]byte{1}, sets))
	}
	return p
}

func (p *process) tick(after quota.Instant) {
	p.now += after
	for _, vm := range p.vms {
		due, asked := vm.NextDue(), vm.Stats.Asked
		if vm.Tick(p.now); (vm.Stats.Asked > asked) != (due <= p.now) {
			p.t.Errorf("a question at %d: %v, it was due at %d", p.now, vm.Stats.Asked > asked, due)
		}
	}
}

// prepared is an answer to a question from the control plane's present knowledge.
func (p *process) prepared(q question) []byte {
	p.t.Helper()
	keys, err := wire.DecodeQuestion(q.body)
	if err != nil {
		p.t.Fatal(err)
	}
	m := wire.Consumers{Revision: p.revision, ExceptionsRevision: p.exceptionsRevision,
		HasExceptions: len(p.special) > 0, Complete: true}
	for _, k := range keys {
		m.Items = append(m.Items, wire.Consumer{Key: k, Tier: []byte(p.tiers[k]), Exceptions: p.special[k]})
	}
	return wire.AppendConsumers(nil, m)
}

// answer answers all questions and returns how many consumers they were about.
func (p *process) answer() (asked int) {
	p.t.Helper()
	for _, q := range p.questions {
		keys, _ := wire.DecodeQuestion(q.body)
		asked += len(keys)
		q.done(200, p.prepared(q))
	}
	p.questions = nil
	return asked
}

// change is a change in the control plane, as the leader's poll brings it.
func (p *process) change(complete bool, tiers map[byte]string) {
	p.t.Helper()
	p.revision++
	m := wire.Consumers{Revision: p.revision, ExceptionsRevision: p.exceptionsRevision,
		HasExceptions: len(p.special) > 0, Complete: complete}
	for n, tier := range tiers {
		p.tiers[key(n)] = tier
		if complete || len(p.special[key(n)]) > 0 {
			m.Items = append(m.Items, wire.Consumer{Key: key(n), Tier: []byte(tier), Exceptions: p.special[key(n)]})
		}
	}
	if err := p.vms[0].Changed(wire.AppendConsumers(nil, m)); err != nil {
		p.t.Fatal(err)
	}
}

func key(n byte) keyhash.Key { return keyhash.Key{n} }

func (p *process) find(vm int, key keyhash.Key) match.Consumer {
	person := match.Consumer{Key: key, Known: true}
	p.vms[vm].Find(&person)
	return person
}

func (p *process) expect(vm int, n byte, want string) {
	p.t.Helper()
	if got := p.find(vm, key(n)); string(got.Tier) != want {
		p.t.Errorf("at %d s VM %d takes consumer %d for %q, want %q", p.now/sec, vm, n, got.Tier, want)
	}
}

func TestWhoIsNotKnownIsAskedAboutOnce(t *testing.T) {
	p := newProcess(t, 2, 64)
	p.tiers[key(1)] = "premium"
	for range 3 {
		p.expect(0, 1, "")
		p.expect(0, 2, "")
	}
	p.tick(0)
	p.expect(0, 1, "") // The question is under way.
	p.tick(sec / 100)
	if n := p.answer(); n != 2 || p.vms[0].Stats.Asked != 1 {
		t.Errorf("asked about %d in %d questions", n, p.vms[0].Stats.Asked)
	}
	for vm := range p.vms {
		p.expect(vm, 1, "premium")
		p.expect(vm, 2, "")
	}
	p.tick(sec)
	if n := p.answer(); n != 0 {
		t.Errorf("asked about %d again, who is known", n)
	}
}

func TestAQuestionIsBounded(t *testing.T) {
	p := newProcess(t, 1, 64)
	for n := range byte(100) {
		p.expect(0, n, "")
	}
	p.tick(0)
	if n := p.answer(); n != wire.MaxQuestions || p.vms[0].Stats.Dropped != 100-wire.MaxQuestions {
		t.Errorf("asked about %d, %d dropped", n, p.vms[0].Stats.Dropped)
	}
}

func TestChangesApplyAtOnceInEveryVM(t *testing.T) {
	p := newProcess(t, 2, 64)
	p.expect(1, 1, "")
	p.tick(0)
	p.answer()
	p.change(true, map[byte]string{1: "premium", 2: "gold"})
	for vm := range p.vms {
		p.expect(vm, 1, "premium")
		p.expect(vm, 2, "gold") // Changes of a consumer that was never asked about come as well.
	}
	p.change(true, map[byte]string{1: ""})
	p.expect(1, 1, "")
	if p.vms[1].Revision() != p.revision {
		t.Errorf("the next leader would poll from %d, not %d", p.vms[1].Revision(), p.revision)
	}
}

// An answer that was prepared before a change and comes after it changes nothing back.
func TestAnAnswerDoesNotUndoAChange(t *testing.T) {
	p := newProcess(t, 1, 64)
	p.tiers[key(1)] = "free"
	p.expect(0, 1, "")
	p.tick(0)
	late := p.prepared(p.questions[0])
	p.change(true, map[byte]string{1: "premium"})
	p.questions[0].done(200, late)
	p.expect(0, 1, "premium")
}

func TestOldKnowledgeIsAskedAgainAndCountsUntilThen(t *testing.T) {
	p := newProcess(t, 1, 64)
	p.tiers[key(1)] = "premium"
	p.expect(0, 1, "")
	p.tick(0)
	p.answer()
	p.tick(61 * sec)
	p.expect(0, 1, "premium")
	p.tick(sec / 100)
	if n := p.answer(); n != 1 {
		t.Errorf("asked about %d", n)
	}
	// Without the control plane it counts for ten minutes, and not longer.
	p.err = errors.New("away")
	p.tick(599 * sec)
	p.expect(0, 1, "premium")
	p.tick(2 * sec)
	p.expect(0, 1, "")
	// Unless polls have gone on: then nothing has changed.
	p.vms[0].Synced()
	p.expect(0, 1, "premium")
}

// A node that has missed changes asks again about every consumer, and none loses a tier meanwhile.
func TestMissedChanges(t *testing.T) {
	p := newProcess(t, 2, 64)
	p.tiers[key(1)] = "premium"
	p.expect(1, 1, "")
	p.tick(0)
	p.answer()
	p.tick(sec)
	p.change(false, map[byte]string{1: "gold"})
	p.tick(sec / 100)
	p.expect(1, 1, "premium")
	p.tick(sec / 100)
	p.answer()
	p.expect(1, 1, "gold")
	// A control plane that has lost everything starts from nothing: its messages then count,
	// whatever the numbers were.
	p.tick(sec)
	p.tiers = map[keyhash.Key]string{}
	p.revision = 0
	p.change(false, nil)
	p.revision = 0
	p.tick(sec / 100)
	p.expect(1, 1, "gold")
	p.tick(sec / 100)
	p.answer()
	p.expect(1, 1, "")
}

func TestFailuresBackOff(t *testing.T) {
	p := newProcess(t, 1, 64)
	asked := 0
	for range 6000 { // A minute of ticks, with a request each.
		p.expect(0, 1, "")
		p.tick(sec / 100)
		for _, q := range p.questions {
			asked++
			q.done(503, nil)
		}
		p.questions = nil
	}
	if asked < 10 || asked > 30 {
		t.Errorf("%d questions in a minute of failures", asked)
	}
	p.tiers[key(1)] = "premium"
	p.tick(10 * sec)
	p.expect(0, 1, "")
	p.tick(10 * sec)
	p.answer()
	p.expect(0, 1, "premium")
}

// Unknown consumers, in any number, neither grow shared data nor crowd out a consumer with a tier.
func TestAFloodOfInventedConsumers(t *testing.T) {
	p := newProcess(t, 1, 8)
	for n := range byte(8) {
		p.tiers[key(n)] = "premium"
		p.expect(0, n, "")
	}
	p.tick(0)
	p.answer()
	for n := range uint64(2000) {
		var invented keyhash.Key
		binary.LittleEndian.PutUint64(invented[:], 1000+n)
		if got := p.find(0, invented); len(got.Tier) > 0 {
			t.Fatalf("%v is known", invented)
		}
		p.tick(sec / 1000)
		p.answer()
	}
	for n := range byte(8) {
		p.expect(0, n, "premium")
	}
	if p.data.Len() > 9 {
		t.Errorf("%d keys in shared data", p.data.Len())
	}
}

// Two VMs that store at the same moment lose nothing of each other's.
func TestContention(t *testing.T) {
	p := newProcess(t, 2, 1)
	for n := range byte(3) {
		p.tiers[key(n)] = fmt.Sprint("tier-", n)
	}
	p.expect(0, 0, "")
	p.expect(0, 1, "")
	p.expect(1, 2, "")
	p.tick(0)
	first, second := p.questions[0], p.questions[1]
	once := false
	p.data.Before = func(op string, _ []byte) {
		if op == "set" && !once {
			once = true
			second.done(200, p.prepared(second))
		}
	}
	first.done(200, p.prepared(first))
	p.data.Before = nil
	for n := range byte(3) {
		p.expect(0, n, fmt.Sprint("tier-", n))
	}
}

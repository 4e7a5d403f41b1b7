package configsync_test

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/base/rpc"
	"github.com/weir-proxy/weir/filter/internal/base/shareddata"
	"github.com/weir-proxy/weir/filter/internal/base/shareddatatest"
	"github.com/weir-proxy/weir/filter/internal/remote/configsync"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

const sec = quota.Instant(quota.Second)

// process is an Envoy with several VMs over one shared store, and the polls they make.
type process struct {
	now   quota.Instant
	data  shareddatatest.Data
	vms   []*configsync.Sync
	polls []poll
	err   error
	log   []string
}

type poll struct {
	path string
	done func(int, []byte, []byte)
}

func (p *process) Now() quota.Instant   { return p.now }
func (p *process) Info(message string)  { p.log = append(p.log, "info "+message) }
func (p *process) Warn(message string)  { p.log = append(p.log, "warn "+message) }
func (p *process) Error(message string) { p.log = append(p.log, "error "+message) }

func (p *process) PollSnapshot(path []byte, _ quota.Span, done func(int, []byte, []byte)) error {
	if p.err != nil {
		return p.err
	}
	p.polls = append(p.polls, poll{string(path), done})
	return nil
}

func newProcess(vms int, with ...func(*configsync.Config)) *process {
	p := &process{now: 1000 * sec}
	for i := range vms {
		config := configsync.Config{
			Shared: &p.data, Poller: p, Clock: p, Log: p, Seed: uint64(i + 1),
			Node: configsync.Node{ID: "envoy 1&x=2", Zone: "eu", Filter: "0.1.0", Boot: 0xbeef},
		}
		for _, set := range with {
			set(&config)
		}
		p.vms = append(p.vms, configsync.New(config))
	}
	return p
}

func (p *process) tick(after quota.Instant) {
	p.now += after
	for _, vm := range p.vms {
		due, polls := vm.NextDue(p.now), len(p.polls)
		vm.Tick(p.now)
		if len(p.polls) > polls && due > p.now {
			panic(fmt.Sprintf("a poll at %d was due at %d only", p.now, due))
		}
	}
}

// answer ends the only poll under way.
func (p *process) answer(t *testing.T, status int, body []byte) url.Values {
	t.Helper()
	return p.answerMarked(t, status, "", body)
}

// answerMarked is answer by a control plane that tells versions of one number apart.
func (p *process) answerMarked(t *testing.T, status int, mark string, body []byte) url.Values {
	t.Helper()
	if len(p.polls) != 1 {
		t.Fatalf("%d polls are under way", len(p.polls))
	}
	last := p.polls[0]
	p.polls = nil
	last.done(status, []byte(mark), body)
	u, err := url.Parse(last.path)
	if err != nil || u.Path != "/node/v1/snapshot" {
		t.Fatalf("path %s: %v", last.path, err)
	}
	return u.Query()
}

func (p *process) versions() string {
	var out []string
	for _, vm := range p.vms {
		if vm.Rules() == nil {
			out = append(out, "-")
		} else {
			out = append(out, fmt.Sprint(vm.Rules().Index.Version()))
		}
	}
	return strings.Join(out, " ")
}

func snapshot(version uint64) []byte {
	return wire.AppendSnapshot(nil,
		wire.Snapshot{Version: version, Set: &policy.Set{Identity: policy.Identity{IPv6Prefix: 64}}})
}

func TestOneLeaderPollsAndAllFollow(t *testing.T) {
	p := newProcess(3)
	p.tick(0)
	q := p.answer(t, 200, snapshot(5))
	want := "0 0 envoy 1&x=2 eu 0.1.0 beef"
	if got := strings.Join([]string{q.Get("after"), q.Get("applied"), q.Get("node"), q.Get("zone"), q.Get("filter"),
		q.Get("boot")}, " "); got != want {
		t.Errorf("the first poll says %s, want %s", got, want)
	}
	p.tick(1)
	if got := p.versions(); got != "5 5 5" {
		t.Errorf("versions %s", got)
	}
	// The next poll acknowledges.
	if q = p.answer(t, 204, nil); q.Get("after") != "5" || q.Get("applied") != "5" || q.Has("refused") {
		t.Errorf("the second poll says %v", q)
	}
	p.tick(1)
	// A store that was reset starts at 1 again: another version counts, and not a larger version.
	p.answer(t, 200, snapshot(1))
	p.tick(1)
	if got := p.versions(); got != "1 1 1" {
		t.Errorf("versions %s", got)
	}
}

// A version is its number and its mark: both identify the node's set, in the leader and in the VM
// that follows it.
func TestVersionsOfOneNumberDiffer(t *testing.T) {
	p := newProcess(2)
	p.tick(0)
	p.answerMarked(t, 200, "aa11", snapshot(3))
	p.tick(1)
	if q := p.answerMarked(t, 200, "bb22", snapshot(3)); q.Get("after") != "3" || q.Get("mark") != "aa11" ||
		q.Get("applied_mark") != "aa11" {
		t.Errorf("after the first: %v", q)
	}
	p.tick(1)
	damaged := snapshot(3)
	damaged[len(damaged)-1] ^= 1
	if q := p.answerMarked(t, 200, "cc33", damaged); q.Get("mark") != "bb22" || q.Get("applied_mark") != "bb22" {
		t.Errorf("after another of that number: %v", q)
	}
	p.tick(1)
	if q := p.answerMarked(t, 204, "", nil); q.Get("mark") != "cc33" || q.Get("applied_mark") != "bb22" ||
		q.Get("refused") != "3" {
		t.Errorf("after a set that does not load: %v", q)
	}
	p.vms = p.vms[1:] // The leader's VM is gone; the other one knows the mark.
	for range 5 {
		p.tick(sec)
	}
	if q := p.answerMarked(t, 200, "%&\n", snapshot(4)); q.Get("mark") != "bb22" || q.Get("applied_mark") != "bb22" {
		t.Errorf("the next leader says %v", q)
	}
	p.tick(1)
	// Text that is no mark counts as no mark, and so does the missing mark of an older control
	// plane.
	if q := p.answer(t, 204, nil); q.Get("after") != "4" || q.Has("mark") || q.Has("applied_mark") {
		t.Errorf("without a mark: %v", q)
	}
}

func TestABadSnapshotIsReportedAndTheLastGoodOneStays(t *testing.T) {
	p := newProcess(2)
	p.tick(0)
	p.answer(t, 200, snapshot(5))
	p.tick(1)
	damaged := snapshot(6)
	damaged[len(damaged)-1] ^= 1
	p.answer(t, 200, damaged)
	p.tick(1)
	if got := p.versions(); got != "5 5" || p.vms[0].Stats.Refused != 1 {
		t.Errorf("versions %s, %d refused", got, p.vms[0].Stats.Refused)
	}
	q := p.answer(t, 200, snapshot(7))
	if q.Get("after") != "6" || q.Get("applied") != "5" || q.Get("refused") != "6" ||
		q.Get("reason") != wire.ErrChecksum.Error() {
		t.Errorf("the refusal is reported as %v", q)
	}
	p.tick(1)
	if q = p.answer(t, 204, nil); q.Has("refused") || q.Get("applied") != "7" {
		t.Errorf("after a good one: %v", q)
	}
}

// A snapshot may have been damaged on its way: after each quiet poll it is fetched again, and the
// log says it once.
func TestARefusedSnapshotIsFetchedAgain(t *testing.T) {
	p := newProcess(1)
	p.tick(0)
	p.answer(t, 200, snapshot(5))
	damaged := snapshot(6)
	damaged[len(damaged)-1] ^= 1
	for range 3 {
		p.tick(1)
		if q := p.answer(t, 200, damaged); q.Get("after") != "5" {
			t.Fatalf("it is not asked for: %v", q)
		}
		p.tick(1)
		if q := p.answer(t, 204, nil); q.Get("after") != "6" || q.Get("refused") != "6" {
			t.Fatalf("no quiet poll in between: %v", q)
		}
	}
	p.tick(1)
	p.answer(t, 200, snapshot(6))
	if got := p.versions(); got != "6" {
		t.Errorf("in force %s", got)
	}
	logged := 0
	for _, line := range p.log {
		if strings.HasPrefix(line, "error ") {
			logged++
		}
	}
	if logged != 1 {
		t.Errorf("log %q", p.log)
	}
}

func TestTheNextLeaderTakesOver(t *testing.T) {
	p := newProcess(2)
	p.tick(0)
	leader := p.vms[0]
	p.answer(t, 204, nil)
	p.vms = p.vms[1:] // The leader's VM is gone.
	for range 5 {
		p.tick(sec)
	}
	if len(p.polls) != 1 {
		t.Fatalf("%d polls after the leader's lease ran out", len(p.polls))
	}
	// The old one comes back and follows.
	p.vms = append(p.vms, leader)
	p.tick(sec)
	p.tick(sec)
	if len(p.polls) != 1 {
		t.Errorf("two leaders poll")
	}
}

// A late poll answer does not bring back a set that the next leader has replaced.
func TestALateAnswerOfAFormerLeader(t *testing.T) {
	p := newProcess(2)
	p.tick(0)
	p.answer(t, 200, snapshot(4))
	p.tick(1)
	late := p.polls[0]
	former := p.vms[0]
	p.polls, p.vms = nil, p.vms[1:] // The leader's VM is busy for longer than its leadership.
	for range 5 {
		p.tick(sec)
	}
	p.answer(t, 200, snapshot(6))
	late.done(200, nil, snapshot(5))
	p.vms = append(p.vms, former)
	p.tick(1)
	if got := p.versions(); got != "6 6" {
		t.Errorf("in force %s, want 6 6", got)
	}
	if former.Stats.Polls[rpc.Answered] != 2 {
		t.Errorf("the late answer is not counted: %v", former.Stats.Polls)
	}
}

// A leader that was stopped while it published leaves its message under the next leader's version.
// The next leader asks for everything again, and all VMs read the same set.
func TestTwoLeadersPublishAtOnce(t *testing.T) {
	p := newProcess(3)
	p.tick(0)
	p.answer(t, 200, snapshot(4))
	p.tick(1)
	p.data.Before = func(op string, key []byte) {
		if op == "set" && key[4] == byte(shareddata.PolicySetVersion) {
			message := shareddata.Space{}.Key(shareddata.PolicySet)
			p.data.Put(message[:], snapshot(5))
		}
	}
	p.answer(t, 200, snapshot(6))
	p.data.Before = nil
	p.tick(1)
	if q := p.answer(t, 200, snapshot(6)); q.Get("after") != "0" || q.Has("mark") || q.Get("applied") != "6" {
		t.Errorf("the leader asks for %v", q)
	}
	p.tick(1)
	if got := p.versions(); got != "6 6 6" {
		t.Errorf("in force %s, want 6 6 6", got)
	}
}

func TestBackOffAndOneLogLine(t *testing.T) {
	p := newProcess(1)
	polls := 0
	for range 6000 { // A minute of ticks.
		p.tick(sec / 100)
		if len(p.polls) > 0 {
			polls++
			p.answer(t, 503, nil)
		}
	}
	if polls < 12 || polls > 40 {
		t.Errorf("%d polls in a minute of failures", polls)
	}
	if len(p.log) != 1 || !strings.HasPrefix(p.log[0], "warn ") {
		t.Errorf("log %q", p.log)
	}
	p.err = errors.New("no healthy host")
	p.tick(10 * sec)
	p.err = nil
	p.tick(10 * sec)
	p.answer(t, 204, nil)
	if len(p.log) != 2 || p.log[1] != "info weir: the control plane answers again" {
		t.Errorf("log %q", p.log)
	}
}

func TestAWrongTokenIsNamed(t *testing.T) {
	p := newProcess(1)
	p.tick(0)
	p.answer(t, 401, nil)
	if len(p.log) != 1 || !strings.Contains(p.log[0], "node token") {
		t.Errorf("log %q", p.log)
	}
}

// A control plane of another protocol says which side to upgrade, and so does the filter, once,
// also if there was an outage before.
func TestAnotherProtocolIsNamed(t *testing.T) {
	for _, reason := range []error{wire.ErrNewer, wire.ErrOlder} {
		p := newProcess(1)
		p.tick(0)
		p.answer(t, 503, nil)
		for range 3 {
			p.tick(10 * sec)
			q := p.answer(t, 426, []byte(`{"detail":"`+reason.Error()+`"}`))
			if q.Get("protocol") != fmt.Sprint(wire.Protocol) {
				t.Errorf("the poll says %v", q)
			}
		}
		const says = "weir: the control plane %s, the policy set stays as it is: %v"
		if want := []string{
			fmt.Sprintf(says, "cannot be reached", "status 503"), fmt.Sprintf(says, "refuses polls", reason),
		}; !slices.EqualFunc(p.log, want, strings.HasSuffix) {
			t.Errorf("log %q, want %q", p.log, want)
		}
		p.tick(10 * sec)
		p.answer(t, 401, nil)
		if len(p.log) != 3 || strings.HasSuffix(p.log[2], reason.Error()) {
			t.Errorf("then the token is wrong, and the log is %q", p.log)
		}
		p.tick(10 * sec)
		p.answer(t, 503, nil)
		p.tick(10 * sec)
		p.answer(t, 426, []byte(reason.Error()))
		if len(p.log) != 4 || !strings.HasSuffix(p.log[3], reason.Error()) {
			t.Errorf("then the protocol is another, and the log is %q", p.log)
		}
	}
}

// Requests that wait use the rules they were matched by: the memory is not reused under them.
func TestRulesInUseAreNotOverwritten(t *testing.T) {
	p := newProcess(1)
	p.tick(0)
	p.answer(t, 200, snapshot(1))
	former := p.vms[0].Rules()
	former.Paused++
	p.tick(1)
	p.answer(t, 200, snapshot(2))
	p.tick(1)
	p.answer(t, 200, snapshot(3))
	if former.Index.Version() != 1 || p.versions() != "2" {
		t.Errorf("former version %d, in force %s", former.Index.Version(), p.versions())
	}
	former.Paused--
	p.tick(sec / 10)
	p.answer(t, 200, snapshot(3))
	if p.versions() != "3" {
		t.Errorf("in force %s", p.versions())
	}
}

// orders receives the operators' orders.
type orders struct {
	heard []string
	bound int
	err   error
}

func (o *orders) Revision() uint64 { return 42 }
func (o *orders) Changed(body []byte) error {
	o.heard = append(o.heard, string(body))
	return o.err
}
func (o *orders) Bind(*match.Index) { o.bound++ }

// The same poll brings orders, and each policy set obeys them before it is in force.
func TestOrdersComeByThePoll(t *testing.T) {
	o := &orders{}
	p := newProcess(1, func(c *configsync.Config) { c.Enforcement = o })
	p.tick(0)
	message := wire.AppendEnforcement(nil, &wire.Enforcement{Revision: 43})
	if q := p.answer(t, 200, message); q.Get("enforcement") != "42" || len(o.heard) != 1 ||
		o.heard[0] != string(message) || p.versions() != "-" {
		t.Errorf("%v, heard %d, in force %s", q, len(o.heard), p.versions())
	}
	p.tick(1)
	if p.answer(t, 200, snapshot(5)); o.bound != 1 || p.versions() != "5" {
		t.Errorf("bound %d times, in force %s", o.bound, p.versions())
	}
	o.err = errors.New("damaged")
	p.tick(1)
	p.answer(t, 200, message)
	if len(p.log) == 0 || !strings.Contains(p.log[len(p.log)-1],
		"sends an unreadable answer, the policy set stays as it is: enforcement: damaged") ||
		p.versions() != "5" {
		t.Errorf("log %q, in force %s", p.log, p.versions())
	}
}

func TestAnInlineSetIsUsedUntilTheFirstAnswer(t *testing.T) {
	p := newProcess(2)
	if _, err := p.vms[0].Use(snapshot(0), p.now); err != nil {
		t.Fatal(err)
	}
	if got := p.versions(); got != "0 -" {
		t.Errorf("versions %s", got)
	}
	p.tick(0)
	p.answer(t, 200, snapshot(4))
	p.tick(1)
	if got := p.versions(); got != "4 4" {
		t.Errorf("versions %s", got)
	}
	if _, err := p.vms[0].Use([]byte("garbage"), p.now); err == nil || p.versions() != "4 4" {
		t.Errorf("garbage was used: %v", err)
	}
}

// people notes the poll's changes of consumers.
type people struct {
	revision uint64
	heard    []string
	err      error
}

func (p *people) Revision() uint64 { return p.revision }
func (p *people) Synced()          { p.heard = append(p.heard, "synced") }
func (p *people) Changed(body []byte) error {
	p.heard = append(p.heard, fmt.Sprint(len(body)))
	return p.err
}

// The poll that brings policy sets brings changes of consumers too.
func TestThePollTellsOfConsumers(t *testing.T) {
	who := &people{revision: 7}
	p := newProcess(1, func(c *configsync.Config) { c.Consumers = who })
	p.tick(0)
	if q := p.answer(t, 200, snapshot(5)); q.Get("consumers") != "7" {
		t.Errorf("the poll says %v", q)
	}
	p.tick(1)
	changes := wire.AppendConsumers(nil, wire.Consumers{Revision: 8, Complete: true})
	p.answer(t, 200, changes)
	p.tick(1)
	p.answer(t, 204, nil)
	if got := strings.Join(who.heard, " "); got != fmt.Sprint(len(changes), " synced") || p.versions() != "5" {
		t.Errorf("heard %s; versions %s", got, p.versions())
	}
	// A message that cannot be read is asked for again, but not at once.
	who.err = errors.New("damaged")
	p.tick(1)
	p.answer(t, 200, changes)
	p.tick(1)
	if len(p.polls) != 0 || !strings.Contains(p.log[len(p.log)-1], "damaged") {
		t.Errorf("%d polls, log %q", len(p.polls), p.log)
	}
}

// Package configsync brings the newest snapshot into every VM. One leader in each process polls the
// control plane, checks the answer and puts it into shared data; the other VMs load it from there.
// A snapshot that does not load is reported, and the last good snapshot stays.
package configsync

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/filter/internal/base/rpc"
	"github.com/weir-proxy/weir/filter/internal/base/ruleset"
	"github.com/weir-proxy/weir/filter/internal/base/shareddata"
	"github.com/weir-proxy/weir/filter/internal/load/penalties"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/quota"
)

// Poller asks for news by long poll: a snapshot, or changes of consumers, penalties or enforcement.
// Package wire tells these messages apart. Done is called once, later, unless an error is returned;
// status 0 means that no answer came. Mark comes from the control plane and distinguishes two
// documents with the same version number; it is empty if the control plane sends none. Mark and
// body are valid only during done.
type Poller interface {
	PollSnapshot(path []byte, timeout quota.Span, done func(status int, mark, body []byte)) error
}

// Consumers receives changes of consumers from the poll. Revision returns the last known change.
// Synced notes that there are no later changes.
type Consumers interface {
	Revision() uint64
	Changed(body []byte) error
	Synced()
}

// Enforcement receives the state of enforcement from the poll. Revision returns the revision in
// force. Bind applies it to a policy set.
type Enforcement interface {
	Revision() uint64
	Changed(body []byte) error
	Bind(ix *match.Index)
}

// Log writes to Envoy's log.
type Log interface {
	Info(message string)
	Warn(message string)
	Error(message string)
}

// These are the times of the poll.
const (
	pollTimeout = 30 * quota.Second
	// inUseRetry is the pause before the next poll if requests still use the memory that the answer
	// needs.
	inUseRetry = 10 * quota.Millisecond
)

// pauses are the pauses after failed polls.
var pauses = rpc.Backoff{First: 250 * quota.Millisecond, Longest: 5 * quota.Second}

// stepWork bounds the part of a snapshot that a VM compiles in one tick, in elements of a
// match.Index. Requests of this worker wait meanwhile, for about three milliseconds at most.
const stepWork = 4096

// firstWork is stepWork for the first set of a control plane, until which requests have no limits.
const firstWork = 2 * stepWork

// coming is a snapshot that is being loaded.
type coming struct {
	from origin
	// version is the version of a published snapshot, and mark the mark of any snapshot.
	version shareddata.Version
	mark    []byte
}

// origin is the source of a snapshot.
type origin uint8

const (
	// nowhere: there is no snapshot.
	nowhere origin = iota
	// polled: this VM leads, and its poll has brought the snapshot.
	polled
	// published: the leader has put the snapshot into shared data.
	published
)

// Node is a node's description of itself in a poll.
type Node struct {
	ID, Zone, Filter string
	Boot             uint64
}

// Stats counts the outcomes of snapshots, for the filter's metrics.
type Stats struct {
	Applied, Refused uint64
	Polls            rpc.Counts
}

// Sync keeps one VM's rules up to date.
type Sync struct {
	Stats Stats

	shared      shareddata.Data
	poller      Poller // nil without a control plane
	clock       rpc.Clock
	log         Log
	node        Node
	consumers   Consumers
	penalties   *penalties.Box
	enforcement Enforcement
	leader      *leader
	alone       alone

	rules [2]ruleset.Rules
	using int
	have  bool
	// coming is the snapshot that is being compiled into the spare rules.
	coming coming

	polling  bool
	nextPoll quota.Instant
	retry    quota.Span
	// failing is the outcome of the first failed poll in a row, or of the first refused poll;
	// rpc.Answered if the last poll was answered.
	failing rpc.Outcome
	// refusedFor is the last logged reason of a refusal; empty after an answer.
	refusedFor string
	// seen is the last version that the control plane sent. refused is the last version that did
	// not load, and reason the reason.
	seen, refused uint64
	reason        string
	// seenMark is the mark of seen, and mark the mark of the snapshot in force.
	seenMark, mark []byte

	// published is the snapshot in shared data. Its version has the snapshot's version and the
	// generation.
	published shareddata.Document
	markKey   shareddata.Key
	// behind: a published snapshot waits for requests that use the memory that it needs.
	behind bool
	// heard is when the control plane last confirmed the snapshot, as far as this VM knows.
	// sharedHeard keeps it for the next leader.
	heard       quota.Instant
	sharedHeard shareddata.Number

	path   []byte
	random rpc.Rand
}

// Config has the parts that a Sync needs.
type Config struct {
	Shared shareddata.Data
	Space  shareddata.Space
	// Poller asks the control plane; nil: there is none.
	Poller Poller
	Clock  rpc.Clock
	Log    Log
	Node   Node
	// Consumers receives changes of consumers; nil: they are not asked for.
	Consumers Consumers
	// Penalties receives changes of penalties; nil: they are not asked for.
	Penalties *penalties.Box
	// Enforcement is applied to each policy set; nil: there is none.
	Enforcement Enforcement
	// Seed is random for each worker.
	Seed uint64
}

// New makes a Sync.
func New(c Config) *Sync {
	return &Sync{
		shared: c.Shared, poller: c.Poller, clock: c.Clock, log: c.Log, node: c.Node,
		consumers: c.Consumers, penalties: c.Penalties, enforcement: c.Enforcement,
		leader: newLeader(c.Shared, c.Space, c.Seed), alone: newAlone(c.Shared, c.Space),
		published: shareddata.NewDocument(
			c.Shared, c.Space, shareddata.PolicySetVersion, shareddata.PolicySet),
		markKey:     c.Space.Key(shareddata.PolicySetMark),
		sharedHeard: shareddata.NewNumber(c.Shared, c.Space, shareddata.PolicySetHeard),
		random:      rpc.NewRand(c.Seed),
	}
}

// Rules returns the policy set in force, nil before the first.
func (s *Sync) Rules() *ruleset.Rules {
	if !s.have {
		return nil
	}
	return &s.rules[s.using]
}

// Use puts a snapshot into force in this VM only: the inline policy set, at now. Without a control
// plane, since is when the process began to use that set.
func (s *Sync) Use(snapshot []byte, now quota.Instant) (since quota.Instant, err error) {
	if err := s.rules[1-s.using].Load(snapshot); err != nil {
		return now, err
	}
	s.swapRules()
	if s.poller != nil {
		return now, nil
	}
	return s.alone.begin(snapshot, now), nil
}

// beginLoad starts to compile a snapshot into the spare rules. If that fails, or while requests
// still wait under the spare rules, the rules in force stay.
func (s *Sync) beginLoad(snapshot []byte, from origin) error {
	spare := &s.rules[1-s.using]
	if spare.Paused > 0 {
		return inUseError{}
	}
	// The new snapshot replaces another; if it does not load, Follow finds the other again.
	s.coming.from = nowhere
	if err := spare.Begin(snapshot); err != nil {
		return err
	}
	s.coming.from = from
	return nil
}

// continueLoad compiles the next part of the coming snapshot.
func (s *Sync) continueLoad() {
	if s.coming.from == nowhere {
		return
	}
	work := stepWork
	if s.appliedVersion() == 0 {
		work = firstWork
	}
	done, err := s.rules[1-s.using].Continue(work)
	if !done {
		return
	}
	from := s.coming.from
	s.coming.from = nowhere
	if from == polled {
		s.endReceive(err)
	} else {
		s.endFollow(err)
	}
}

// swapRules puts the spare rules into force.
func (s *Sync) swapRules() {
	spare := 1 - s.using
	if s.enforcement != nil {
		s.enforcement.Bind(&s.rules[spare].Index)
	}
	s.using, s.have = spare, true
}

// Tallied returns the rules in force and the former rules, which may have counts that are not
// reported yet. They must be reported before the next Tick or answer, which may replace the rules.
func (s *Sync) Tallied() [2]*ruleset.Rules { return [2]*ruleset.Rules{&s.rules[0], &s.rules[1]} }

// Tick loads the published snapshot. In the leader it also polls.
func (s *Sync) Tick(now quota.Instant) {
	if s.poller == nil {
		s.alone.tick(now)
		return
	}
	s.Follow()
	if s.leader.lead(now) && s.mayPoll() && now >= s.nextPoll {
		s.sendPoll()
	}
}

// NextDue returns when Tick has something to do. A published snapshot can wait for the tick before
// the next request, unless it could not be loaded.
func (s *Sync) NextDue(now quota.Instant) quota.Instant {
	switch {
	case s.poller == nil:
		return s.alone.next
	case s.behind || s.coming.from != nowhere:
		return now
	case s.leader.leads && s.mayPoll():
		return min(s.leader.next, s.nextPoll)
	}
	return s.leader.next
}

// mayPoll reports whether the next poll may begin: the snapshot of the last poll is loaded.
func (s *Sync) mayPoll() bool { return !s.polling && s.coming.from != polled }

// Leads reports whether this VM was the process's leader at the last Tick.
func (s *Sync) Leads() bool { return s.leader.leads }

// Age returns the time since the control plane last confirmed the snapshot; before the first time,
// the time since this VM first led. Only the leader's Age is exact.
func (s *Sync) Age(now quota.Instant) quota.Span {
	if s.heard == 0 {
		s.heard = quota.Instant(s.sharedHeard.Load())
	}
	if s.heard == 0 {
		s.heard = now
	}
	return quota.Span(max(now-s.heard, 0))
}

// Join loads the published snapshot whole. A VM that starts late, after a trap or with a new
// configuration, calls it before its first request, so that the request meets the same limits as in
// other VMs.
func (s *Sync) Join() {
	for s.Follow(); s.coming.from != nowhere; {
		s.continueLoad()
	}
}

// Follow loads the next part of the published snapshot if it differs from the snapshot in force.
// Without a control plane there is only the inline set.
func (s *Sync) Follow() {
	if s.poller == nil {
		return
	}
	s.behind = false
	if s.coming.from == nowhere {
		s.takePublished()
	}
	s.continueLoad()
}

// takePublished begins to load the published snapshot if it is newer.
func (s *Sync) takePublished() {
	version, snapshot, news := s.published.News()
	if !news {
		return
	}
	s.coming.version = version
	switch err := s.beginLoad(snapshot, published).(type) {
	case nil:
		mark, _, _ := s.shared.Get(s.markKey[:])
		s.coming.mark = append(s.coming.mark[:0], mark...)
	case inUseError: // Waiting requests end within their deadline; the next tick tries again.
		s.behind = true
	default:
		s.endFollow(err)
	}
}

// endFollow puts the published snapshot into force, if it could be loaded.
func (s *Sync) endFollow(err error) {
	version := s.coming.version
	s.published.Take(version)
	if err != nil {
		// The leader has loaded the same bytes, so these bytes are damaged. The next publication
		// replaces them.
		s.Stats.Refused++
		s.log.Error("weir: cannot load the published policy set: " + err.Error())
		return
	}
	s.swapRules()
	s.mark = append(s.mark[:0], s.coming.mark...)
	s.seen, s.seenMark = s.rules[s.using].Index.Version(), append(s.seenMark[:0], s.mark...)
	s.rules[s.using].Generation = binary.LittleEndian.Uint64(version[8:])
}

// publish passes the snapshot in force to the other VMs. The second half of its version is the
// generation, the last generation plus 1. Its random end distinguishes the publications of two
// leaders at the same moment.
func (s *Sync) publish() {
	ix := &s.rules[s.using].Index
	last, _ := s.published.Published()
	generation := (binary.LittleEndian.Uint64(last[8:])>>generationShift + 1) << generationShift
	generation |= s.random.Next() >> (64 - generationShift)
	s.rules[s.using].Generation = generation
	var version shareddata.Version
	binary.LittleEndian.PutUint64(version[:8], ix.Version())
	binary.LittleEndian.PutUint64(version[8:], generation)
	s.shared.Put(s.markKey[:], s.mark)
	if !s.published.Publish(version, ix.Snapshot()) {
		// The next poll brings the whole snapshot, and its publication has a new generation.
		s.seen, s.seenMark = 0, s.seenMark[:0]
	}
	s.published.Take(version)
}

// generationShift is the number of random bits at a generation's end.
const generationShift = 16

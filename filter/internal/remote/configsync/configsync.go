// Package configsync brings the newest snapshot into every VM. One leader in each process polls the
// control plane, validates the answer and puts it into shared data; the others load it from there.
// A snapshot that does not load is reported, and the last good one stays.
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

// Poller asks by long poll for what is new: a snapshot, or changes of consumers, penalties or
// enforcement, which wire tells apart. Done is called once, later, unless an error is returned;
// a status of 0 means that no answer came. Mark comes from the control plane and distinguishes two
// documents with one version number; it is empty if the control plane sends none. Mark and body are
// valid only during done.
type Poller interface {
	PollSnapshot(path []byte, timeout quota.Span, done func(status int, mark, body []byte)) error
}

// Consumers receives changes of consumers from the poll. Revision is the last known change; Synced
// notes that there are no later ones.
type Consumers interface {
	Revision() uint64
	Changed(body []byte) error
	Synced()
}

// Orders receives enforcement orders from the poll. Revision is that of the orders in force; Bind
// applies them to a policy set.
type Orders interface {
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

// Times of the poll.
const (
	pollTimeout = 30 * quota.Second
	// inUseRetry is when to poll again if requests still refer to the memory that the answer needs.
	inUseRetry = 10 * quota.Millisecond
)

// pauses are the pauses after failed polls.
var pauses = rpc.Backoff{First: 250 * quota.Millisecond, Longest: 5 * quota.Second}

// stepWork bounds how much of a snapshot a VM compiles in one tick, in elements of a match.Index:
// requests of this worker wait meanwhile, for some three milliseconds at most.
const stepWork = 4096

// firstWork is that of the first set of a control plane, until which requests have no limits.
const firstWork = 2 * stepWork

// coming is a snapshot on its way into force.
type coming struct {
	from origin
	// version is that of a published snapshot, mark the mark of any.
	version shareddata.Version
	mark    []byte
}

// origin says where a snapshot comes from.
type origin uint8

const (
	// nowhere: there is none.
	nowhere origin = iota
	// polled: this VM leads, and its poll has brought it.
	polled
	// published: the leader has put it into shared data.
	published
)

// Node is what a node says of itself in a poll.
type Node struct {
	ID, Zone, Filter string
	Boot             uint64
}

// Stats counts what happened to snapshots, for the filter's metrics.
type Stats struct {
	Applied, Refused uint64
	Polls            rpc.Counts
}

// Sync keeps one VM's rules up to date.
type Sync struct {
	Stats Stats

	shared    shareddata.Data
	poller    Poller // nil without a control plane
	clock     rpc.Clock
	log       Log
	node      Node
	consumers Consumers
	penalties *penalties.Box
	orders    Orders
	leader    *leader
	alone     alone

	rules [2]ruleset.Rules
	using int
	have  bool
	// coming is the snapshot that is being compiled into the spare rules.
	coming coming

	polling  bool
	nextPoll quota.Instant
	retry    quota.Span
	// failing is how the first poll in a row without an answer ended, or the first that was
	// refused; rpc.Answered if there was none.
	failing rpc.Outcome
	// refusedFor is why it was, as the log said last; empty if there was an answer since.
	refusedFor string
	// seen is the last version that the control plane sent. refused is the last one that did not
	// load, reason why.
	seen, refused uint64
	reason        string
	// seenMark is the mark of seen, mark the one of the snapshot in force.
	seenMark, mark []byte

	// published is the snapshot in shared data. Its version is the snapshot's and the generation.
	published shareddata.Document
	markKey   shareddata.Key
	// behind: a published snapshot waits for requests that hold the memory that it needs.
	behind bool
	// heard is when the control plane last confirmed the snapshot, as far as this VM knows;
	// sharedHeard is that for the next leader.
	heard       quota.Instant
	sharedHeard shareddata.Number

	path   []byte
	random rpc.Rand
}

// Config is what a Sync needs.
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
	// Orders is applied to each policy set; nil: there are no orders.
	Orders Orders
	// Seed is random for each worker.
	Seed uint64
}

// New makes a Sync.
func New(c Config) *Sync {
	return &Sync{
		shared: c.Shared, poller: c.Poller, clock: c.Clock, log: c.Log, node: c.Node,
		consumers: c.Consumers, penalties: c.Penalties, orders: c.Orders,
		leader: newLeader(c.Shared, c.Space, c.Seed), alone: newAlone(c.Shared, c.Space),
		published: shareddata.NewDocument(
			c.Shared, c.Space, shareddata.PolicySetVersion, shareddata.PolicySet),
		markKey:     c.Space.Key(shareddata.PolicySetMark),
		sharedHeard: shareddata.NewNumber(c.Shared, c.Space, shareddata.PolicySetHeard),
		random:      rpc.NewRand(c.Seed),
	}
}

// Rules is the policy set in force, nil before the first.
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
	s.swap()
	if s.poller != nil {
		return now, nil
	}
	return s.alone.begin(snapshot, now), nil
}

// begin starts to compile a snapshot into the spare rules. If that fails, or while requests still
// wait under the spare rules, the rules in force stay.
func (s *Sync) begin(snapshot []byte, from origin) error {
	spare := &s.rules[1-s.using]
	if spare.Paused > 0 {
		return inUseError{}
	}
	s.coming.from = nowhere // This one replaces it; if it does not load, Follow finds the other again.
	if err := spare.Begin(snapshot); err != nil {
		return err
	}
	s.coming.from = from
	return nil
}

// proceed compiles the next part of the snapshot that is coming.
func (s *Sync) proceed() {
	if s.coming.from == nowhere {
		return
	}
	work := stepWork
	if s.applied() == 0 {
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

// swap puts the spare rules into force.
func (s *Sync) swap() {
	spare := 1 - s.using
	if s.orders != nil {
		s.orders.Bind(&s.rules[spare].Index)
	}
	s.using, s.have = spare, true
}

// Tallied are the rules in force and the former ones, which may hold counts that are not reported
// yet. They must be reported before the next Tick or answer, which may replace the rules.
func (s *Sync) Tallied() [2]*ruleset.Rules { return [2]*ruleset.Rules{&s.rules[0], &s.rules[1]} }

// Tick loads what the leader has published. In the leader it polls.
func (s *Sync) Tick(now quota.Instant) {
	if s.poller == nil {
		s.alone.tick(now)
		return
	}
	s.Follow()
	if s.leader.lead(now) && s.free() && now >= s.nextPoll {
		s.poll()
	}
}

// NextDue is when Tick has something to do. What the leader has published can wait for the tick
// before the next request, unless it could not be loaded.
func (s *Sync) NextDue(now quota.Instant) quota.Instant {
	switch {
	case s.poller == nil:
		return s.alone.next
	case s.behind || s.coming.from != nowhere:
		return now
	case s.leader.leads && s.free():
		return min(s.leader.next, s.nextPoll)
	}
	return s.leader.next
}

// free reports whether the next poll may begin: what the last one has brought is in force.
func (s *Sync) free() bool { return !s.polling && s.coming.from != polled }

// Leads reports whether this VM was the process's leader at the last Tick.
func (s *Sync) Leads() bool { return s.leader.leads }

// Age is how long ago the control plane last confirmed the snapshot; before the first time, how
// long ago this VM first led. Only the leader's Age is exact.
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
// configuration, calls it before its first request, which must meet the limits that others meet.
func (s *Sync) Join() {
	for s.Follow(); s.coming.from != nowhere; {
		s.proceed()
	}
}

// Follow goes on to load the published snapshot if it differs from the one in force. Without a
// control plane there is only the inline set.
func (s *Sync) Follow() {
	if s.poller == nil {
		return
	}
	s.behind = false
	if s.coming.from == nowhere {
		s.take()
	}
	s.proceed()
}

// take begins to load the published snapshot if there is a newer one.
func (s *Sync) take() {
	version, snapshot, news := s.published.News()
	if !news {
		return
	}
	s.coming.version = version
	switch err := s.begin(snapshot, published).(type) {
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
		// The leader has loaded the same bytes, so these are damaged. The next publication replaces
		// them.
		s.Stats.Refused++
		s.log.Error("weir: cannot load the published policy set: " + err.Error())
		return
	}
	s.swap()
	s.mark = append(s.mark[:0], s.coming.mark...)
	s.seen, s.seenMark = s.rules[s.using].Index.Version(), append(s.seenMark[:0], s.mark...)
	s.rules[s.using].Generation = binary.LittleEndian.Uint64(version[8:])
}

// publish passes the snapshot in force to the other VMs. The second half of its version is the
// generation, one more than the last. Its random end distinguishes the publications of two leaders
// at the same moment.
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
		// The next poll brings the whole snapshot, and its publication has a generation of its own.
		s.seen, s.seenMark = 0, s.seenMark[:0]
	}
	s.published.Take(version)
}

// generationShift is the number of random bits at a generation's end.
const generationShift = 16

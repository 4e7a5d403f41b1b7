//go:build tinygo

package plugin

import (
	"strconv"

	"github.com/tetratelabs/proxy-wasm-go-sdk/proxywasm"
	"github.com/tetratelabs/proxy-wasm-go-sdk/proxywasm/types"

	"github.com/weir-proxy/weir/filter/internal/answer/decisions"
	"github.com/weir-proxy/weir/filter/internal/answer/measures"
	"github.com/weir-proxy/weir/filter/internal/answer/respond"
	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/base/report"
	"github.com/weir-proxy/weir/filter/internal/base/shareddata"
	"github.com/weir-proxy/weir/filter/internal/base/timer"
	"github.com/weir-proxy/weir/filter/internal/decide/limiter"
	"github.com/weir-proxy/weir/filter/internal/envoy/host"
	"github.com/weir-proxy/weir/filter/internal/load/inflight"
	"github.com/weir-proxy/weir/filter/internal/load/overload"
	"github.com/weir-proxy/weir/filter/internal/load/penalties"
	"github.com/weir-proxy/weir/filter/internal/remote/configsync"
	"github.com/weir-proxy/weir/filter/internal/remote/consumers"
	"github.com/weir-proxy/weir/filter/internal/remote/enforcement"
	"github.com/weir-proxy/weir/filter/internal/remote/failover"
	"github.com/weir-proxy/weir/filter/internal/remote/leasing"
	"github.com/weir-proxy/weir/shared/classify"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// millisecond is a millisecond in the clocks' microseconds.
const millisecond = int64(quota.Millisecond)

// atOnce is the number of held requests that go on within one callback. The answer to each request
// enters the filter again, inside the callback of the answer before: hundreds of nested callbacks
// exhaust the stack, 200 do not. With a smaller number, callers whose tokens come late would wait
// until their patience ends.
const atOnce = 64

// pluginContext is one plugin configuration in one VM.
type pluginContext struct {
	types.DefaultPluginContext

	id      uint32
	clock   host.Clock
	metrics *metrics

	store   *bucketstore.Store
	sync    *configsync.Sync
	limiter *limiter.Limiter
	flights *inflight.Book
	// penalties are the penalties of callers, also without a control plane.
	penalties *penalties.Box
	guards    *overload.Guards
	central   *central // nil without a control plane

	// unixKey is the shared key for the offset of Unix time that the process agrees on.
	unixKey shareddata.Key

	classifier       classify.Classifier
	refusal          respond.Refusal
	scratch, details []byte
	timer            timer.Timer
	// room is the number of held requests that may still go on within this callback.
	room int

	passed passed
	// leftOut counts policies that had no room in the response fields.
	leftOut uint64
	// warned: the log has the warning that Envoy does not append the peer's address.
	warned  bool
	counted []counter
	shown   shown
	// flown are the metrics of the flights' groups, in the same order.
	flown []flightMetrics
}

// central has the parts that only a plugin with a control plane needs.
type central struct {
	leasing     *leasing.Client
	failover    *failover.Ladder
	consumers   *consumers.Cache
	enforcement *enforcement.View
	decisions   *decisions.Recorder
	measures    *measures.Recorder
	reports     *report.Reporter
}

// OnPluginStart implements types.PluginContext. A configuration with problems refuses the plugin;
// the log lists all problems.
func (p *pluginContext) OnPluginStart(int) types.OnPluginStartStatus {
	host.Begin()
	config, inline := readConfiguration()
	if config == nil {
		return types.OnPluginStartStatusFailed
	}
	host.Release()
	if err := p.start(config, inline); err != nil {
		logRefused(err)
		return types.OnPluginStartStatusFailed
	}
	host.Release() // The next policy set can use the memory that reading this one took.
	return types.OnPluginStartStatusOK
}

// logRefused logs the problems of a refused configuration.
func logRefused(err error) {
	host.Error("weir: cannot apply the plugin configuration:\n" + err.Error())
}

// readConfiguration returns the configuration, which has copies of Envoy's data, and the policies
// of its inline set; nil after problems. Like start it is not inlined, because a function's
// variables are not collected before it returns.
//
//go:noinline
func readConfiguration() (*policy.Plugin, *wire.Packed) {
	raw, err := proxywasm.GetPluginConfiguration()
	if err != nil && err.Error() != types.ErrorStatusNotFound.Error() { // To compare errors takes reflection.
		host.Error("weir: cannot read the plugin configuration: " + err.Error())
		return nil, nil
	}
	doc, err := policy.ParsePlugin(raw)
	if err == nil {
		var config *policy.Plugin
		inline := &wire.Packed{}
		config, err = policy.DecodePluginEach(doc, inline.Add)
		if err == nil {
			return config, inline
		}
	}
	logRefused(err)
	return nil, nil
}

// start makes the parts of the plugin, and applies the inline policy set, if any.
//
//go:noinline
func (p *pluginContext) start(config *policy.Plugin, inline *wire.Packed) error {
	space := nameSpace(config)
	process := thisProcess(space)
	node := describeNode(config, process)
	p.unixKey = space.Key(shareddata.UnixOffset)
	if err := p.makeParts(config, node, space); err != nil {
		return err
	}
	p.counted = p.allCounters()
	p.metrics.defineCounters(p.counted)
	p.setAhead()
	if config.Set != nil {
		snapshot := wire.AppendSnapshot(nil, wire.Snapshot{Secret: process.secret, Set: config.Set, Packed: inline})
		since, err := p.sync.Use(snapshot, p.clock.Now())
		if err != nil {
			return err
		}
		if config.ControlPlane == nil {
			p.store.Apart(since)
			p.warnOfModes()
		}
	}
	p.sync.Join()
	var period quota.Span
	p.timer, period = timer.New(p.clock.Now())
	host.SetTick(period)
	return nil
}

// makeParts makes the parts that decide requests.
func (p *pluginContext) makeParts(config *policy.Plugin, node configsync.Node, space shareddata.Space) error {
	p.store = bucketstore.New(host.SharedData{}, space, config.Keys, p.clock.Now())
	p.flights = inflight.New(host.SharedData{}, space, config.Keys, randomNumber())
	var poller configsync.Poller
	var calls *controlPlane
	if config.ControlPlane != nil {
		var err error
		if calls, err = p.makeCentral(config, node, space); err != nil {
			return err
		}
		poller = calls
	}
	// The parts that decide without the control plane.
	p.penalties = penalties.New(penalties.Config{
		Shared: host.SharedData{}, Space: space, Reports: poller != nil, Clock: p.clock, Seed: randomNumber(),
		Sets: agreedSets(space, shareddata.PenaltySets, config.Keys/4),
	})
	p.guards = overload.New(host.SharedData{}, space, p.flights)
	// The parts that both kinds of plugin have, joined to the control plane's parts.
	sync := configsync.Config{
		Shared: host.SharedData{}, Space: space, Poller: poller, Clock: p.clock, Log: logger{},
		Node: node, Seed: randomNumber(),
	}
	limits := limiter.Config{Store: p.store, Flights: p.flights, Penalties: p.penalties, Guards: p.guards}
	if c := p.central; c != nil {
		c.reports = report.New(calls, p.clock, node.ID, node.Boot, randomNumber(), report.Parts{
			wire.SectionOffences: p.penalties, wire.SectionLadder: c.failover,
			wire.SectionDecisions: c.decisions, wire.SectionMeasures: c.measures,
		})
		limits.Leases = c.leasing
		sync.Consumers, sync.Enforcement, sync.Penalties = c.consumers, c.enforcement, p.penalties
	}
	p.sync, p.limiter = configsync.New(sync), limiter.New(limits)
	return nil
}

// describeNode returns the node's description of itself for the control plane.
func describeNode(config *policy.Plugin, process process) configsync.Node {
	node := configsync.Node{ID: config.NodeID, Zone: config.Zone, Filter: buildVersion(), Boot: process.id}
	if node.ID == "" {
		node.ID = string(host.Property("xds\x00node\x00id"))
	}
	if node.ID == "" {
		node.ID = "envoy-" + strconv.FormatUint(process.id, 16)
	}
	node.ID = node.ID[:min(len(node.ID), wire.MaxNodeID)]
	return node
}

// makeCentral makes the parts that need a control plane.
func (p *pluginContext) makeCentral(
	config *policy.Plugin, node configsync.Node, space shareddata.Space,
) (*controlPlane, error) {
	cp := config.ControlPlane
	token, ok := host.Env(cp.TokenEnv)
	if !ok || token == "" {
		return nil, policy.Problems{{
			Path: "control_plane.token.env",
			Reason: "the environment variable " + cp.TokenEnv +
				" is empty or not passed on: set it for Envoy, and in Wasm list it in " +
				"vm_config.environment_variables.host_env_keys",
		}}
	}
	calls, data := newControlPlane(p, cp, token), host.SharedData{}
	sets := agreedSets(space, shareddata.ConsumerSets, config.Keys/4)
	p.central = &central{
		leasing: leasing.New(leasing.Config{
			Store: p.store, Flights: p.flights, Client: calls, Clock: p.clock,
			Shared: data, Space: space,
			Node: node.ID, Boot: node.Boot, Seed: randomNumber(),
		}),
		failover:    failover.New(data, space, logger{}),
		consumers:   consumers.New(data, calls, p.clock, space, sets),
		decisions:   decisions.New(randomNumber()),
		measures:    measures.New(p.flights),
		enforcement: enforcement.New(data, p.store, p.clock, space),
	}
	p.central.enforcement.Tick(p.clock.Wall() / millisecond)
	return calls, nil
}

// warnOfModes warns about policies in force whose mode needs a control plane.
func (p *pluginContext) warnOfModes() {
	ix := &p.sync.Rules().Index
	for i := range ix.Len() {
		if one := ix.Policy(uint32(i)); one.Mode != policy.ModeLocal {
			host.Warn("weir: policy " + string(ix.Text(one.Name)) + " is " + one.Mode.String() +
				" but there is no control plane: it limits on each Envoy alone")
		}
	}
}

// setAhead sets the time by which Unix time is ahead of the deciding clock.
func (p *pluginContext) setAhead() {
	p.limiter.Ahead = agreedAhead(p.unixKey, timer.Ahead(p.clock))
	p.penalties.Ahead = p.limiter.Ahead
	if p.central != nil {
		p.central.consumers.Ahead = p.limiter.Ahead
	}
}

// syncFailover exchanges knowledge of failures between this worker and the other workers of the
// process.
func (p *pluginContext) syncFailover(now quota.Instant) {
	c := p.central
	var t failover.Trouble
	t.Since, t.Times, t.How, t.Open = c.leasing.Health.Open()
	heard, hasten := c.failover.Tick(now, t, p.sync.Rules(), p.sync.Leads())
	c.leasing.Health.Hear(heard)
	if hasten {
		c.leasing.Health.Hasten(now)
	}
}

// OnQueueReady implements types.PluginContext; see host.Call.
func (p *pluginContext) OnQueueReady(uint32) { host.OnQueueReady() }

// onDone reports the remaining counts, and gives places back.
func (p *pluginContext) onDone() {
	if p.limiter != nil {
		p.flights.Close(p.clock.Now())
		p.report()
		p.metrics.waiting.Add(-p.shown.waiting)
		p.shown.waiting = 0
	}
}

// handOver passes leased tokens and settlements to the plugin of a new configuration that replaces
// this plugin.
func (p *pluginContext) handOver() {
	for _, next := range plugins {
		if p.central != nil && next.central != nil && next.unixKey == p.unixKey {
			next.central.leasing.TakeOver(p.central.leasing)
			return
		}
	}
}

// resumeResolved continues waiting requests whose tokens or places came, or will not come. The next
// tick continues the requests beyond this callback's room.
func (p *pluginContext) resumeResolved() {
	p.limiter.SettleTrials(p.clock.Now())
	for streams := p.takeResolved(); len(streams) > 0; streams = p.takeResolved() {
		p.resumeEach(streams, (*httpContext).resumeRequest)
	}
	p.hasten(p.nextResume(p.clock.Now()))
}

// resumeEach continues the streams that still wait.
func (p *pluginContext) resumeEach(streams []uint32, resume func(*httpContext)) {
	p.room -= len(streams)
	for _, stream := range streams {
		if c := findStream(stream); c != nil && c.waiting && host.Select(stream) {
			resume(c)
		}
	}
}

// resumeOwn continues the request whose callback is running, if it waits and can go on. All other
// requests wait for the next tick: Envoy never continues a request whose callback has refused
// another request.
func (p *pluginContext) resumeOwn(own *httpContext) limiter.Status {
	p.limiter.SettleTrials(p.clock.Now())
	status := p.limiter.Resume(&own.request, p.clock.Now())
	p.hasten(p.nextResume(p.clock.Now()))
	return status
}

// takeResolved returns streams that have their tokens or places, or will not get them, up to the
// room.
func (p *pluginContext) takeResolved() []uint32 {
	if p.central != nil {
		if streams := p.central.leasing.TakeResolved(p.room); len(streams) > 0 {
			return streams
		}
	}
	return p.flights.TakeResolved(p.room)
}

// passBeforeSnapshot counts a request that came before the first policy set.
func (p *pluginContext) passBeforeSnapshot() {
	p.passed.beforeSnapshot++
	if p.passed.beforeSnapshot == 1 {
		host.Warn("weir: no policy set yet: requests pass unlimited until the control plane sends a set")
	}
}

// logger writes to Envoy's log.
type logger struct{}

// Info implements configsync.Log.
func (logger) Info(message string) { host.Info(message) }

// Warn implements configsync.Log.
func (logger) Warn(message string) { host.Warn(message) }

// Error implements configsync.Log.
func (logger) Error(message string) { host.Error(message) }

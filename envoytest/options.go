package envoytest

import (
	"strings"
	"time"
)

// VM numbers beside the workers', which count from 0.
const (
	Main   = -1 // the VM of the main thread: it ticks and sees no request
	Canary = -2 // the throw-away VM that tries out a plugin configuration
	Base   = -3 // the VM that the others are made from: it only runs _initialize
)

// FailurePolicy sets the outcome of requests on a worker whose VM has trapped. The zero value is
// Envoy's default.
type FailurePolicy int

const (
	FailClosed FailurePolicy = iota // 503 until the next plugin configuration
	FailOpen                        // the filter is skipped until the next plugin configuration
	FailReload                      // the next request makes a new VM, at most one in ReloadBackoff; 503 in between
)

// Reporter is the part of testing.TB that a Host needs.
type Reporter interface {
	Errorf(format string, args ...any)
}

// Options describe the process and its plugin. The zero value is usable: one worker, no
// configuration.
type Options struct {
	T             Reporter          // gets each problem (see Host.Problems) as it happens; may be nil
	Workers       int               // worker threads; 0 means 1
	PluginName    string            // property plugin_name
	RootID        string            // property plugin_root_id
	VMID          string            // scope of the shared data
	PluginConfig  []byte            // the plugin configuration
	VMConfig      []byte            // the VM configuration
	Env           map[string]string // environment variables
	NodeID        string            // property xds.node.id
	Properties    map[string][]byte // more properties, readable in every context; keys as made by Path
	Start         time.Time         // wall clock at New; zero means 2024-01-01 00:00 UTC
	Clusters      []string          // names a call may go to; nil means any
	FailurePolicy FailurePolicy
	ReloadBackoff time.Duration // of FailReload; 0 means 1 s
	DrainTime     time.Duration // the least lifetime of a replaced root context, even without streams
	Seed          uint64        // of the random bytes that VMs get
	// Store is the shared data of the process; nil means a new store. Hosts with the same store are
	// plugins of one process.
	Store *Store

	// Calls is called with each HTTP call as the guest dispatches it, inside the guest's call. It
	// may answer at once by script (Call.Respond and its like); a call left alone stays pending
	// until a test answers it or its timeout passes.
	Calls func(*Call)
	// OnShared is called with each access to shared data (op is "get" or "set") just before it
	// happens, outside the store's lock, with the number of the VM. It may drive another worker, so
	// that a test can put two workers in any order.
	OnShared func(vm int, op string, key []byte)
	// Cas changes the cas of a set on its way to the store: a fault to plant, with which a test
	// shows that it would notice a guest that got its compare-and-swap wrong.
	Cas func(cas uint32) uint32
}

// Path makes the key of a property from its parts, as in Path("source", "address").
func Path(parts ...string) string { return strings.Join(parts, "\x00") }

func (o Options) withDefaults() Options {
	if o.Workers == 0 {
		o.Workers = 1
	}
	if o.Start.IsZero() {
		o.Start = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	if o.ReloadBackoff == 0 {
		o.ReloadBackoff = time.Second
	}
	if o.Store == nil {
		o.Store = NewStore()
	}
	return o
}

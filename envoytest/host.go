package envoytest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tetratelabs/wazero/api"
)

// Host is one Envoy process with one Wasm plugin.
type Host struct {
	opt     Options
	store   *Store
	metrics metricSet
	queues  queueSet
	clock   clock
	log     logBook

	main    *thread
	workers []*thread

	module    *Module // of the first plugin
	ownModule bool    // made by New from bytes: Close closes it
	plugin    *plugin // in force; nil before Start
	started   bool
	turns     atomic.Pointer[turns] // of an interleaved run, see Interleave

	mu       sync.Mutex // guards the fields below; taken after a thread's lock
	vms      map[*vm]bool
	vmCount  uint64
	totals   Stats
	clusters map[string]bool // nil: all
	calls    []*Call         // pending
}

// thread is one of the process's threads. Its lock makes every VM on it single-threaded.
type thread struct {
	h      *Host
	number int

	mu      threadLock
	current *handle   // for new requests; nil if the plugin could not be made here
	handles []*handle // current, and the handles that drain
}

func newThread(h *Host, number int) *thread {
	return &thread{h: h, number: number, mu: threadLock{h: h}}
}

// New compiles wasm and makes a process with it as its plugin; nothing runs before Start. Close
// must be called.
func New(wasm []byte, opt Options) (*Host, error) {
	m, err := Compile(wasm)
	if err != nil {
		return nil, err
	}
	h := m.New(opt)
	h.ownModule = true
	return h, nil
}

func newHost(m *Module, opt Options) *Host {
	h := &Host{opt: opt.withDefaults(), module: m, vms: map[*vm]bool{}}
	h.store = h.opt.Store
	h.clock.mono.Store(int64(bootOffset))
	h.clock.wall.Store(h.opt.Start.UnixNano() - int64(bootOffset))
	h.main = newThread(h, Main)
	for i := range h.opt.Workers {
		h.workers = append(h.workers, newThread(h, i))
	}
	if h.opt.Clusters != nil {
		h.SetClusters(h.opt.Clusters...)
	}
	return h
}

// SetClusters replaces the names that calls may go to.
func (h *Host) SetClusters(names ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clusters = map[string]bool{}
	for _, name := range names {
		h.clusters[name] = true
	}
}

// Start loads the plugin as a starting proxy does: the base VM, the canary, then the main thread
// and the workers. If the base VM or the canary refuses, it returns an error with the log lines:
// that proxy would not come up. A thread on which the plugin fails although the canary took it is
// left without the plugin, as in Envoy.
func (h *Host) Start() error {
	if h.started {
		return errors.New("envoytest: Start was called before")
	}
	h.started = true
	h.store.retain(h.opt.VMID)
	return h.load(h.module, h.opt.PluginConfig)
}

// Close frees all VMs without a word to the guest, as a killed process does. It returns the
// problems seen, see Problems.
func (h *Host) Close() error {
	var errs []error
	for _, p := range h.Problems() {
		errs = append(errs, errors.New("envoytest: "+p))
	}
	for _, t := range h.threads() {
		t.mu.Lock()
		defer t.mu.Unlock()
	}
	for v := range h.vms {
		v.close()
	}
	if h.started {
		h.store.release(h.opt.VMID)
		h.started = false
	}
	if h.ownModule {
		errs = append(errs, h.module.Close())
		h.ownModule = false
	}
	return errors.Join(errs...)
}

// threads returns the main thread and the workers, in the order in which their locks are taken
// together.
func (h *Host) threads() []*thread { return append([]*thread{h.main}, h.workers...) }

// Worker returns worker i, counted from 0.
func (h *Host) Worker(i int) *Worker { return &Worker{thread: h.workers[i]} }

// Workers returns how many workers there are.
func (h *Host) Workers() int { return len(h.workers) }

// newRand returns the random bytes of one more VM.
func (h *Host) newRand() *rand.ChaCha8 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.vmCount++
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], h.opt.Seed)
	binary.LittleEndian.PutUint64(seed[8:], h.vmCount)
	return rand.NewChaCha8(seed)
}

func (h *Host) live(v *vm) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.vms[v] = true
}

// bury keeps the counts of a VM that goes, and cancels its calls.
func (h *Host) bury(v *vm) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.vms[v] {
		delete(h.vms, v)
		h.totals.addVM(v)
	}
	h.dropCalls(func(c *Call) bool { return c.root.vm == v })
}

// thread returns the thread with a VM's number.
func (h *Host) thread(number int) (*thread, error) {
	if number == Main {
		return h.main, nil
	}
	if number < 0 || number >= len(h.workers) {
		return nil, fmt.Errorf("envoytest: there is no VM %d", number)
	}
	return h.workers[number], nil
}

// MemoryBytes returns the size of the linear memory of the VM that worker vm, or Main, uses for new
// requests; 0 if none.
func (h *Host) MemoryBytes(vm int) (size uint64) {
	h.look("MemoryBytes", vm, func(m api.Memory) { size = uint64(m.Size()) })
	return size
}

// Memory returns a copy of the linear memory of the VM that worker vm, or Main, uses for new
// requests; nil if none.
func (h *Host) Memory(vm int) (content []byte) {
	h.look("Memory", vm, func(m api.Memory) {
		all, _ := m.Read(0, m.Size()) // All of it is always there.
		content = bytes.Clone(all)
	})
	return content
}

// look calls at with the memory of a VM while nothing runs in it. Without a VM it does nothing.
func (h *Host) look(by string, vm int, at func(api.Memory)) {
	t, err := h.thread(vm)
	if err != nil {
		h.problem("%s: %v", by, err)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current != nil {
		at(t.current.vm.mem)
	}
}

// Alive reports whether the VM that worker vm, or Main, uses for new requests is there and has not
// trapped.
func (h *Host) Alive(vm int) bool {
	t, err := h.thread(vm)
	if err != nil {
		h.problem("Alive: %v", err)
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.current != nil && !t.current.vm.failed
}

// LogText returns the whole log as one text, for the output of a failed test.
func (h *Host) LogText() string {
	var b strings.Builder
	for _, l := range h.Logs() {
		b.WriteString(l.String())
		b.WriteByte('\n')
	}
	return b.String()
}

// since returns the time that has passed after an instant of the monotonic clock.
func (h *Host) since(mono int64) time.Duration { return time.Duration(h.clock.mono.Load() - mono) }

package envoytest

import (
	"strconv"
	"sync"
	"testing"
)

func TestSharedDataCas(t *testing.T) {
	for _, c := range []struct {
		name   string
		script string
		want   []string
	}{
		{"absent key is not found", "shared-get k", []string{"not-found"}},
		{"cas counts over all keys", "shared-set a 1 0; shared-set b 1 0; shared-get a; shared-get b",
			[]string{"ok", "ok", "ok 1 cas 1", "ok 1 cas 2"}},
		{"cas 0 overwrites", "shared-set k 1 0; shared-set k 2 0; shared-get k", []string{"ok", "ok", "ok 2 cas 2"}},
		{"the right cas overwrites", "shared-set k 1 0; shared-set k 2 1; shared-get k",
			[]string{"ok", "ok", "ok 2 cas 2"}},
		{"a wrong cas changes nothing", "shared-set k 1 0; shared-set k 2 7; shared-get k",
			[]string{"ok", "cas-mismatch", "ok 1 cas 1"}},
		{"a refused set uses no cas", "shared-set k 1 0; shared-set k 2 7; shared-set k 3 0; shared-get k",
			[]string{"ok", "cas-mismatch", "ok", "ok 3 cas 2"}},
		{"any cas inserts an absent key", "shared-set k 1 4294967295; shared-get k", []string{"ok", "ok 1 cas 1"}},
		{"an impossible cas is put-if-absent", "shared-set k 1 4294967295; shared-set k 2 4294967295; shared-get k",
			[]string{"ok", "cas-mismatch", "ok 1 cas 1"}},
		{"an empty value is found", "shared-set k - 0; shared-get k", []string{"ok", "ok  cas 1"}},
		{"an empty value is still there", "shared-set k - 0; shared-set k 1 9", []string{"ok", "cas-mismatch"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			equal(t, do(start(t, Options{}), 0, c.script), c.want...)
		})
	}
}

func TestSharedDataCasSkipsZero(t *testing.T) {
	store := NewStore()
	store.cas = 1<<32 - 2
	h := start(t, Options{Store: store})
	equal(t, do(h, 0, "shared-set k 1 0; shared-get k; shared-set k 2 0; shared-get k"),
		"ok", "ok 1 cas 4294967295", "ok", "ok 2 cas 1")
}

func TestSharedDataIsOnePerProcessAndVMID(t *testing.T) {
	store := NewStore()
	a := start(t, Options{Store: store, VMID: "one", Workers: 2})
	same := start(t, Options{Store: store, VMID: "one", RootID: "other"})
	apart := start(t, Options{Store: store, VMID: "two"})

	equal(t, do(a, 0, "shared-set k v 0"), "ok")
	equal(t, do(a, 1, "shared-get k"), "ok v cas 1")
	equal(t, do(same, 0, "shared-get k"), "ok v cas 1")
	equal(t, do(apart, 0, "shared-get k; shared-set k w 0; shared-get k"), "not-found", "ok", "ok w cas 2")

	a.Close()
	equal(t, do(same, 0, "shared-get k"), "ok v cas 1")
	same.Close()
	if keys := store.keys("one"); len(keys) != 0 {
		t.Errorf("the last handle of a vm_id is gone, its keys %v are not", keys)
	}
}

func TestSharedDataIsCopied(t *testing.T) {
	h := start(t, Options{})
	value := []byte("before")
	h.SetShared("k", value)
	copy(value, "AFTER!")
	got, _, _ := h.Shared("k")
	copy(got, "AFTER!")
	equal(t, do(h, 0, "shared-get k"), "ok before cas 1")
	equal(t, h.SharedKeys(), "k")
}

func TestSharedDataAllocatesOnlyWhatIsThere(t *testing.T) {
	h := start(t, Options{})
	h.SetShared("empty", nil)
	h.SetShared("full", []byte("12345"))
	for _, c := range []struct {
		script        string
		count, amount uint64
	}{{"shared-get absent", 0, 0}, {"shared-get empty", 0, 0}, {"shared-get full", 1, 5}} {
		before := h.Stats()
		do(h, 0, "log 2 nothing")
		idle := h.Stats().Since(before)
		before = h.Stats()
		do(h, 0, c.script)
		d := h.Stats().Since(before)
		extra := uint64(len(c.script) - len("log 2 nothing")) // the script itself comes in by a header
		if d.Allocations != idle.Allocations+c.count || d.AllocatedBytes != idle.AllocatedBytes+c.amount+extra {
			t.Errorf("%s: %d allocations of %d bytes more than without", c.script,
				d.Allocations-idle.Allocations, d.AllocatedBytes-idle.AllocatedBytes-extra)
		}
	}
}

// Worker 1 writes between worker 0's get and its set: the compare-and-swap of worker 0 must see it.
func TestOnSharedInterleavesWorkers(t *testing.T) {
	var h *Host
	fired := false
	h = start(t, Options{Workers: 2, OnShared: func(vm int, op string, key []byte) {
		if vm == 0 && op == "set" && string(key) == "k" && !fired {
			fired = true
			do(h, 1, "shared-add k")
		}
	}})
	do(h, 0, "shared-add k")
	value, cas, _ := h.Shared("k")
	if string(value) != "2" || cas != 2 {
		t.Errorf("k is %s with cas %d, want 2 with cas 2", value, cas)
	}
	if n := h.Stats().Hostcalls["proxy_set_shared_data"]; n != 3 {
		t.Errorf("%d sets, want 3: one of worker 0 had to fail", n)
	}
}

func TestWorkersHammerSharedData(t *testing.T) {
	const workers, each = 4, 200
	h := start(t, Options{Workers: workers})
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for range each {
				h.Worker(w).Request(get("request", "shared-add k")).Cancel()
			}
		})
	}
	wg.Wait()
	if value, _, _ := h.Shared("k"); string(value) != strconv.Itoa(workers*each) {
		t.Errorf("k is %s, want %d", value, workers*each)
	}
}

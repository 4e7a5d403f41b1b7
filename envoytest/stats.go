package envoytest

import "maps"

// Stats counts the calls between the host and its guests, over all VMs, past and present.
type Stats struct {
	Hostcalls      map[string]uint64 // calls out of the guest, by name without module: "proxy_log", "clock_time_get"
	Entries        map[string]uint64 // callbacks entered, by name; a callback the guest lacks is not entered
	Allocations    uint64            // times the host had a guest allocate memory
	AllocatedBytes uint64
}

// Stats returns the counts so far.
func (h *Host) Stats() Stats {
	for _, t := range h.threads() {
		t.mu.Lock()
		defer t.mu.Unlock()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	total := h.totals
	total.Hostcalls, total.Entries = maps.Clone(total.Hostcalls), maps.Clone(total.Entries)
	for v := range h.vms {
		total.addVM(v)
	}
	return total
}

// Since returns the counts since an earlier result of Host.Stats. It leaves out names with no new
// count.
func (s Stats) Since(earlier Stats) Stats {
	return Stats{
		Hostcalls: difference(s.Hostcalls, earlier.Hostcalls), Entries: difference(s.Entries, earlier.Entries),
		Allocations: s.Allocations - earlier.Allocations, AllocatedBytes: s.AllocatedBytes - earlier.AllocatedBytes,
	}
}

func difference(now, earlier map[string]uint64) map[string]uint64 {
	d := map[string]uint64{}
	for name, n := range now {
		if n > earlier[name] {
			d[name] = n - earlier[name]
		}
	}
	return d
}

func (s *Stats) addVM(v *vm) {
	if s.Hostcalls == nil {
		s.Hostcalls, s.Entries = map[string]uint64{}, map[string]uint64{}
	}
	for i, n := range v.hostcalls {
		if n > 0 {
			s.Hostcalls[hostFuncs[i].name] += n
		}
	}
	for cb, n := range v.entries {
		if n > 0 {
			s.Entries[callbackNames[cb]] += n
		}
	}
	s.Allocations += v.allocations
	s.AllocatedBytes += v.allocationBytes
}

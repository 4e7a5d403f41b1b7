package envoytest

import (
	"bytes"
	"strconv"
	"time"
)

func (v *vm) abiLog(a []uint64) status {
	if a[0] > uint64(Critical) {
		return statusBadArgument
	}
	text, ok := v.bytes(a[1], a[2])
	if !ok {
		return statusInvalidMemoryAccess
	}
	v.h.addLog(v.number, Level(a[0]), string(text))
	return statusOK
}

func (v *vm) abiGetLogLevel(a []uint64) status { return v.put32(a[0], uint32(Trace)) }

// abiGetCurrentTime writes the wall clock.
func (v *vm) abiGetCurrentTime(a []uint64) status {
	return v.put64(a[0], uint64(v.h.Now().UnixNano()))
}

// abiSetTickPeriod acts on the root context, also from a stream.
func (v *vm) abiSetTickPeriod(a []uint64) status {
	v.context().root.setTick(time.Duration(uint32(a[0])) * time.Millisecond)
	return statusOK
}

// abiGetSharedData gives a copy of the value, and its cas. An absent key costs the guest no
// allocation.
func (v *vm) abiGetSharedData(a []uint64) status {
	key, ok := v.bytes(a[0], a[1])
	if !ok {
		return statusInvalidMemoryAccess
	}
	if v.h.opt.OnShared != nil {
		v.h.opt.OnShared(v.number, "get", key)
	}
	e, ok := v.h.store.get(v.h.opt.VMID, key)
	if !ok {
		return statusNotFound
	}
	if st := v.give(e.value, a[2], a[3]); st != statusOK {
		return st
	}
	return v.put32(a[4], e.cas)
}

func (v *vm) abiSetSharedData(a []uint64) status {
	key, ok1 := v.bytes(a[0], a[1])
	value, ok2 := v.bytes(a[2], a[3])
	if !ok1 || !ok2 {
		return statusInvalidMemoryAccess
	}
	if v.h.opt.OnShared != nil {
		v.h.opt.OnShared(v.number, "set", key)
	}
	cas := uint32(a[4])
	if v.h.opt.Cas != nil {
		cas = v.h.opt.Cas(cas)
	}
	return v.h.store.set(v.h.opt.VMID, key, value, cas)
}

func (v *vm) abiDefineMetric(a []uint64) status {
	name, ok := v.bytes(a[1], a[2])
	if !ok {
		return statusInvalidMemoryAccess
	}
	id, st := v.defineMetric(uint32(a[0]), string(name))
	if st != statusOK {
		return st
	}
	return v.put32(a[3], id)
}

func (v *vm) abiIncrementMetric(a []uint64) status {
	return v.incrementMetric(uint32(a[0]), int64(a[1]))
}

func (v *vm) abiRecordMetric(a []uint64) status { return v.recordMetric(uint32(a[0]), a[1]) }

func (v *vm) abiGetMetric(a []uint64) status {
	value, st := v.getMetric(uint32(a[0]))
	if st != statusOK {
		return st
	}
	return v.put64(a[1], value)
}

// abiHTTPCall dispatches a call of the root context. The token is written, as 0, even if the
// dispatch fails.
func (v *vm) abiHTTPCall(a []uint64) status {
	cluster, ok1 := v.bytes(a[0], a[1])
	headers, ok2 := v.bytes(a[2], a[3])
	body, ok3 := v.bytes(a[4], a[5])
	trailers, ok4 := v.bytes(a[6], a[7])
	if !ok1 || !ok2 || !ok3 || !ok4 {
		return statusInvalidMemoryAccess
	}
	if st := v.put32(a[9], 0); st != statusOK {
		return st
	}
	if int32(a[8]) < 0 {
		return statusBadArgument
	}
	c := &Call{
		VM: v.number, Cluster: string(cluster), Body: bytes.Clone(body), Trailers: decodePairs(trailers),
		Timeout: time.Duration(uint32(a[8])) * time.Millisecond, At: v.h.Monotonic(), root: v.context().root,
	}
	m := newHeaderMap(inlineRequestHeaders, decodePairs(headers))
	if len(body) > 0 {
		m.replace("content-length", strconv.Itoa(len(body)))
	}
	c.Headers = m.pairs
	st := v.h.dispatch(c, m)
	v.put32(a[9], c.ID) // the address was good above
	return st
}

// abiGetStatus returns the status of a call in its callback: 0, or the code of a broken connection.
func (v *vm) abiGetStatus(a []uint64) status {
	const brokenConnection = 11
	root := v.context().root
	code := uint32(0)
	if root.failure != "" {
		code = brokenConnection
	}
	if st := v.put32(a[0], code); st != statusOK {
		return st
	}
	return v.giveString(root.failure, a[1], a[2])
}

func (v *vm) abiGRPC([]uint64) status {
	v.h.problem("VM %d: gRPC calls are not modelled", v.number)
	return statusUnimplemented
}

package envoytest

import "sync"

// queueSet holds the shared queues of a process. A queue has one consumer, the context that
// registered it last, wherever that is.
type queueSet struct {
	mu     sync.Mutex
	tokens map[[2]string]uint32 // by vm_id and name
	queues []*sharedQueue       // by token, which counts from 1
}

type sharedQueue struct {
	items    [][]byte
	consumer *wasmContext
}

func (v *vm) abiRegisterQueue(a []uint64) status {
	name, ok := v.bytes(a[0], a[1])
	if !ok {
		return statusInvalidMemoryAccess
	}
	q := &v.h.queues
	key := [2]string{v.h.opt.VMID, string(name)}
	q.mu.Lock()
	if q.tokens == nil {
		q.tokens = map[[2]string]uint32{}
	}
	token, ok := q.tokens[key]
	if !ok {
		q.queues = append(q.queues, &sharedQueue{})
		token = uint32(len(q.queues))
		q.tokens[key] = token
	}
	q.queues[token-1].consumer = v.context().root
	q.mu.Unlock()
	return v.put32(a[2], token)
}

func (v *vm) abiResolveQueue(a []uint64) status {
	vmID, ok1 := v.bytes(a[0], a[1])
	name, ok2 := v.bytes(a[2], a[3])
	if !ok1 || !ok2 {
		return statusInvalidMemoryAccess
	}
	key := [2]string{string(vmID), string(name)}
	if len(vmID) == 0 {
		key[0] = v.h.opt.VMID
	}
	q := &v.h.queues
	q.mu.Lock()
	token, ok := q.tokens[key]
	q.mu.Unlock()
	if !ok {
		return statusNotFound
	}
	return v.put32(a[4], token)
}

// find returns the queue of a token; the caller holds the lock.
func (q *queueSet) find(token uint64) *sharedQueue {
	if token == 0 || token > uint64(len(q.queues)) {
		return nil
	}
	return q.queues[token-1]
}

// abiEnqueue adds an item and posts the news to the consumer's thread. If the consumer is gone the
// news is lost and the item stays.
func (v *vm) abiEnqueue(a []uint64) status {
	item, ok := v.bytes(a[1], a[2])
	if !ok {
		return statusInvalidMemoryAccess
	}
	set := &v.h.queues
	set.mu.Lock()
	defer set.mu.Unlock()
	q := set.find(a[0])
	if q == nil {
		return statusNotFound
	}
	q.items = append(q.items, append([]byte(nil), item...))
	consumer, token := q.consumer, a[0]
	v.h.clock.after(0, func() {
		consumer.vm.thread.mu.Lock()
		defer consumer.vm.thread.mu.Unlock()
		if !consumer.deleted {
			consumer.vm.call(onQueueReady, consumer, token)
			consumer.vm.afterCall()
		}
	})
	return statusOK
}

func (v *vm) abiDequeue(a []uint64) status {
	set := &v.h.queues
	set.mu.Lock()
	q := set.find(a[0])
	if q == nil {
		set.mu.Unlock()
		return statusNotFound
	}
	if len(q.items) == 0 {
		set.mu.Unlock()
		return statusEmpty
	}
	item := q.items[0]
	q.items = q.items[1:]
	set.mu.Unlock()
	return v.give(item, a[1], a[2])
}

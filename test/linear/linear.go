// Package linear has models of limits that answer one request at a time, to judge histories of many
// requests at once. A history is right (linearizable) if each request can be given an instant
// between its call and its return such that in the order of these instants every answer is the
// model's answer. Porcupine searches for the instants.
package linear

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// checkTimeout is how long a search may take. The histories of the tests need a thousandth of it.
const checkTimeout = 30 * time.Second

// never is the end of an operation whose effect is unknown: it may take effect at any later time,
// even after the last look.
const never = 1 << 62

// History has the observations of many clients. The zero value is empty. It is safe for concurrent
// use.
type History struct {
	mu         sync.Mutex
	clock      int64
	operations []porcupine.Operation
}

// Begin notes that a client calls. The result goes to End or Lost.
func (h *History) Begin() (called int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clock++
	return h.clock
}

// End notes a client's request, and the answer that it got now.
func (h *History) End(client int, called int64, input, output any) {
	h.add(client, called, input, output, false)
}

// Lost notes a client's request without an answer: it may have taken effect, or may yet, or never.
// The model gets a nil output.
func (h *History) Lost(client int, called int64, input any) { h.add(client, called, input, nil, true) }

func (h *History) add(client int, called int64, input, output any, lost bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clock++
	returned := h.clock
	if lost {
		returned += never
	}
	h.operations = append(h.operations, porcupine.Operation{
		ClientId: client, Input: input, Call: called, Output: output, Return: returned,
	})
}

// Len returns the number of operations.
func (h *History) Len() int { return len(h.operations) }

// Linearizable reports whether a model explains the history. A search that takes too long fails the
// test.
func (h *History) Linearizable(t testing.TB, m porcupine.Model) bool {
	t.Helper()
	result := porcupine.CheckOperationsTimeout(m, h.operations, checkTimeout)
	if result == porcupine.Unknown {
		t.Fatalf("a history of %d operations could not be checked within %v", h.Len(), checkTimeout)
	}
	return result == porcupine.Ok
}

// String lists the operations by the time of their call, for the output of a failed test.
func (h *History) String() string {
	sorted := slices.Clone(h.operations)
	slices.SortFunc(sorted, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	return describe(sorted)
}

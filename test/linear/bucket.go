package linear

import (
	"fmt"
	"strings"

	"github.com/anishathalye/porcupine"
)

// Take is a request for tokens of a bucket.
type Take struct {
	Key  int
	Cost int64
	// Nows are the instants, in microseconds, at one of which the request looked at its clock.
	Nows []int64
}

// Taken is the answer to a Take.
type Taken struct {
	Allowed   bool
	Remaining int64 // whole tokens left
	// Contended: the bucket was neither looked at nor charged.
	Contended bool
}

// bucket is the state of the model: the tokens that a full bucket lacks as of an instant.
type bucket struct{ debt, last int64 }

// Buckets returns the model of a token bucket for each key. A bucket earns num units a microsecond,
// den units are a token, and it holds burst tokens. A time before the last charge counts as the
// time of that charge. A refusal leaves no trace, not even of its time. It may name the tokens of
// an earlier instant, but always fewer than its cost. An operation's input is a Take, its output a
// Taken.
func Buckets(num, den, burst int64) porcupine.Model {
	step := func(before bucket, now int64, take Take, taken Taken) (bucket, bool) {
		b := before
		if now > b.last {
			b = bucket{max(0, b.debt-(now-b.last)*num), now}
		}
		fits := b.debt+take.Cost*den <= burst*den
		if fits {
			b.debt += take.Cost * den
		}
		left := burst - (b.debt+den-1)/den
		if fits {
			return b, taken.Allowed && taken.Remaining == left
		}
		return before, !taken.Allowed && taken.Remaining >= left && taken.Remaining < take.Cost
	}
	model := porcupine.NondeterministicModel{
		Partition: partition(func(input any) int { return input.(Take).Key }),
		Init:      func() []any { return []any{bucket{}} },
		Step: func(state, input, output any) (next []any) {
			take, taken := input.(Take), output.(Taken)
			if taken.Contended {
				return []any{state}
			}
			for _, now := range take.Nows {
				if b, ok := step(state.(bucket), now, take, taken); ok {
					next = append(next, b)
				}
			}
			return next
		},
	}
	return model.ToModel()
}

// partition splits a history into the histories of its keys.
func partition(key func(input any) int) func([]porcupine.Operation) [][]porcupine.Operation {
	return func(all []porcupine.Operation) [][]porcupine.Operation {
		place := map[int]int{}
		var parts [][]porcupine.Operation
		for _, o := range all {
			i, known := place[key(o.Input)]
			if !known {
				i = len(parts)
				place[key(o.Input)] = i
				parts = append(parts, nil)
			}
			parts[i] = append(parts[i], o)
		}
		return parts
	}
}

func describe(operations []porcupine.Operation) string {
	var b strings.Builder
	for _, o := range operations {
		returned := fmt.Sprint(o.Return)
		if o.Return >= never {
			returned = "lost"
		}
		fmt.Fprintf(&b, "%d..%s client %d: %+v -> %+v\n", o.Call, returned, o.ClientId, o.Input, o.Output)
	}
	return b.String()
}

package wire_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/penalty"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// One operation is one message, as full as it may be where that is bounded, written into a buffer
// that is there or read.
func BenchmarkWire(b *testing.B) {
	question, lease, answer := make([]keyhash.Key, wire.MaxItems), request, reply
	lease.Items, answer.Items = nil, nil
	steps := wire.Ladder{Version: 2, Worst: policy.StepDeny}
	known := wire.Consumers{Revision: 1, Complete: true}
	for i := range wire.MaxItems {
		question[i] = keyhash.Key{byte(i)}
		lease.Items = append(lease.Items,
			wire.LeaseItem{Bucket: question[i], Limit: uint32(i), Waiting: 1, Cost: 1, Keep: 100})
		answer.Items = append(answer.Items, wire.LeaseAnswer{Waiting: 1, Keep: 100, Level: 1000})
		steps.Steps = append(steps.Steps, wire.PolicyStep{Policy: uint32(i), Step: policy.StepShare})
		known.Items = append(known.Items, wire.Consumer{Key: question[i], Tier: []byte("premium")})
	}
	benchMessage(b, "lease_request", lease,
		func(dst []byte, m *wire.LeaseRequest) []byte { return wire.AppendLeaseRequest(dst, *m) },
		func(raw []byte, m *wire.LeaseRequest) (err error) { *m, err = wire.DecodeLeaseRequest(raw); return err })
	benchMessage(b, "lease_reply", answer,
		func(dst []byte, m *wire.LeaseReply) []byte { return wire.AppendLeaseReply(dst, *m) }, wire.DecodeLeaseReply)
	for name, m := range map[string]wire.Report{
		"report": {Node: report.Node, Boot: 1, Ladder: &steps}, "decisions": {Node: report.Node, Decisions: &decisions},
	} {
		benchMessage(b, name, m, wire.AppendReport,
			func(raw []byte, m *wire.Report) (err error) { *m, err = wire.DecodeReport(raw); return err })
	}
	benchMessage(b, "consumers", known,
		func(dst []byte, m *wire.Consumers) []byte { return wire.AppendConsumers(dst, *m) }, wire.DecodeConsumers)
	benchMessage(b, "question", question,
		func(dst []byte, m *[]keyhash.Key) []byte { return wire.AppendQuestion(dst, *m) },
		func(raw []byte, m *[]keyhash.Key) (err error) { *m, err = wire.DecodeQuestion(raw); return err })
}

// benchMessage writes a message and reads it, and the result must equal the message.
func benchMessage[T any](
	b *testing.B, name string, m T, write func(dst []byte, m *T) []byte, read func(raw []byte, m *T) error,
) {
	message := write(nil, &m)
	b.Run("write/"+name, func(b *testing.B) {
		buffer := make([]byte, 0, len(message))
		b.SetBytes(int64(len(message)))
		b.ReportAllocs()
		for b.Loop() {
			buffer = write(buffer[:0], &m)
		}
		if !bytes.Equal(buffer, message) {
			b.Fatal("the last message is another than the first")
		}
	})
	b.Run("read/"+name, func(b *testing.B) {
		var got T
		b.SetBytes(int64(len(message)))
		b.ReportAllocs()
		for b.Loop() {
			if err := read(message, &got); err != nil {
				b.Fatal(err)
			}
		}
		if !bytes.Equal(write(nil, &got), message) {
			b.Fatal("the message that was read is written differently")
		}
	})
}

// One operation is one policy set with three limits and four conditions in each policy, written or
// read to its end.
func BenchmarkSnapshot(b *testing.B) {
	for _, n := range []int{1, 1000} {
		s := everything(b)
		for len(s.Set.Policies) < n {
			s.Set.Policies = append(s.Set.Policies, s.Set.Policies[0])
		}
		message := wire.AppendSnapshot(nil, s)
		b.Run(fmt.Sprintf("write/%d_policies", n), func(b *testing.B) {
			buffer := make([]byte, 0, len(message))
			b.SetBytes(int64(len(message)))
			b.ReportAllocs()
			for b.Loop() {
				buffer = wire.AppendSnapshot(buffer[:0], s)
			}
			if !bytes.Equal(buffer, message) {
				b.Fatal("the last snapshot is another than the first")
			}
		})
		b.Run(fmt.Sprintf("read/%d_policies", n), func(b *testing.B) {
			b.SetBytes(int64(len(message)))
			b.ReportAllocs()
			for b.Loop() {
				if limits, conditions := readSnapshot(b, message); limits != 3*n || conditions != 4*n {
					b.Fatalf("%d limits and %d conditions of %d policies", limits, conditions, n)
				}
			}
		})
	}
}

// readSnapshot reads all of a snapshot, and counts the limits and the conditions of its policies.
func readSnapshot(b *testing.B, message []byte) (limits, conditions int) {
	b.Helper()
	_, _, r, err := wire.OpenSnapshot(message)
	if err != nil {
		b.Fatal(err)
	}
	named, text, address := func(policy.SourceKind, wire.Ref) {}, func(wire.Ref) {}, func(policy.Range) {}
	condition := func(wire.Ref) { conditions++ }
	r.Head(named, text, named)
	r.Access(address, address, text, text, text)
	for range r.Policies() {
		r.Policy(func() {}, func(policy.Limit) { limits++ })
		r.Lists(condition, condition, condition, func(policy.HeaderOp, wire.Ref, wire.Ref) { conditions++ },
			func(policy.PartKind, wire.Ref) {})
		readParts(&r, func(penalty.Rule) {})
	}
	readSetParts(&r)
	if err := r.End(); err != nil {
		b.Fatal(err)
	}
	return limits, conditions
}

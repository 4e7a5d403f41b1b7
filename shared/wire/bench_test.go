package wire_test

import (
	"bytes"
	"testing"

	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// Every message, as full as it may be where that is bounded, written over and over into one buffer and read again.
func BenchmarkWire(b *testing.B) {
	question, lease, answer := make([][16]byte, wire.MaxItems), request, reply
	lease.Items, answer.Items = nil, nil
	full := wire.Report{Node: report.Node, Boot: 1, Version: 2, Worst: policy.StepDeny}
	known := wire.Consumers{Revision: 1, Complete: true}
	for i := range wire.MaxItems {
		question[i] = [16]byte{byte(i)}
		lease.Items = append(lease.Items, wire.LeaseItem{Bucket: question[i], Limit: uint32(i), Waiting: 1, Cost: 1, Keep: 100})
		answer.Items = append(answer.Items, wire.LeaseAnswer{Waiting: 1, Keep: 100, Level: 1000})
		full.Steps = append(full.Steps, wire.PolicyStep{Policy: uint32(i), Step: policy.StepShare})
		known.Items = append(known.Items, wire.Consumer{Key: question[i], Tier: []byte("premium")})
	}
	var gotReply wire.LeaseReply
	var gotReport wire.Report
	var gotDecisions wire.Decisions
	var gotConsumers wire.Consumers
	set := snapshot(b)
	for _, m := range []struct {
		name  string
		write func(dst []byte) []byte
		read  func(message []byte) (items int, err error)
		items int
	}{
		{"lease_request", func(dst []byte) []byte { return wire.AppendLeaseRequest(dst, lease) },
			func(m []byte) (int, error) { r, err := wire.DecodeLeaseRequest(m); return len(r.Items), err }, wire.MaxItems},
		{"lease_reply", func(dst []byte) []byte { return wire.AppendLeaseReply(dst, answer) },
			func(m []byte) (int, error) {
				err := wire.DecodeLeaseReply(m, &gotReply)
				return len(gotReply.Items), err
			}, wire.MaxItems},
		{"report", func(dst []byte) []byte { return wire.AppendReport(dst, full) },
			func(m []byte) (int, error) { err := wire.DecodeReport(m, &gotReport); return len(gotReport.Steps), err }, wire.MaxItems},
		{"decisions", func(dst []byte) []byte { return wire.AppendDecisions(dst, &decisions) },
			func(m []byte) (int, error) {
				err := wire.DecodeDecisions(m, &gotDecisions)
				return len(gotDecisions.Callers), err
			}, len(decisions.Callers)},
		{"consumers", func(dst []byte) []byte { return wire.AppendConsumers(dst, known) },
			func(m []byte) (int, error) {
				err := wire.DecodeConsumers(m, &gotConsumers)
				return len(gotConsumers.Items), err
			}, wire.MaxItems},
		{"question", func(dst []byte) []byte { return wire.AppendQuestion(dst, question) },
			func(m []byte) (int, error) { keys, err := wire.DecodeQuestion(m); return len(keys), err }, wire.MaxItems},
		{"snapshot", nil, func(m []byte) (int, error) {
			_, _, r, err := wire.OpenSnapshot(m)
			ignore := func(wire.Ref) {}
			r.Head(func(policy.SourceKind, wire.Ref) {}, ignore, func(policy.SourceKind, wire.Ref) {})
			r.Access(func(policy.Range) {}, func(policy.Range) {}, ignore, ignore, ignore)
			return r.Policies(), err
		}, 1},
	} {
		message := set
		if m.write != nil {
			message = m.write(nil)
			b.Run("write/"+m.name, func(b *testing.B) {
				buffer := make([]byte, 0, len(message))
				b.SetBytes(int64(len(message)))
				b.ReportAllocs()
				for b.Loop() {
					buffer = m.write(buffer[:0])
				}
				if !bytes.Equal(buffer, message) {
					b.Fatal("the last message is another than the first")
				}
			})
		}
		b.Run("read/"+m.name, func(b *testing.B) {
			b.SetBytes(int64(len(message)))
			b.ReportAllocs()
			for b.Loop() {
				if items, err := m.read(message); err != nil || items != m.items {
					b.Fatalf("%d items of %d: %v", items, m.items, err)
				}
			}
		})
	}
}

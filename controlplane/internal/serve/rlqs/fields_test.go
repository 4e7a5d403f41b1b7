package rlqs

import (
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
)

// heard notes the reports of a filter, and the parts of them that were ignored.
type heard struct {
	text string
}

func (h *heard) QuotaReported(admitted, refused uint64) {
	h.text += fmt.Sprintf("%d admitted %d refused ", admitted, refused)
}
func (*heard) QuotaAssigned(string)      {}
func (h *heard) QuotaIgnored(why string) { h.text += why + " " }

// script is a stream on which a filter sends messages as they are on the wire.
type script struct {
	pb.RateLimitQuotaService_StreamRateLimitQuotasServer
	messages [][]byte
}

func (s *script) Recv() (*pb.RateLimitQuotaUsageReports, error) {
	if len(s.messages) == 0 {
		return nil, io.EOF
	}
	m := &pb.RateLimitQuotaUsageReports{}
	err := proto.Unmarshal(s.messages[0], m)
	s.messages = s.messages[1:]
	return m, err
}

// No field of a usage report is believed beyond its bound: the stream ends with a sentence, the
// bucket is ignored and counted, or the figure is cut. A field without a row fails.
func TestNoFieldOfAUsageReportIsBelievedBeyondItsBound(t *testing.T) {
	type report = pb.RateLimitQuotaUsageReports
	type usage = pb.RateLimitQuotaUsageReports_BucketQuotaUsage
	of := func(say func(*usage)) func(*report) { return func(m *report) { say(m.BucketQuotaUsages[0]) } }
	bucket := func(key, value string) func(*report) {
		return of(func(u *usage) { u.BucketId.Bucket = map[string]string{key: value} })
	}
	many := map[string]string{}
	for n := range maxEntries + 1 {
		many[fmt.Sprint(n)] = "x"
	}
	const usual, most = "3 admitted 2 refused  1 buckets", 1 << 40
	missing := map[protoreflect.FullName]bool{}
	for _, m := range []proto.Message{&report{}, &usage{}, &pb.BucketId{}} {
		fields := m.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			missing[fields.Get(i).FullName()] = true
		}
	}
	for _, c := range []struct {
		field string
		say   func(*report)
		want  string
	}{
		{"RateLimitQuotaUsageReports.domain", func(m *report) { m.Domain = strings.Repeat("d", maxDomain) }, usual},
		{"RateLimitQuotaUsageReports.domain", func(m *report) { m.Domain = strings.Repeat("d", maxDomain+1) },
			" 0 buckets: rpc error: code = InvalidArgument desc = the domain is longer than 256 bytes"},
		{"RateLimitQuotaUsageReports.bucket_quota_usages", func(m *report) { m.BucketQuotaUsages = nil }, " 0 buckets"},
		{"RateLimitQuotaUsageReports.bucket_quota_usages", func(m *report) {
			m.BucketQuotaUsages = append(m.BucketQuotaUsages, m.BucketQuotaUsages[0], &usage{BucketId: &pb.BucketId{
				Bucket: map[string]string{"tenant": "b"}}}, &usage{BucketId: &pb.BucketId{
				Bucket: map[string]string{"tenant": "c"}}})
		}, "3 admitted 2 refused 3 admitted 2 refused 0 admitted 0 refused 0 admitted 0 refused full  2 buckets"},
		{"RateLimitQuotaUsageReports.BucketQuotaUsage.bucket_id", of(func(u *usage) { u.BucketId = nil }),
			"invalid  0 buckets"},
		{"BucketId.bucket", of(func(u *usage) { u.BucketId.Bucket = many }), "invalid  0 buckets"},
		{"BucketId.bucket", bucket(strings.Repeat("k", maxKey+1), "v"), "invalid  0 buckets"},
		{"BucketId.bucket", bucket("k", strings.Repeat("v", maxValue+1)), "invalid  0 buckets"},
		{"BucketId.bucket", bucket(strings.Repeat("k", maxKey), strings.Repeat("v", maxValue)), usual},
		{"BucketId.bucket", bucket("k", "no UTF-8"), " 0 buckets: string field contains invalid UTF-8"},
		{"RateLimitQuotaUsageReports.BucketQuotaUsage.time_elapsed", of(func(u *usage) {
			u.TimeElapsed = durationpb.New(-time.Hour)
		}), usual},
		{"RateLimitQuotaUsageReports.BucketQuotaUsage.num_requests_allowed", of(func(u *usage) {
			u.NumRequestsAllowed = math.MaxUint64
		}), fmt.Sprintf("%d admitted 2 refused  1 buckets", most)},
		{"RateLimitQuotaUsageReports.BucketQuotaUsage.num_requests_denied", of(func(u *usage) {
			u.NumRequestsDenied = math.MaxUint64
		}), fmt.Sprintf("3 admitted %d refused  1 buckets", most)},
	} {
		delete(missing, protoreflect.FullName("envoy.service.rate_limit_quota.v3."+c.field))
		meter := &heard{}
		s := New(Config{Meter: meter, Now: time.Now})
		s.engine = NewEngine(nil, Room{All: 2, Each: 2}, nil)
		m := &report{Domain: "d", BucketQuotaUsages: []*usage{{BucketId: &pb.BucketId{
			Bucket: map[string]string{"tenant": "a"}}, NumRequestsAllowed: 3, NumRequestsDenied: 2,
			TimeElapsed: durationpb.New(time.Second)}}}
		c.say(m)
		sent, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		sent = []byte(strings.Replace(string(sent), "no UTF-8", "no\xffUTF-8", 1))
		err = s.receiveReports(&script{messages: [][]byte{sent}}, s.engine.Join(newOutbox()))
		got := fmt.Sprintf("%s %d buckets", meter.text, s.engine.Holders())
		if err != nil {
			got += ": " + err.Error()
		}
		if got != c.want && (err == nil || !strings.HasSuffix(got, strings.TrimPrefix(c.want, " 0 buckets: "))) {
			t.Errorf("%s: %q, want %q", c.field, got, c.want)
		}
	}
	for field := range missing {
		t.Errorf("%s says something that no row tries beyond its bound: add one, with the believed value", field)
	}
}

package limiter_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/decide/limiter"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/quota"
)

// answer is the head of a response. A header of several lines has them apart by line feeds.
type answer map[string]string

func (a answer) Header(name string) []byte {
	first, _, _ := strings.Cut(a[name], "\n")
	return []byte(first)
}

func (a answer) Once(name string) []byte {
	if strings.Contains(a[name], "\n") {
		return nil
	}
	return []byte(a[name])
}

func status(code int) answer { return answer{":status": fmt.Sprint(code)} }

// answered ends a request with a response.
func (n *node) answered(req *limiter.Request, a answer) {
	n.t.Helper()
	if !req.Lasting {
		n.t.Fatal("nothing is to be done at the response")
	}
	n.limiter.SettleHead(req, a, n.now)
	if req.Lasting {
		n.t.Error("the request lasts beyond the response that settles it")
	}
}

// Each policy of a request settles its own cost by its own commit, when that cost is known. A
// policy without a commit keeps its charge.
func TestEachPolicyHasItsOwnCommit(t *testing.T) {
	const begin, rest = `,"partition":[],"limit":{"quota":100,"window":"1h"},"mode":"local","algorithm":"sliding_window"`,
		`,"cost":{"reserve":10,"commit":`
	n := newNode(t, false, `{"name":"status"`+begin+rest+`{"status":{"200":1,"rest":0}}}},
		{"name":"header"`+begin+rest+`{"header":"x-used"}}},{"name":"duration"`+begin+rest+`{"duration":"100ms"}}},
		{"name":"metadata"`+begin+rest+`{"metadata":"ai/used"}}},{"name":"plain"`+begin+`}`)
	left := func() (all []int64) {
		probe, got := n.begin()
		if got != limiter.Allowed {
			t.Fatal(got)
		}
		for _, h := range probe.Hits {
			all = append(all, h.Remaining+h.Cost)
		}
		n.limiter.SettleHead(probe, answer{":status": "500", "x-used": "0"}, n.now) // The others keep their charge.
		n.limiter.End(probe, limiter.Life{Ended: n.now})
		return all
	}
	req, got := n.begin()
	if got != limiter.Allowed {
		t.Fatal(got)
	}
	n.limiter.SettleHead(req, answer{":status": "200", "x-used": "25"}, n.now)
	if got, want := left(), []int64{99, 75, 90, 90, 99}; !slices.Equal(got, want) || !req.Lasting {
		t.Errorf("at the head of the response %v are left, want %v", got, want)
	}
	sent := n.now
	n.now += 2 * sec
	n.limiter.End(req, limiter.Life{Sent: sent, Answered: sent + 1, Ended: n.now,
		Properties: properties{"metadata/filter_metadata/ai/used": number(4)}})
	if got, want := left(), []int64{99, 75, 70, 86, 98}; !slices.Equal(got, want) {
		t.Errorf("at the end %v are left, want %v", got, want)
	}
}

// properties are Envoy's attributes at the end of a stream.
type properties map[string]string

func (p properties) Property(path []byte) []byte {
	return []byte(p[strings.ReplaceAll(string(path), "\x00", "/")])
}

func number(n float64) string {
	return string(binary.LittleEndian.AppendUint64(nil, math.Float64bits(n)))
}

// flags are the bits of Envoy's that say why a request failed.
func flags(bits uint64) string {
	return string(binary.LittleEndian.AppendUint64(nil, bits))
}

// How a response came about: whole, or not because its client went.
const whole, brokenOff = "via_upstream", "downstream_remote_disconnect"

// ended are the attributes of a stream that has ended so, and further attributes.
func ended(details string, more ...string) properties {
	p := properties{"response/code_details": details}
	if details == brokenOff {
		p["response/flags"] = flags(0x4000)
	}
	for i := 0; i < len(more); i += 2 {
		p[more[i]] = more[i+1]
	}
	return p
}

// kept counts a reservation that stays charged, for this reason.
func kept(by limiter.Ending) (s limiter.Settled) {
	s.Kept, s.KeptBy[by] = 1, 1
	return s
}

// Why a request has no whole response is read from Envoy's flags. The client counts first: where it
// goes, Envoy resets the upstream itself. Flags that cannot be read are none.
func TestWhyAReservationStaysCharged(t *testing.T) {
	for _, c := range []struct {
		flags string
		want  limiter.Ending
	}{
		{flags(0x4000), limiter.ClientGone},
		{flags(0x10000000), limiter.ClientGone},
		{flags(0x4000 | 0x8), limiter.ClientGone},
		{flags(0x4), limiter.TimedOut},
		{flags(0x4 | 0x40), limiter.TimedOut},
		{flags(0x10000), limiter.TimedOut},
		{flags(0x400000), limiter.TimedOut},
		{flags(0x80000), limiter.TimedOut},
		{flags(0x10), limiter.UpstreamFailed},
		{flags(0x40), limiter.UpstreamFailed},
		{flags(0x20 | 0x8000), limiter.UpstreamFailed},
		{flags(0x800), limiter.EndedOtherwise},
		{flags(0), limiter.EndedOtherwise},
		{flags(1 << 63), limiter.EndedOtherwise},
		{"", limiter.EndedOtherwise},
		{"\x00\x40", limiter.EndedOtherwise},
		{flags(0x4000) + "\x00", limiter.EndedOtherwise},
	} {
		n := newNode(t, false, `{"name":"p","partition":[],"limit":{"quota":10,"window":"1h"},"mode":"local","algorithm":"sliding_window",
			"cost":{"reserve":1,"commit":{"metadata":"ai/used"},"missing":0}}`)
		req, _ := n.begin()
		n.limiter.End(req, limiter.Life{Sent: 1, Ended: n.now, Properties: properties{"response/flags": c.flags}})
		want := kept(c.want)
		want.Reserved = 1
		if got := n.limiter.Stats.Settled; got != want {
			t.Errorf("%x: %+v, want %+v", c.flags, got, want)
		}
	}
}

// The metadata of other filters is known at the end of a stream. The cost of a broken response is
// not known: its reservation stays charged.
func TestCostAtTheEnd(t *testing.T) {
	const (
		used       = "metadata/filter_metadata/ai/usage/total"
		byMetadata = `{"metadata":"ai/usage/total"},"missing":0`
	)
	for _, c := range []struct {
		commit string
		end    properties
		left   int64
		stats  limiter.Settled
	}{
		{byMetadata, ended(whole, used, number(7)), 3,
			limiter.Settled{Overspent: 3, Settled: 1}},
		{byMetadata, ended(brokenOff, used, number(1)), 9,
			limiter.Settled{Refunded: 3, Settled: 1}},
		{byMetadata, properties{used: number(0)}, 10, limiter.Settled{Refunded: 4, Settled: 1}},
		{byMetadata, properties{used: "2"}, 8, limiter.Settled{Refunded: 2, Settled: 1}},
		{byMetadata, ended(brokenOff, used, number(2.5)), 6, kept(limiter.ClientGone)},
		{byMetadata, ended(brokenOff), 6, kept(limiter.ClientGone)},
		{byMetadata, ended(whole), 10,
			limiter.Settled{Refunded: 4, Settled: 1, Missing: 1}},
	} {
		n := newNode(t, false, `{"name":"p","partition":[],"limit":{"quota":10,"window":"1h"},"mode":"local","algorithm":"sliding_window",
			"cost":{"reserve":{"header":"x-max","max":9},"commit":`+c.commit+`}}`)
		req, _ := n.begin("x-max", "4")
		n.limiter.SettleHead(req, status(200), n.now)
		if !req.Lasting {
			t.Fatal("the request does not last until its end")
		}
		n.limiter.End(req, limiter.Life{Sent: 1, Answered: n.now, Ended: n.now, Properties: c.end})
		c.stats.Reserved = 4
		if got := n.limiter.Stats.Settled; got != c.stats {
			t.Errorf("%v: %+v, want %+v", c.end, got, c.stats)
		}
		if probe, _ := n.begin("x-max", "1"); probe.Hits[0].Remaining != c.left-1 {
			t.Errorf("%v: %d are left, want %d", c.end, probe.Hits[0].Remaining+1, c.left)
		}
	}
}

// Trailers settle the costs in them. A response with trailers in place of a head, as gRPC allows,
// settles at its end if it came from the upstream: Envoy makes such responses too. A response
// without a cost costs the policy's missing, and a broken response costs its reservation.
func TestCostInTrailers(t *testing.T) {
	const (
		byStatus  = `{"grpc_status":{"16":2,"rest":0}},"missing":1`
		byTrailer = `{"trailer":"x-rows"},"missing":1`
	)
	for _, c := range []struct {
		commit         string
		head, trailers answer
		details        string
		left           int64
		stats          limiter.Settled
	}{
		{byStatus, answer{}, answer{"grpc-status": "16"}, whole, 8, limiter.Settled{Refunded: 2, Settled: 1}},
		{byStatus, answer{}, answer{"grpc-status": "0"}, whole, 10, limiter.Settled{Refunded: 4, Settled: 1}},
		{byStatus, answer{}, answer{"x-rows": "3"}, whole, 9, limiter.Settled{Refunded: 3, Settled: 1, Missing: 1}},
		{byStatus, answer{}, nil, whole, 9, limiter.Settled{Refunded: 3, Settled: 1, Missing: 1}},
		{byStatus, answer{}, nil, brokenOff, 6, kept(limiter.ClientGone)},
		{byStatus, answer{"grpc-status": "16"}, nil, whole, 8, limiter.Settled{Refunded: 2, Settled: 1}},
		{byStatus, answer{"grpc-status": "14"}, nil, brokenOff, 6, kept(limiter.ClientGone)},
		{byTrailer, answer{"x-rows": "9"}, answer{"x-rows": "3"}, whole, 7, limiter.Settled{Refunded: 1, Settled: 1}},
		{byTrailer, answer{}, answer{"x-rows": "6"}, whole, 4, limiter.Settled{Overspent: 2, Settled: 1}},
		{byTrailer, answer{}, answer{"x-rows": "many"}, whole, 9, limiter.Settled{Refunded: 3, Settled: 1, Missing: 1}},
		{byTrailer, answer{}, answer{"x-rows": "3\n3"}, whole, 9, limiter.Settled{Refunded: 3, Settled: 1, Missing: 1}},
		{byTrailer, answer{"x-rows": "3"}, nil, whole, 9, limiter.Settled{Refunded: 3, Settled: 1, Missing: 1}},
		{byTrailer, answer{"x-rows": "3", "grpc-status": "0"}, nil, whole, 7, limiter.Settled{Refunded: 1, Settled: 1}},
		{byTrailer, answer{}, nil, brokenOff, 6, kept(limiter.ClientGone)},
	} {
		n := newNode(t, false, `{"name":"p","partition":[],"limit":{"quota":10,"window":"1h"},"mode":"local","algorithm":"sliding_window",
			"cost":{"reserve":{"header":"x-max","max":9},"commit":`+c.commit+`}}`)
		req, _ := n.begin("x-max", "4")
		n.limiter.SettleHead(req, c.head, n.now)
		if c.trailers != nil {
			n.limiter.SettleTrailers(req, c.trailers, n.now)
		}
		n.limiter.End(req, limiter.Life{Sent: 1, Answered: n.now, Ended: n.now, Properties: ended(c.details)})
		c.stats.Reserved = 4
		if got := n.limiter.Stats.Settled; got != c.stats {
			t.Errorf("%s, %v, %v: %+v, want %+v", c.commit, c.head, c.trailers, got, c.stats)
		}
		if probe, _ := n.begin("x-max", "1"); probe.Hits[0].Remaining != c.left-1 {
			t.Errorf("%s, %v, %v: %d are left, want %d", c.commit, c.head, c.trailers,
				probe.Hits[0].Remaining+1, c.left)
		}
	}
}

// A request reserves the value of a header, a claim or metadata: at least 1 token, because a
// request that takes nothing would always pass and never be settled; at most max; and the policy's
// missing if the value is not a whole number.
func TestReservationOfARequest(t *testing.T) {
	const (
		claim    = "metadata/filter_metadata/envoy.filters.http.jwt_authn/payload/plan/max"
		metadata = "metadata/filter_metadata/ai/max"
	)
	for _, c := range []struct {
		value string
		raw   bool // as Envoy holds a number
		want  int64
	}{
		{value: "4", want: 4}, {value: "9", want: 9}, {value: "10", want: 9}, {value: "0", want: 3},
		{value: "-1", want: 3}, {value: "", want: 3}, {value: "4.0", want: 3}, {value: "NaN", want: 3},
		{value: "1e3", want: 3}, {value: "+4", want: 3}, {value: " 4", want: 3}, {value: "4,5", want: 3},
		{value: "99999999999999999999999", want: 9}, {value: "9999999999999999999999x", want: 3},
		{value: "00000004", want: 4}, {value: "00000000", want: 3}, {value: "eight ch", raw: true, want: 9},
		{value: number(4), raw: true, want: 4}, {value: number(0), raw: true, want: 3},
		{value: number(4.5), raw: true, want: 3}, {value: number(10), raw: true, want: 9},
		{value: number(1e300), raw: true, want: 9}, {value: number(-4), raw: true, want: 3},
		{value: number(math.Inf(1)), raw: true, want: 9}, {value: number(math.NaN()), raw: true, want: 3},
	} {
		for source, at := range map[string]string{
			`"header":"x-max"`: "", `"jwt":"plan.max"`: claim, `"metadata":"ai/max"`: metadata,
		} {
			n := newNode(t, false, `{"name":"p","partition":[],"limit":{"quota":20,"window":"1h"},"mode":"local",
				"cost":{"reserve":{`+source+`,"max":9,"missing":3},"commit":{"header":"x-used"}}}`)
			var headers []string
			want := c.want
			switch {
			case at != "":
				n.properties = properties{at: c.value}
			case c.raw:
				want = 3
				fallthrough
			default:
				headers = []string{"x-max", c.value}
			}
			req, _ := n.begin(headers...)
			if got := req.Hits[0].Cost; got != want || !req.Reserves() {
				t.Errorf("%s of %q: %d reserved, want %d", source, c.value, got, want)
			}
		}
	}
}

// The largest of several budgets that a request declares counts, in a list of sources and in a
// header that is given several times: two budgets never reserve less than each of them.
func TestTheLargestBudgetIsReserved(t *testing.T) {
	const metadata = "metadata/filter_metadata/ai/"
	for _, c := range []struct {
		source string
		given  map[string]string // by metadata
		sent   []string          // as headers
		want   int64
	}{
		{`"header":["x-max","x-max-new"]`, nil, []string{"x-max", "2", "x-max-new", "7"}, 7},
		{`"header":["x-max","x-max-new"]`, nil, []string{"x-max", "7", "x-max-new", "2"}, 7},
		{`"header":["x-max","x-max-new"]`, nil, []string{"x-max", "1", "x-max-new", "10000"}, 9},
		{`"header":["x-max","x-max-new"]`, nil, []string{"x-max", "2", "x-max-new", "many"}, 2},
		{`"header":["x-max","x-max-new"]`, nil, []string{"x-max", "0"}, 3},
		{`"header":["x-max","x-max-new"]`, nil, nil, 3},
		{`"header":"x-max"`, nil, []string{"x-max", "2", "x-max", "6", "x-max", "-9", "x-max", "5"}, 6},
		{`"header":"x-max"`, nil, []string{"x-max", "", "x-max", "x"}, 3},
		{`"metadata":["ai/max","ai/max_new","ai/rest","ai/last"]`,
			map[string]string{metadata + "max": number(1), metadata + "last": "8"}, nil, 8},
		{`"metadata":["ai/max","ai/max_new"]`, map[string]string{metadata + "max": number(5)}, nil, 5},
	} {
		n := newNode(t, false, `{"name":"p","partition":[],"limit":{"quota":20,"window":"1h"},"mode":"local",
			"cost":{"reserve":{`+c.source+`,"max":9,"missing":3},"commit":{"header":"x-used"}}}`)
		n.properties = properties(c.given)
		req, _ := n.begin(c.sent...)
		if got := req.Hits[0].Cost; got != c.want {
			t.Errorf("%s of %v %v: %d reserved, want %d", c.source, c.sent, c.given, got, c.want)
		}
	}
}

// A day of random costs: once all costs are known a window has exactly their sum.
func TestADayOfCosts(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 3))
	n := newNode(t, false, `{"name":"p","partition":[],"limit":{"quota":100000,"window":"1d"},"mode":"local","algorithm":"sliding_window",
		"cost":{"reserve":{"header":"x-max","max":50},"commit":{"header":"x-used"}}}`)
	var open []*limiter.Request
	used := int64(0)
	for range 2000 {
		n.now += quota.Instant(r.Int64N(int64(30 * quota.Second)))
		if len(open) > 0 && r.IntN(2) == 0 {
			i := r.IntN(len(open))
			cost := r.Int64N(70)
			used += cost
			n.answered(open[i], answer{"x-used": fmt.Sprint(cost)})
			open = append(open[:i], open[i+1:]...)
			continue
		}
		req, got := n.begin("x-max", fmt.Sprint(1+r.IntN(50)))
		if got != limiter.Allowed {
			t.Fatal(got)
		}
		open = append(open, req)
	}
	for _, req := range open {
		n.answered(req, answer{"x-used": "7"})
		used += 7
	}
	if probe, _ := n.begin("x-max", "1"); probe.Hits[0].Remaining != 100000-used-1 {
		t.Errorf("seed %d: %d are left, %d were used", seed, probe.Hits[0].Remaining, used)
	}
}

// Without a control plane a bucket of callers' own figures gives nothing back, because it is not
// known at which rate tokens came back by themselves. Additional costs are charged.
func TestOwnFiguresAloneGiveNothingBack(t *testing.T) {
	n := newNode(t, false, `{"name":"p","partition":[],"mode":"leased",
		"limit":{"quota":{"header":"x-quota","trusted":true,"max":100,"default":10},"window":"1h"},
		"cost":{"reserve":4,"commit":{"header":"x-used"}}}`)
	for i, used := range []string{"0", "6"} { // The second costs two more than it has reserved.
		req, got := n.begin()
		if got != limiter.Allowed || req.Hits[0].Remaining != 6-4*int64(i) {
			t.Fatalf("%d: %v, %d left", i, got, req.Hits[0].Remaining)
		}
		n.answered(req, answer{"x-used": used})
	}
	req, got := n.begin("x-quota", "11")
	if got != limiter.Refused || req.Hits[0].Remaining != 1 { // Ten are used, by either figure.
		t.Errorf("%v, %d left", got, req.Hits[0].Remaining)
	}
	if req, got = n.begin("x-quota", "20"); got != limiter.Allowed || req.Hits[0].Remaining != 6 {
		t.Errorf("%v, %d left of 20", got, req.Hits[0].Remaining)
	}
	want := limiter.Settled{Reserved: 12, Overspent: 2, Settled: 2}
	if n.limiter.Stats.Settled != want {
		t.Errorf("%+v, want %+v", n.limiter.Stats.Settled, want)
	}
}

// Another worker takes the last token of a second bucket while a request takes its reservation of a
// first bucket. The reservation comes back, so it was not charged in vain; the charge of a policy
// without reservations was.
func TestReleasedReservationsAreNotChargedInVain(t *testing.T) {
	for cost, want := range map[string]uint64{`"cost":{"reserve":1,"commit":{"header":"x-used"}},`: 0, ``: 1} {
		n := newNode(t, true, `{"name":"a","partition":[],"match":{"headers":[{"name":"x-a","present":true}]},`+cost+
			`"limit":{"quota":5,"window":"1h"},"mode":"local"},
			{"name":"b","partition":[],"limit":{"quota":1,"window":"1h"},"mode":"local"}`)
		other, sets := n.second(), 0
		n.data.Before = func(op string, _ []byte) {
			if op != "set" || sets > 0 {
				return
			}
			sets++
			a := match.Attributes{Method: []byte("GET"), Path: []byte("/"), Host: []byte("h")}
			if got := other.Begin(&limiter.Request{Stream: 99}, n.rules, &a, n.now); got != limiter.Allowed {
				t.Errorf("the other worker: %v", got)
			}
		}
		if _, got := n.begin("x-a", "1"); got != limiter.Refused || sets == 0 {
			t.Fatalf("%v, want a refusal by the second bucket", got)
		}
		if got := n.limiter.Stats.ChargedInVain; got != want {
			t.Errorf("%s %d charged in vain, want %d", cost, got, want)
		}
	}
}

// Where other workers change a bucket at every attempt, a reservation stays as it was made. Neither
// the figures nor the access log say that it was settled.
func TestUnsettledReservationsStayCharged(t *testing.T) {
	n := newNode(t, false, `{"name":"c","partition":[],"limit":{"quota":10,"window":"1h"},"mode":"local",
		"cost":{"reserve":4,"commit":{"status":{"200":1,"rest":0}}}}`)
	req, _ := n.begin()
	n.contend()
	n.answered(req, status(200))
	want := kept(limiter.EndedOtherwise)
	want.Reserved = 4
	if got := n.limiter.Stats.Settled; got != want || req.Costs[0].Actual != -1 {
		t.Errorf("%+v, want %+v; actual cost %d", got, want, req.Costs[0].Actual)
	}
}

// A client that goes while its request is held back has cost nothing: its reservations come back,
// in this node's own bucket and at the control plane.
func TestReservationsOfACancelledRequestComeBack(t *testing.T) {
	for _, mode := range []string{"local", "strict"} {
		n := newNode(t, true, leaky("local")+`,{"name":"c","partition":[],"limit":{"quota":10,"window":"1h"},
			"mode":"`+mode+`","cost":{"reserve":4,"commit":{"header":"x-used"}}}`)
		n.arrive(0)
		held := n.arrive(100 * quota.Millisecond)
		n.limiter.Cancel(held, n.now)
		want := limiter.Settled{Reserved: 8, Refunded: 4, Settled: 1}
		if mode == "strict" {
			want = limiter.Settled{Reserved: 8} // The control plane has not answered.
		}
		if got := n.limiter.Stats.Settled; got != want {
			t.Errorf("%s: %+v, want %+v", mode, got, want)
		}
		if mode == "local" {
			n.now += 100 * ms
			if left := n.arrive(0).Hits[1].Remaining; left != 2 {
				t.Errorf("%d are left behind the next request", left)
			}
			continue
		}
		n.tick(20)
		if it := n.asked[0]; it.Reserved == 0 || it.Nth == 0 || it.Actual != 0 {
			t.Errorf("the control plane is asked %+v, not to settle a cost of 0", n.asked)
		}
	}
}

// Refunds are counted like in the bucket: fractions of a token add up, and tokens that came back by
// themselves are not counted.
func TestRefundsAreCountedAsTheBucketGaveThem(t *testing.T) {
	n := newNode(t, false, `{"name":"c","partition":[],"limit":{"quota":10,"window":"10s"},"mode":"local",
		"cost":{"reserve":1,"commit":{"header":"x-used"}}}`)
	for range 10 {
		req, got := n.begin()
		if got != limiter.Allowed {
			t.Fatal(got)
		}
		n.now += 400 * ms
		n.answered(req, answer{"x-used": "0"})
	}
	if got, want := n.limiter.Stats.Settled, (limiter.Settled{Reserved: 10, Refunded: 6, Settled: 10}); got != want {
		t.Errorf("%+v, want %+v: six tenths of each token", got, want)
	}
	if req, _ := n.begin(); req.Hits[0].Remaining != 9 {
		t.Errorf("%d left behind a request, want 9: nothing was used before", req.Hits[0].Remaining)
	}
}

// A request whose response is not whole costs the policy's figure for it. The time counts only if
// it is the highest possible cost: an upstream that fails is no client's doing.
func TestUnfinishedResponsesCost(t *testing.T) {
	const header, fixed = `{"header":"x-max","max":60,"missing":10`, `4`
	left, out, failed := flags(0x4000), flags(0x4), flags(0x40)
	for _, c := range []struct {
		reserve, commit, unfinished, flags string
		answered                           bool
		want                               int64
	}{
		{header + "}", `{"metadata":"ai/used"}`, ``, left, true, 10},
		{header + "}", `{"metadata":"ai/used"}`, ``, left, false, 10},
		{header + "}", `{"metadata":"ai/used"}`, ``, out, true, 10},
		{header + "}", `{"metadata":"ai/used"}`, ``, failed, true, 2},
		{header + "}", `{"metadata":"ai/used"}`, `,"unfinished":"max"`, left, false, 60},
		{header + "}", `{"metadata":"ai/used"}`, `,"unfinished":"max"`, out, true, 60},
		{header + "}", `{"metadata":"ai/used"}`, `,"unfinished":"max"`, failed, true, 2},
		{header + "}", `{"metadata":"ai/used"}`, ``, "", false, 2},
		{header + "}", `{"metadata":"ai/used"}`, `,"unfinished":"reserved"`, left, true, 2},
		{header + "}", `{"metadata":"ai/used"}`, `,"unfinished":33`, left, true, 33},
		{header + "}", `{"metadata":"ai/used"}`, `,"unfinished":33`, failed, true, 33},
		{header + "}", `{"metadata":"ai/used"}`, `,"unfinished":0`, left, true, 0},
		{header + `,"min":7}`, `{"metadata":"ai/used"}`, ``, left, true, 7},
		{header + `,"min":7}`, `{"metadata":"ai/used"}`, `,"unfinished":"max"`, left, true, 60},
		{fixed, `{"metadata":"ai/used"}`, ``, left, true, 4},
		{fixed, `{"header":"x-used"}`, ``, left, false, 4},
		{fixed, `{"duration":"100ms"}`, ``, left, false, 20},
		{fixed, `{"duration":"100ms"}`, ``, left, true, 20},
		{fixed, `{"duration":"100ms"}`, ``, failed, false, 20},
		{fixed, `{"duration":"100ms"}`, `,"unfinished":"reserved"`, left, false, 4},
		{fixed, `{"duration":"100ms"}`, `,"unfinished":"reserved"`, left, true, 4},
		{fixed, `{"duration":"100ms"}`, `,"unfinished":9`, left, true, 9},
		{header + "}", `{"duration":"100ms"}`, ``, left, false, 20},
	} {
		n := newNode(t, false, `{"name":"p","partition":[],"limit":{"quota":100,"window":"1h"},"mode":"local",
			"algorithm":"sliding_window","cost":{"reserve":`+c.reserve+`,"commit":`+c.commit+c.unfinished+`}}`)
		req, got := n.begin("x-max", "2")
		if got != limiter.Allowed {
			t.Fatal(got)
		}
		life := limiter.Life{Sent: n.now, Properties: properties{"response/flags": c.flags}}
		if c.answered {
			if life.Answered = n.now + 1; !strings.Contains(c.commit, "header") {
				n.limiter.SettleHead(req, status(200), n.now)
			}
		}
		n.now += 2 * sec
		life.Ended = n.now
		n.limiter.End(req, life)
		probe, _ := n.begin("x-max", "1")
		if used := 100 - probe.Hits[0].Remaining - probe.Hits[0].Cost; used != c.want {
			t.Errorf("%+v: %d used, want %d", c, used, c.want)
		}
		timed := c.answered && strings.Contains(c.commit, "duration") && c.want == 20
		if n.limiter.Stats.Settled.Kept != 1 && !timed {
			t.Errorf("%+v: %+v, want a response that is not whole", c, n.limiter.Stats.Settled)
		}
	}
}

// A cost beyond the reservation is paid in a bucket of tokens. In windows it counts until its
// request leaves them, and then all of the quota is there.
func TestWhoPaysADebt(t *testing.T) {
	for _, algorithm := range []string{"token_bucket", "fixed_window", "sliding_window", "sliding_log"} {
		n := newNode(t, false, `{"name":"p","partition":[],"limit":{"quota":10,"window":"10s"},"mode":"local",
			"algorithm":"`+algorithm+`","cost":{"reserve":1,"commit":{"header":"x-used"}}}`)
		req, _ := n.begin()
		n.answered(req, answer{"x-used": "35"})
		refused, got := n.begin()
		if got != limiter.Refused {
			t.Fatalf("%s: %v with 35 used of 10", algorithm, got)
		}
		wait, left := refused.Hits[0].Retry, int64(9)
		if algorithm == "token_bucket" { // 25 are owed, and 1 for the request.
			left = 0
			if wait != 26*quota.Second {
				t.Errorf("%s: waits %d", algorithm, wait)
			}
		} else if wait > 11*quota.Second {
			t.Errorf("%s: waits %d, want a window at most, and a part of a window", algorithm, wait)
		}
		n.now += quota.Instant(wait)
		if next, got := n.begin(); got != limiter.Allowed || next.Hits[0].Remaining != left {
			t.Errorf("%s: %v after the wait, %d left, want %d", algorithm, got, next.Hits[0].Remaining, left)
		}
	}
}

// dayBug is a mistake that a day against an exact ledger must find.
type dayBug int

const (
	none dayBug = iota
	// forgetsDebt settles a cost beyond the reservation as if it were the reservation.
	forgetsDebt
	// givesBack refunds broken responses.
	givesBack
	// settlesOther settles the reservation of another request.
	settlesOther
	// forgetsAnswer settles nothing for one response in ten.
	forgetsAnswer
)

// exactDay plays a day of requests of random costs against a ledger that knows them all, and
// returns their difference. Each request is admitted exactly if its reservation fits beside the
// costs of the last ten minutes, or the reservations whose costs are not known, and in the end
// exactly its cost was charged. A broken response costs its reservation, and is counted.
func exactDay(t *testing.T, seed uint64, bug dayBug) (found string) {
	const quotaOf, window = 200, 10 * quota.Minute
	r := rand.New(rand.NewPCG(seed, 1))
	n := newNode(t, false, fmt.Sprintf(`{"name":"p","partition":[],"limit":{"quota":%d,"window":"10m"},"mode":"local",
		"algorithm":"sliding_log","cost":{"reserve":{"header":"x-max","max":30},"commit":{"header":"x-used"}}}`, quotaOf))
	type entry struct {
		at, end quota.Instant
		cost    int64
		req     *limiter.Request
	}
	var recent []*entry
	answered := func(e *entry, actual int64) {
		switch {
		case bug == forgetsDebt:
			actual = min(actual, e.cost)
		case bug == forgetsAnswer && r.IntN(10) == 0:
			n.limiter.End(e.req, limiter.Life{Ended: n.now})
			return
		case bug == settlesOther:
			for _, other := range recent {
				if other.req != nil && other != e {
					e.req, other.req = other.req, e.req
					break
				}
			}
		}
		n.answered(e.req, answer{"x-used": strconv.FormatInt(actual, 10)})
	}
	admitted, charged, kept := 0, int64(0), uint64(0)
	for end := n.now + quota.Instant(quota.Day); n.now < end; {
		n.now += quota.Instant(1 + r.Int64N(int64(10*quota.Second)))
		now, used := n.now, int64(0)
		counting := recent[:0:0]
		for _, e := range recent {
			if e.req != nil && e.end <= now { // It ends just before the next one comes.
				actual := r.Int64N(40)
				switch broke := r.IntN(10) == 0; {
				case !broke:
					answered(e, actual)
					e.cost = actual
				case bug == givesBack:
					n.answered(e.req, answer{"x-used": "0"})
					kept++
				default:
					n.limiter.End(e.req, limiter.Life{Ended: now})
					kept++
				}
				charged += e.cost
				e.req = nil
			}
			if now < e.at+quota.Instant(window) {
				used += e.cost
			}
			if e.req != nil || now < e.at+quota.Instant(window) {
				counting = append(counting, e)
			}
		}
		recent = counting
		want := 1 + r.Int64N(30)
		req, status := n.begin("x-max", strconv.FormatInt(want, 10))
		if fits := used+want <= quotaOf; fits != (status == limiter.Allowed) {
			return fmt.Sprintf("%v at %d with %d of %d used, and %d wanted", status, now, used, quotaOf, want)
		}
		if status == limiter.Allowed {
			admitted++
			lasts := quota.Instant(r.Int64N(int64(window))) - quota.Instant(10*quota.Second)
			recent = append(recent, &entry{at: now, end: now + lasts, cost: want, req: req})
		}
	}
	for _, e := range recent {
		if e.req != nil {
			charged += e.cost
		}
	}
	s := n.limiter.Stats.Settled
	if got := int64(s.Reserved) - int64(s.Refunded) + int64(s.Overspent); got != charged || s.Kept != kept {
		return fmt.Sprintf("%d tokens charged and %d kept, want %d and %d", got, s.Kept, charged, kept)
	}
	if admitted < 1000 || kept < 50 {
		return fmt.Sprintf("only %d requests were admitted, and %d broke off", admitted, kept)
	}
	return ""
}

func TestADayAgainstAnExactLedger(t *testing.T) {
	seed := rand.Uint64()
	if found := exactDay(t, seed, none); found != "" {
		t.Errorf("seed %d: %s", seed, found)
	}
}

// The day finds bugs that charge too little, too much or the wrong bucket.
func TestADayFindsBugs(t *testing.T) {
	for bug := forgetsDebt; bug <= forgetsAnswer; bug++ {
		seed := rand.Uint64()
		found := exactDay(t, seed, bug)
		if found == "" {
			t.Errorf("seed %d: a day has not found bug %d", seed, bug)
		}
		t.Logf("bug %d: %s", bug, found)
	}
}

// A settlement in a calendar window leaves the bucket idle at the window's end, like a bucket
// without settlements: it takes no room from other keys, and no new key starts with its debt.
func TestSettlementsInACalendarWindowEndWithIt(t *testing.T) {
	n := newNode(t, false, `{"name":"p","partition":["header:x-k"],"algorithm":"fixed_window","align":"utc",
		"limit":{"quota":4,"window":"1m"},"mode":"local","cost":{"reserve":1,"commit":{"header":"x-used"}}}`)
	store := bucketstore.New(n.data, [4]byte{}, 8, 0) // One slot.
	n.limiter = limiter.New(limiter.Config{Store: store, Flights: n.book})
	n.limiter.Ahead = quota.Span(1_700_000_040*sec) - quota.Span(n.now)
	for i := range 40 {
		n.now += 120 * sec
		for _, used := range []string{"0", "4"} {
			req, got := n.begin("x-k", strconv.Itoa(i))
			if got != limiter.Allowed {
				t.Fatalf("key %d, which is new: %v", i, got)
			}
			n.answered(req, answer{"x-used": used})
		}
		if _, got := n.begin("x-k", strconv.Itoa(i)); got != limiter.Refused {
			t.Errorf("key %d has used its quota: %v", i, got)
		}
	}
	if store.Evictions != 0 {
		t.Errorf("%d live buckets were evicted", store.Evictions)
	}
}

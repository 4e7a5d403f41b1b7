package simulation

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-proxy/weir/filter/filtertest"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
)

// The second law: a failure refuses no caller that is surely within its limit. A request is surely
// due if all that was ever sent for its bucket, to all nodes and allowed or not, fits in a part of
// one node's even share of the limit: B/N at once and r/N a second, each divided by room. The share
// of any node has space for it then, with any tokens at other nodes and in messages. The requests
// of a hoarder count as sent. The computation shares no code with the product, and names buckets by
// the values in requests.
//
// It makes these exceptions, which the documentation states:
//   - a caller whose own figures change, since tokens used under the larger figures count;
//   - a policy's own "deny" in a failure;
//   - a lost bucket counts as half used, so a burst that is lowered afterwards may be used up. So
//     may the burst of a caller with its own figures, if its Envoy does not know yet that they may
//     be twice as large.

// account has the tokens that were sent for one key of one policy and have not been earned since.
type account struct {
	debt float64
	last quota.Instant
}

// accountKey names an account: a bucket by the values in requests, not by the product's hash.
type accountKey struct {
	policy int
	key    string
}

// figures are the part of a limit that a caller is surely due. burst and rate are the least of all
// versions so far, latest is the burst of the last version.
type figures struct{ burst, rate, latest float64 }

// offer is one request, with whether it was surely due when it was sent.
type offer struct {
	accounts []accountKey
	due      bool
}

// dues is the second law of a run, with the run's state.
type dues struct {
	figures  []figures // by policy
	accounts map[accountKey]*account
	offers   map[uint32]offer
	names    map[keyhash.Key]accountKey
	struck   [faultKinds]quota.Instant
	// asked is how many requests were surely due, by fault, with one more place for all; modes the
	// same by mode. denied is how many of them were refused, by mode, and why the first of them
	// was.
	asked         [faultKinds + 1]int
	modes, denied map[string]int
	why           string
}

// recent is for how long after a fault a request counts as one in that fault.
const recent = 2 * quota.Second

// room is the factor by which there are more tokens than needed: a lost message takes its tokens
// along, which count as used.
const room = 4

// slowest is how slowly clocks go at worst: the control plane's machines and a node each by a
// thousandth.
const slowest = 0.998

// happen counts a fault.
func (w *world) happen(fault int) {
	w.happened[fault]++
	w.dues.struck[fault] = w.now + 1
}

// agree takes in the limits of a version that is pushed.
func (w *world) agree() {
	nodes := float64(w.sharing())
	for i, s := range w.policies {
		burst := s.burst
		if burst == 0 {
			burst = s.quota
		}
		f := figures{burst: float64(burst) / nodes / room, rate: s.rate() / 1e6 / nodes * slowest / room}
		if s.algorithm != "token_bucket" { // Twice this fits in any window.
			f = figures{burst: f.burst / 2, rate: f.rate / 2}
		}
		if i < len(w.dues.figures) {
			was := w.dues.figures[i]
			least := figures{min(was.burst, f.burst), min(was.rate, f.rate), f.burst}
			if w.happened[storeLost]+w.happened[failedOver] > 0 && f.burst < was.latest {
				// Half of a lost bucket counts as used, which can be all of a lower burst.
				least = figures{latest: f.burst}
			}
			w.dues.figures[i] = least
			continue
		}
		f.latest = f.burst
		w.dues.figures = append(w.dues.figures, f)
	}
}

// losing takes in that the store loses its state: half of the newest burst may be all that a caller
// with figures of its own has by an older version.
func (w *world) losing() {
	for i, s := range w.policies {
		if f := w.dues.figures[i]; s.own && 2*f.burst <= f.latest {
			w.dues.figures[i] = figures{latest: f.latest}
		}
	}
}

// charge notes tokens wanted of an account, and reports whether they were surely due.
func (w *world) charge(k accountKey, cost int64) bool {
	f, now := w.dues.figures[k.policy], w.store.Time()
	a := w.dues.accounts[k]
	if a == nil {
		a = &account{last: now}
		w.dues.accounts[k] = a
	}
	a.debt = max(0, a.debt-float64(now-a.last)*f.rate) + float64(cost)
	a.last = now
	return a.debt <= f.burst
}

// offered notes a request that is sent.
func (w *world) offered(stream uint32, path, key string, cost int64) {
	o := offer{due: true}
	for i := range w.policies {
		if path == "/all" || path == "/p"+strconv.Itoa(i) {
			k := accountKey{i, key}
			o.accounts = append(o.accounts, k)
			o.due = w.charge(k, cost) && o.due && (!w.policies[i].own || strings.HasPrefix(key, modest))
		}
	}
	w.dues.offers[stream] = o
}

// judge holds a decision against the law.
func (w *world) judge(n *node, d filtertest.Decision) {
	o := w.dues.offers[d.Stream]
	delete(w.dues.offers, d.Stream)
	for _, k := range o.accounts { // Requests during its wait may be decided before it.
		o.due = w.charge(k, 0) && o.due
	}
	for _, h := range d.Hits {
		for _, k := range o.accounts {
			if k.policy == int(h.Policy) {
				w.dues.names[h.Bucket] = k
			}
		}
	}
	if !o.due {
		return
	}
	mode := w.policies[o.accounts[0].policy].mode
	w.dues.modes[mode]++
	w.dues.asked[faultKinds]++
	faults := ""
	for fault, at := range w.dues.struck {
		if at > 0 && w.now-at < quota.Instant(recent) {
			w.dues.asked[fault]++
			faults += ", " + faultNames[fault]
		}
	}
	if d.Allowed || w.priced(o, d) {
		return
	}
	if w.dues.denied[mode]++; w.dues.why == "" {
		w.dues.why = fmt.Sprintf("at %.6f s node %d refused %v (%s), within 2 s of%s",
			float64(w.now)/1e6, n.number, o.accounts, d.Reason, strings.TrimPrefix(faults, ","))
	}
}

// settle fails a run that refused a request which was surely due.
func (w *world) settle() {
	if w.dues.why != "" {
		w.fail("refused requests that were surely due: %v of %v; %s", w.dues.denied, w.dues.modes, w.dues.why)
	}
}

// priced reports whether a policy of a request says that a failure refuses it.
func (w *world) priced(o offer, d filtertest.Decision) bool {
	return d.Reason == "failure" && slices.ContainsFunc(o.accounts, func(k accountKey) bool {
		return strings.Contains(w.policies[k.policy].failure, "deny")
	})
}

package series

import (
	"context"
	"encoding/binary"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/DataDog/sketches-go/ddsketch"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// Callers slots have what callers used. They are of the length of Coarse ones.
const Callers Kind = "callers"

const (
	// callersKept is how many are kept: an hour, and the one before it is whole.
	callersKept = 13
	// settled is how long after its end a span is read: by then all replicas have put theirs.
	settled = 3 * Every
	// Accuracy is how far a quantile may be off, as a part of it.
	Accuracy = 0.01
	// maxBins bounds a sketch. What is too small for it counts as the smallest that has a bin.
	maxBins = 2048
	// below and headRoom make the suggestion: so many callers stay under it, with so much to spare.
	below, headRoom = 0.999, 0.2
)

// callers is what a Service knows of callers.
type callers struct {
	// own are the spans that this replica has counted and the store lacks.
	own map[int64]*samples
	// read is the last span that was read; hour is what was read.
	read int64
	hour map[string]*rates
}

// rates are those of the callers of a policy: tokens in a span, one value for each caller and span.
type rates struct {
	sketch  *ddsketch.DDSketch
	sampled int64
	first   int64
	spans   map[int64]bool
}

// Used counts what a caller of a policy used of its first limit: tokens that the control plane
// granted to its bucket; below 0, tokens that it had not used.
func (s *Service) Used(p *policy.Policy, window int64, bucket keyhash.Key, tokens int64) {
	if !isFirst(p, window) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.use(p.Name, bucket, tokens)
}

// isFirst reports whether a limit with such a window is the one of which callers are counted.
func isFirst(p *policy.Policy, window int64) bool {
	return len(p.Limits) > 0 && int64(p.Limits[0].Window) == window
}

// refusedCallers counts what callers asked for and were refused. The lock is held.
func (s *Service) refusedCallers(c *policies.Compiled, m *wire.Decisions) {
	for i := range m.Refusals {
		r := &m.Refusals[i]
		p, limit, _, ok := c.RefusedBy(r)
		if ok && isFirst(p, int64(limit.Window)) {
			cost := max(r.Cost, 1)
			more := min(r.Count-r.Over, maxUsed/cost) * cost
			s.use(p.Name, r.Bucket, more)
			s.use(p.Name+beyond+strconv.FormatInt(evenly(limit.Quota, limit.Window), 10), r.Bucket, more)
		}
	}
}

// beyond stands between a policy and the use that a limit of it allows in a span, in the name of a
// sample of what that limit refused. No policy has it in its name.
const beyond = "\x00"

// evenly is how many tokens a limit allows in a span.
func evenly(tokens int64, window quota.Span) int64 {
	span := quota.Span(coarseStep / time.Microsecond)
	return int64(math.Ceil(float64(tokens) * float64(span) / float64(max(window, 1))))
}

// atLeast is what callers used at least in a span that were refused in it: more than the limit,
// though they may have been quiet for most of the span. An average alone would say that the limit
// which refuses them catches none.
func (s *samples) atLeast(policy string) map[uint64]int64 {
	least := map[uint64]int64{}
	for name, one := range s.of {
		of, allowed, is := strings.Cut(name, beyond)
		if !is || of != policy {
			continue
		}
		limit, err := strconv.ParseInt(allowed, 10, 53)
		if err != nil {
			continue
		}
		for hash, refused := range one.used {
			least[hash] = max(least[hash], limit+refused)
		}
	}
	return least
}

func (s *Service) use(policy string, bucket keyhash.Key, tokens int64) {
	span := Callers.At(s.Now()).Number
	all := s.callers.own[span]
	if all == nil {
		all = newSamples()
		s.callers.own[span] = all
		delete(s.callers.own, span-maxOwn[Callers])
	}
	all.add(policy, binary.LittleEndian.Uint64(bucket[:]), tokens)
}

// putCallers stores the spans that are over.
func (s *Service) putCallers(ctx context.Context, now time.Time) error {
	present := Callers.At(now).Number
	s.mu.Lock()
	texts := map[int64][]byte{}
	for span, all := range s.callers.own {
		if span < present {
			texts[span] = all.encode()
		}
	}
	s.mu.Unlock()
	for span, text := range texts {
		if err := s.Store.PutSlot(ctx, Slot{Callers, span}, s.Replica, text); err != nil {
			return err
		}
		s.mu.Lock()
		delete(s.callers.own, span)
		s.mu.Unlock()
	}
	return nil
}

// takeCallers reads the spans of the last hour when one more is over, and at first.
func (s *Service) takeCallers(ctx context.Context, now time.Time) error {
	newest := Callers.At(now.Add(-settled)).Number - 1
	if s.callers.read == newest {
		return nil
	}
	hour := map[string]*rates{}
	for span := newest - 11; span <= newest; span++ {
		texts, err := s.Store.Slots(ctx, []Slot{{Callers, span}})
		if err != nil {
			return err
		}
		all := newSamples()
		for _, text := range texts[0] {
			if one, err := decodeSamples(text); err == nil {
				all.merge(one)
			}
		}
		for name, one := range all.of {
			if strings.Contains(name, beyond) {
				continue
			}
			for hash, least := range all.atLeast(name) {
				if used, known := one.used[hash]; known {
					one.used[hash] = max(used, least)
				}
			}
			if hour[name] == nil {
				hour[name] = newRates(span)
			}
			hour[name].add(span, one)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.callers.hour, s.callers.read = hour, newest
	return nil
}

func newRates(first int64) *rates {
	sketch, err := ddsketch.LogCollapsingLowestDenseDDSketch(Accuracy, maxBins)
	if err != nil { // The figures are constant.
		return &rates{}
	}
	return &rates{sketch: sketch, first: first, spans: map[int64]bool{}}
}

func (r *rates) add(span int64, one *sample) {
	for _, n := range one.used {
		if r.sketch.AddWithCount(float64(n), math.Ldexp(1, int(one.thin))) == nil {
			r.sampled++
			r.spans[span] = true
		}
	}
}

// Quantile is a rate under which a part Q of the callers stays.
type Quantile struct {
	Q    float64 `json:"q"`
	Rate float64 `json:"rate"`
}

// Caught is what a limit would have done.
type Caught struct {
	Limit int64 `json:"limit"`
	// Above is how many callers exceed it in a span of five minutes, on average; Share is the part
	// of all that they are.
	Above int64   `json:"callers_above"`
	Share float64 `json:"share_above"`
	// Refused is the part of all tokens that it would have refused.
	Refused float64 `json:"refused_share"`
}

// Distribution is how much the callers of a policy use.
type Distribution struct {
	Since, Until time.Time
	Complete     bool
	// Callers is how many there are in a span, on average; Sampled is how many values the
	// quantiles stand on.
	Callers, Sampled int64
	Quantiles        []Quantile
	Limits           []Caught
	// Suggestion is nil without callers.
	Suggestion *Caught
	// Uncovered: the window is longer than the history, so that nothing can be said.
	Uncovered bool
}

// covered is the longest window that the history says anything of.
const covered = time.Hour

// Distribution returns how many tokens a window the callers of a policy used in spans of the last
// hour, and what each of some limits would have done. InForce is the limit that there is: nothing
// that is said contradicts what it has refused within the hour.
func (s *Service) Distribution(policy string, window time.Duration, inForce int64, limits []int64) Distribution {
	s.mu.Lock()
	defer s.mu.Unlock()
	start := func(span int64) time.Time { return time.Unix(span*int64(coarseStep/time.Second), 0).UTC() }
	d := Distribution{Complete: s.complete, Quantiles: []Quantile{}, Limits: []Caught{},
		Until: start(s.callers.read + 1)}
	d.Since = d.Until
	if d.Uncovered = window > covered; d.Uncovered {
		return d
	}
	seen := s.sight(policy)
	r := s.callers.hour[policy]
	if r == nil || r.sampled == 0 {
		for _, limit := range limits {
			d.Limits = append(d.Limits, Caught{Limit: limit})
		}
		return d
	}
	d.Since, d.Sampled = start(r.first), r.sampled
	d.Callers = r.mean(r.sketch.GetCount())
	perSpan := float64(coarseStep) / float64(window)
	for _, q := range []float64{0.5, 0.9, 0.99, below, 1} {
		used, err := r.sketch.GetValueAtQuantile(q)
		if err == nil {
			d.Quantiles = append(d.Quantiles, Quantile{q, used / perSpan})
		}
	}
	for _, limit := range limits {
		d.Limits = append(d.Limits, seen.join(r.caught(limit, perSpan), inForce, r))
	}
	if used, err := r.sketch.GetValueAtQuantile(below); err == nil {
		limit := max(used/perSpan, seen.least(inForce)) * (1 + headRoom)
		suggestion := seen.join(r.caught(round(limit), perSpan), inForce, r)
		d.Suggestion = &suggestion
	}
	return d
}

// sight is what nodes have seen of a policy within an hour, whatever its callers used on average:
// how many requests were refused, and how full the fullest bucket was, in percent.
type sight struct{ refused, fullest int64 }

// sight reads it. The lock is held.
func (s *Service) sight(policy string) sight {
	count := int64(time.Hour / fineStep)
	first := Fine.At(s.Now()).Number - count + 1
	of := row{ByPolicy, policy}
	refused, _ := s.rings[Fine].span(of, Refused.index(), first, count)
	fullest, _ := s.rings[Fine].span(of, Utilisation.index(), first, count)
	return sight{refused, fullest}
}

// least is the limit that some caller needs at least.
func (s sight) least(inForce int64) float64 {
	if s.refused > 0 {
		return float64(inForce)
	}
	return float64(inForce) * float64(min(s.fullest, 100)) / 100
}

// join has what is known of averages agree with what was refused: a limit that is no higher than
// the one that refuses catches some caller of the rates.
func (s sight) join(c Caught, inForce int64, of *rates) Caught {
	if s.refused == 0 || c.Limit > inForce || c.Refused > 0 {
		return c
	}
	c.Above = max(c.Above, 1)
	c.Share = max(c.Share, 1/max(of.sketch.GetCount(), 1))
	c.Refused = float64(s.refused) / max(of.sketch.GetSum(), float64(s.refused))
	return c
}

func (r *rates) mean(callers float64) int64 {
	return int64(math.Round(callers / float64(len(r.spans))))
}

// caught is what a limit would have done, if use within a span were even.
func (r *rates) caught(limit int64, perSpan float64) Caught {
	c, most := Caught{Limit: limit}, float64(limit)*perSpan
	var callers, above, used, over float64
	r.sketch.ForEach(func(value, count float64) (stop bool) {
		callers += count
		used += value * count
		if value > most {
			above += count
			over += (value - most) * count
		}
		return false
	})
	c.Above, c.Share, c.Refused = r.mean(above), above/callers, over/used
	return c
}

// round returns the next figure with two digits that is not below n, and at least 1.
func round(n float64) int64 {
	unit := 1.0
	for n/unit > 100 {
		unit *= 10
	}
	return max(int64(math.Ceil(n/unit-1e-9)*unit), 1)
}

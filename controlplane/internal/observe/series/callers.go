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

// Callers slots have the use of callers. They are as long as Coarse slots.
const Callers Kind = "callers"

const (
	// callersKept is the number of Callers slots kept: an hour, and one more, so that the hour is
	// complete.
	callersKept = 13
	// settled is the time after the end of a span at which it is read: by then all replicas have
	// stored it.
	settled = 3 * Every
	// Accuracy is the relative error of a quantile.
	Accuracy = 0.01
	// maxBins bounds a sketch. Values too small for its bins count in the lowest bin.
	maxBins = 2048
	// below and headRoom define the suggestion: this share of the callers stays under it, with this
	// much to spare.
	below, headRoom = 0.999, 0.2
)

// callers is a Service's state about callers.
type callers struct {
	// own are the spans that this replica has counted and not stored yet.
	own map[int64]*samples
	// read is the last span that was read; hour has the rates of the last hour.
	read int64
	hour map[string]*rates
}

// rates are the use of a policy's callers: tokens in a span, one value for each caller and span.
type rates struct {
	sketch  *ddsketch.DDSketch
	sampled int64
	first   int64
	spans   map[int64]bool
}

// Used counts a caller's use of the first limit of a policy: tokens that the control plane granted
// to its bucket. Tokens below 0 were granted before and came back unused.
func (s *Service) Used(p *policy.Policy, window int64, bucket keyhash.Key, tokens int64) {
	if !isFirst(p, window) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.useTokens(p.Name, bucket, tokens)
}

// isFirst reports whether a limit with this window is a policy's first limit, whose callers are
// counted.
func isFirst(p *policy.Policy, window int64) bool {
	return len(p.Limits) > 0 && int64(p.Limits[0].Window) == window
}

// refusedCallers counts the tokens that callers asked for in vain. The lock is held.
func (s *Service) refusedCallers(c *policies.Compiled, m *wire.Decisions) {
	for i := range m.Refusals {
		r := &m.Refusals[i]
		p, limit, _, ok := c.RefusedBy(r)
		if ok && isFirst(p, int64(limit.Window)) {
			cost := max(r.Cost, 1)
			more := min(r.Count-r.Over, maxUsed/cost) * cost
			s.useTokens(p.Name, r.Bucket, more)
			s.useTokens(p.Name+beyond+strconv.FormatInt(tokensPerSpan(limit.Quota, limit.Window), 10), r.Bucket, more)
		}
	}
}

// beyond separates, in the name of a sample, the policy from the number of tokens that a limit of
// it allows in a span. The sample has the tokens that this limit refused. No policy's name contains
// beyond.
const beyond = "\x00"

// tokensPerSpan returns the tokens that a limit allows in a span.
func tokensPerSpan(tokens int64, window quota.Span) int64 {
	span := quota.Span(coarseStep / time.Microsecond)
	return int64(math.Ceil(float64(tokens) * float64(span) / float64(max(window, 1))))
}

// atLeast returns the least use of callers that were refused in a span: more than the limit, even
// if they were quiet for most of the span. From the averages alone it would look as if the limit
// that refuses these callers caught none.
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

func (s *Service) useTokens(policy string, bucket keyhash.Key, tokens int64) {
	span := Callers.At(s.Now()).Number
	all := s.callers.own[span]
	if all == nil {
		all = newSamples()
		s.callers.own[span] = all
		delete(s.callers.own, span-maxOwn[Callers])
	}
	all.addTokens(policy, binary.LittleEndian.Uint64(bucket[:]), tokens)
}

// putCallers stores the spans that have ended.
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

// takeCallers reads the spans of the last hour after each span, and at the start.
func (s *Service) takeCallers(ctx context.Context, now time.Time) error {
	newest := Callers.At(now.Add(-settled)).Number - 1
	if s.callers.read == newest {
		return nil
	}
	hour := map[string]*rates{}
	// Merge the samples of all replicas, span by span.
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
			// A refused caller has used at least the limit.
			for hash, least := range all.atLeast(name) {
				if used, known := one.used[hash]; known {
					one.used[hash] = max(used, least)
				}
			}
			if hour[name] == nil {
				hour[name] = newRates(span)
			}
			hour[name].addSample(span, one)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.callers.hour, s.callers.read = hour, newest
	return nil
}

func newRates(first int64) *rates {
	sketch, err := ddsketch.LogCollapsingLowestDenseDDSketch(Accuracy, maxBins)
	if err != nil { // The arguments are constant, so there is no error.
		return &rates{}
	}
	return &rates{sketch: sketch, first: first, spans: map[int64]bool{}}
}

func (r *rates) addSample(span int64, one *sample) {
	for _, n := range one.used {
		if r.sketch.AddWithCount(float64(n), math.Ldexp(1, int(one.thin))) == nil {
			r.sampled++
			r.spans[span] = true
		}
	}
}

// Quantile is the rate below which a share Q of the callers stays.
type Quantile struct {
	Q    float64 `json:"q"`
	Rate float64 `json:"rate"`
}

// Caught is the effect that a limit would have had.
type Caught struct {
	Limit int64 `json:"limit"`
	// Above is the average number of callers above the limit in a span of five minutes; Share is
	// their share of all callers, 0 to 1.
	Above int64   `json:"callers_above"`
	Share float64 `json:"share_above"`
	// Refused is the share of all tokens that the limit would have refused, 0 to 1.
	Refused float64 `json:"refused_share"`
}

// Distribution describes the use of a policy by its callers.
type Distribution struct {
	Since, Until time.Time
	Complete     bool
	// Callers is the average number of callers in a span; Sampled is the number of values behind
	// the quantiles.
	Callers, Sampled int64
	Quantiles        []Quantile
	Limits           []Caught
	// Suggestion is nil without callers.
	Suggestion *Caught
	// Uncovered is true if the window is longer than the history: then nothing is known.
	Uncovered bool
}

// covered is the longest window that the history covers.
const covered = time.Hour

// Distribution returns the tokens in each window that the callers of a policy used in the last
// hour, and the effect that each of the limits would have had. inForce is the present limit: no
// part of the answer contradicts its refusals of that hour.
func (s *Service) Distribution(policy string, window time.Duration, inForce int64, limits []int64) Distribution {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Without data the answer has only the limits.
	start := func(span int64) time.Time { return time.Unix(span*int64(coarseStep/time.Second), 0).UTC() }
	d := Distribution{Complete: s.complete, Quantiles: []Quantile{}, Limits: []Caught{},
		Until: start(s.callers.read + 1)}
	d.Since = d.Until
	if d.Uncovered = window > covered; d.Uncovered {
		return d
	}
	seen := s.sightOf(policy)
	r := s.callers.hour[policy]
	if r == nil || r.sampled == 0 {
		for _, limit := range limits {
			d.Limits = append(d.Limits, Caught{Limit: limit})
		}
		return d
	}
	// Compute the quantiles and the effect of each limit.
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
		d.Limits = append(d.Limits, seen.correctEffect(r.effectOf(limit, perSpan), inForce, r))
	}
	// Suggest a limit.
	if used, err := r.sketch.GetValueAtQuantile(below); err == nil {
		limit := max(used/perSpan, seen.leastLimit(inForce)) * (1 + headRoom)
		suggestion := seen.correctEffect(r.effectOf(roundUp(limit), perSpan), inForce, r)
		d.Suggestion = &suggestion
	}
	return d
}

// sight is the information of nodes about a policy in the last hour, which the averages of callers
// do not show: the number of refused requests, and the fill of the fullest bucket, in percent.
type sight struct{ refused, fullest int64 }

// sightOf reads the sight of a policy. The lock is held.
func (s *Service) sightOf(policy string) sight {
	count := int64(time.Hour / fineStep)
	first := Fine.At(s.Now()).Number - count + 1
	of := row{ByPolicy, policy}
	refused, _ := s.rings[Fine].sumSpan(of, Refused.index(), first, count)
	fullest, _ := s.rings[Fine].sumSpan(of, Utilisation.index(), first, count)
	return sight{refused, fullest}
}

// leastLimit returns the limit that some caller needs at least.
func (s sight) leastLimit(inForce int64) float64 {
	if s.refused > 0 {
		return float64(inForce)
	}
	return float64(inForce) * float64(min(s.fullest, 100)) / 100
}

// correctEffect corrects an effect by the refusals: a limit that is not above the limit that
// refuses catches some caller.
func (s sight) correctEffect(c Caught, inForce int64, of *rates) Caught {
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

// effectOf returns the effect of a limit if use within a span were even.
func (r *rates) effectOf(limit int64, perSpan float64) Caught {
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

// roundUp returns the next number with two digits that is at least n and at least 1.
func roundUp(n float64) int64 {
	unit := 1.0
	for n/unit > 100 {
		unit *= 10
	}
	return max(int64(math.Ceil(n/unit-1e-9)*unit), 1)
}

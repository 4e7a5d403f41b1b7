package controlplanetest

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// Game is a random policy set in strict mode and requests for it. Every door must decide them
// alike: the filter, the gRPC rate limit service and the simulation of logs.
type Game struct {
	Document string
	Requests []GameRequest
}

// GameRequest is a request of a Game. Its headers are pairs of a name and a value.
type GameRequest struct {
	At      time.Time
	Headers []string
}

// NewGame chooses a game whose requests come after an instant, each some seconds after the other.
// Tokens come back a multiple of 5 s after their use, and no request comes in the 100 ms after
// that: granted tokens count as leased for that time, and the simulation knows no leases.
func NewGame(r *rand.Rand, after time.Time) *Game {
	var b strings.Builder
	b.WriteString("version: weir/v1\npolicies:\n")
	about := theme(r.IntN(int(penalties) + 1))
	for i := range 1 + r.IntN(3) {
		callers := pick(r, "", `"header:x-k"`, `"header:x-k"`, `"header:x-l"`)
		fmt.Fprintf(&b, "  - {name: p%d, mode: strict, partition: [%s], limit: %s%s}\n", i, callers,
			about.limit(r), about.fields(r, i == 0, callers != ""))
	}
	g := &Game{Document: b.String()}
	for range 60 {
		after = after.Add(time.Duration(1+r.IntN(4))*5*time.Second - 20*time.Millisecond)
		one := GameRequest{At: after}
		for _, h := range [...]struct {
			name   string
			values []string
		}{
			{"x-k", []string{"", "a", "a", "b"}}, {"x-l", []string{"", "c", "d"}},
			{"x-cost", []string{"", "1", "2", "4", "no"}},
		} {
			if v := pick(r, h.values...); v != "" {
				one.Headers = append(one.Headers, h.name, v)
			}
		}
		g.Requests = append(g.Requests, one)
	}
	return g
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

// theme is the subject of a game.
type theme int

const (
	// candidates: nothing refuses a request without its buckets, not even its cost, since
	// the doors learn more or less of the other buckets then.
	candidates theme = iota
	// itself: requests that are refused without their buckets.
	itself
	// penalties: one enforced policy has penalties. If two policies refused for nearly the same
	// time, a refusal could count for either.
	penalties
)

// dearest is the highest cost of a request in a game about candidates.
const dearest = 2

// limit chooses one limit or two. Some suspend, and some are too small for the dearest request.
func (about theme) limit(r *rand.Rand) string {
	least, sizes := 1, 3
	if about == candidates {
		least, sizes = dearest, 2
	}
	one := func(window string) string {
		return fmt.Sprintf("{quota: %d, window: %s}", least<<r.IntN(sizes), window)
	}
	switch r.IntN(8) {
	case 0:
		if about != candidates {
			return "{quota: 0, window: 1h}"
		}
	case 1, 2:
		return "[" + one("20s") + ", " + one("2m") + "]"
	}
	return one(pick(r, "20s", "40s", "5m"))
}

// fields chooses the other fields of a policy. isFirst is true for the first policy, and tellsApart
// is true if the policy distinguishes callers.
func (about theme) fields(r *rand.Rand, isFirst, tellsApart bool) string {
	const cost, shadow = ", cost: {header: x-cost, max: 4, invalid: ", ", enforcement: shadow"
	all := pick(r, "", ", algorithm: sliding_log")
	if about == candidates {
		small := fmt.Sprintf(", cost: {header: x-cost, max: %d, invalid: 1}", dearest)
		return all + pick(r, "", small) + pick(r, "", "", shadow, ", candidate: {limit: "+about.limit(r)+"}")
	}
	all += pick(r, "", cost+"1}", cost+"deny}") + pick(r, "", "", ", if_absent: deny")
	if about == itself {
		return all + pick(r, "", "", shadow)
	}
	switch {
	case !isFirst:
		return all + shadow
	case tellsApart:
		all += ", penalty: {after: {refusals: 2, within: 2m}, for: 1m, jitter: 0%}"
	}
	return all
}

// DiffersFrom describes how a door's refusals, and the refusals that it only tried, differ from the
// simulation; "" if they do not.
func (g *Game) DiffersFrom(refused, tried int) (difference string, err error) {
	said, saidTried, err := Simulate([]byte(g.Document), strings.NewReader(g.Log()), 1)
	if err == nil && (refused != int(said) || tried != int(saidTried)) {
		difference = fmt.Sprintf("refuses %d, and %d would be refused; the simulation refuses %d and %d\n%s",
			refused, tried, said, saidTried, g.Document)
	}
	return difference, err
}

// Log is the game's requests as an access log.
func (g *Game) Log() string {
	var b strings.Builder
	for _, one := range g.Requests {
		at := one.At.UnixMicro()
		fmt.Fprintf(&b, `{"time":%d.%06d,"path":"/"`, at/1e6, at%1e6)
		for i := 0; i < len(one.Headers); i += 2 {
			fmt.Fprintf(&b, `,%q:%q`, one.Headers[i], one.Headers[i+1])
		}
		b.WriteString("}\n")
	}
	return b.String()
}

// PlayGames has a door play random games, and fails the test where one differs from the
// simulation. Play returns how many requests were refused, and how many policies
// in shadow and candidates would have refused.
func PlayGames(t testing.TB, seed uint64, after time.Time, play func(*Game) (refused, tried int)) {
	const games = 200
	refusals, trials := 0, 0
	for n := range games {
		g := NewGame(rand.New(rand.NewPCG(seed, uint64(n))), after)
		refused, tried := play(g)
		difference, err := g.DiffersFrom(refused, tried)
		if err != nil {
			t.Fatal(err)
		}
		if difference != "" {
			t.Fatalf("game %d %s", n, difference)
		}
		refusals, trials = refusals+refused, trials+tried
	}
	t.Logf("%d games: %d requests refused, %d would be", games, refusals, trials)
	if refusals < games || trials < games {
		t.Error("the games show nothing")
	}
}

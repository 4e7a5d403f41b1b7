package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"sort"
	"strconv"
	"strings"

	"github.com/weir-proxy/weir/test/figures/bench/load"
	"github.com/weir-proxy/weir/tools/stack"
)

const (
	connections = 32
	keyHeader   = "x-key"
	path        = "/v1/items"
	// draws is how many keys are drawn before the same ones come again.
	draws = 1 << 20
)

// traffic is the requests of a load.
type traffic struct {
	name string
	// keys is how many there are, order which one the n-th request has.
	keys  int
	order func(keys int) []int
	// headers are the headers of each request beside its key.
	headers string
}

const fewHeaders = "user-agent: bench\r\naccept: */*\r\n"

var (
	oneKey      = traffic{"one key", 1, inTurn, fewHeaders}
	busyKeys    = traffic{"busy keys", 1000, func(n int) []int { return zipf(n, 1, 1<<16) }, fewHeaders}
	manyKeys    = traffic{"many keys", 10_000, inTurn, fewHeaders}
	coldKeys    = traffic{"cold keys", 100_000, uniform, fewHeaders}
	mixedKeys   = traffic{"mixed keys", 100_000, fashions, fewHeaders}
	browserKeys = traffic{"a browser's headers", 10_000, inTurn, browserHeaders()}
)

// requests returns a complete request for each key.
func (t traffic) requests() [][]byte {
	var all [][]byte
	for i := range t.keys {
		all = append(all, fmt.Appendf(nil, "GET %s HTTP/1.1\r\nhost: bench.example\r\n%s%s: key-%06d\r\n\r\n",
			path, t.headers, keyHeader, i))
	}
	return all
}

// load returns this traffic at an Envoy. The requests are made once for all contestants.
func (s *workshop) load(t traffic, e *stack.Envoy) load.Load {
	if s.loads == nil {
		s.loads = map[string]load.Load{}
	}
	l, made := s.loads[t.name]
	if !made {
		l = load.Load{Connections: connections, Requests: t.requests(), Order: t.order(t.keys)}
		s.loads[t.name] = l
	}
	l.Address = net.JoinHostPort(e.Host, strconv.Itoa(e.Port))
	return l
}

// browserHeaders returns twenty headers, host and key included. One of them is a cookie of a
// kilobyte.
func browserHeaders() string {
	return strings.ReplaceAll(`user-agent: Mozilla/5.0 (X11; Linux x86_64; rv:145.0) Gecko/20100101 Firefox/145.0
accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,*/*;q=0.8
accept-language: en-GB,en;q=0.9,de;q=0.8
accept-encoding: gzip, deflate, br, zstd
referer: https://bench.example/v1/items?page=41&sort=newest
cookie: session=`+strings.Repeat("c29tZSBvcGFxdWUgc2Vzc2lvbiBkYXRh", 32)+`
sec-ch-ua: "Chromium";v="142", "Not_A Brand";v="99"
sec-ch-ua-mobile: ?0
sec-ch-ua-platform: "Linux"
sec-fetch-dest: document
sec-fetch-mode: navigate
sec-fetch-site: same-origin
sec-fetch-user: ?1
upgrade-insecure-requests: 1
cache-control: max-age=0
priority: u=0, i
dnt: 1
sec-gpc: 1
`, "\n", "\r\n")
}

func inTurn(n int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	return order
}

func uniform(n int) []int {
	random := rand.New(rand.NewPCG(3, 4))
	order := make([]int, draws)
	for i := range order {
		order[i] = random.IntN(n)
	}
	return order
}

// zipf draws numbers below n, each k with a probability that falls as 1/(k+1)^s. Each call draws
// the same numbers.
func zipf(n int, s float64, draws int) []int {
	sums := make([]float64, n)
	sum := 0.0
	for k := range sums {
		sum += math.Pow(float64(k+1), -s)
		sums[k] = sum
	}
	random := rand.New(rand.NewPCG(1, 2))
	order := make([]int, draws)
	for i := range order {
		order[i] = min(sort.SearchFloat64s(sums, random.Float64()*sum), n-1)
	}
	return order
}

const (
	// fashion is the number of requests after which other keys become busy. If the same keys stayed
	// busy, they would be refused nearly always at the rates of a closed loop, and a faster
	// contestant would refuse more. With a fashion each contestant refuses the same tenth.
	fashion = 2000
	// stride is from one fashion's busiest key to the next one's. It shares no divisor with the
	// number of keys.
	stride = 10_007
)

// fashions draws by Zipf's law with the exponent 1.1 among keys whose order changes.
func fashions(n int) []int {
	order := zipf(n, 1.1, draws)
	for i, rank := range order {
		order[i] = (rank + i/fashion*stride) % n
	}
	return order
}

// Peer is envoyproxy/ratelimit without a network, a Redis and a clock: it answers calls that it
// reads, at times that it reads, by configurations that it reads.
//
// Each line of the input is a JSON object. One with a config loads that configuration over empty
// counters. Another is a call: a rate limit request in the encoding of protocol buffers, and when
// it comes. The answer is a line with an error, or with two responses: that of the service as it
// is, and that of one whose refused calls are charged nowhere.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand"
	"os"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	gostats "github.com/lyft/gostats"
	logger "github.com/sirupsen/logrus"
	"google.golang.org/protobuf/proto"

	"github.com/envoyproxy/ratelimit/src/config"
	"github.com/envoyproxy/ratelimit/src/provider"
	"github.com/envoyproxy/ratelimit/src/redis"
	ratelimit "github.com/envoyproxy/ratelimit/src/service"
	"github.com/envoyproxy/ratelimit/src/settings"
	"github.com/envoyproxy/ratelimit/src/stats"
)

type input struct {
	Config  string `json:"config"`
	At      int64  `json:"at"`
	Request []byte `json:"request"`
}

type output struct {
	Error  string `json:"error,omitempty"`
	Plain  []byte `json:"plain,omitempty"`
	Undone []byte `json:"undone,omitempty"`
}

// clock is the time of the call at hand, in Unix seconds.
type clock struct{ now int64 }

func (c *clock) UnixNow() int64 { return c.now }

// counters are what Redis would hold. Keys have the start of their window in them, so none expires.
type counters struct {
	counts map[string]uint64
	// taken is what the call at hand has added.
	taken map[string]uint64
}

func (c *counters) do(rcv any, cmd, key string, args []any) {
	n, _ := rcv.(*uint64)
	switch cmd {
	case "INCRBY":
		by := args[0].(uint64)
		c.counts[key] += by
		c.taken[key] += by
		*n = c.counts[key]
	case "GET":
		*n = c.counts[key]
	}
}

func (c *counters) DoCmd(rcv any, cmd, key string, args ...any) error {
	c.do(rcv, cmd, key, args)
	return nil
}

func (c *counters) PipeAppend(p redis.Pipeline, rcv any, cmd, key string, args ...any) redis.Pipeline {
	c.do(rcv, cmd, key, args)
	return append(p, redis.PipelineAction{Key: key})
}

func (c *counters) PipeDo(redis.Pipeline) error { return nil }
func (c *counters) Close() error                { return nil }
func (c *counters) NumActiveConns() int         { return 1 }

// undo takes back what the call at hand has added.
func (c *counters) undo() {
	for key, by := range c.taken {
		c.counts[key] -= by
	}
}

// given is a configuration that never changes.
type given struct {
	config config.RateLimitConfig
	events chan provider.ConfigUpdateEvent
}

func (g given) GetConfig() (config.RateLimitConfig, any)             { return g.config, nil }
func (g given) ConfigUpdateEvent() <-chan provider.ConfigUpdateEvent { return g.events }
func (g given) Stop()                                                {}

// service is one copy of envoyproxy/ratelimit with its counters.
type service struct {
	counters *counters
	server   ratelimit.RateLimitServiceServer
}

func load(text string, at *clock) (s service, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	manager := stats.NewStatManager(gostats.NewStore(gostats.NewNullSink(), false), settings.NewSettings())
	root := config.ConfigFileContentToYaml("config.yaml", text)
	g := given{events: make(chan provider.ConfigUpdateEvent, 1)}
	g.config = config.NewRateLimitConfigImpl(
		[]config.RateLimitConfigToLoad{{Name: "config.yaml", ConfigYaml: root}}, manager, false)
	g.events <- g
	s.counters = &counters{counts: map[string]uint64{}}
	cache := redis.NewFixedRateLimitCacheImpl(s.counters, nil, at, rand.New(rand.NewSource(1)), 0, nil, 0.8, "", manager, false)
	s.server = ratelimit.NewService(cache, g, manager, nil, at, false, false, false)
	return s, nil
}

func (s service) answer(in *rlspb.RateLimitRequest, undoes bool) ([]byte, error) {
	s.counters.taken = map[string]uint64{}
	out, err := s.server.ShouldRateLimit(context.Background(), in)
	if err != nil {
		return nil, err
	}
	if undoes && out.OverallCode == rlspb.RateLimitResponse_OVER_LIMIT {
		s.counters.undo()
	}
	return proto.Marshal(out)
}

// peer is the two services with their clock.
type peer struct {
	at            clock
	plain, undone service
}

func (p *peer) take(line input) (out output, err error) {
	if line.Config != "" {
		p.plain, err = load(line.Config, &p.at)
		if err == nil {
			p.undone, err = load(line.Config, &p.at)
		}
		return out, err
	}
	in := &rlspb.RateLimitRequest{}
	if err := proto.Unmarshal(line.Request, in); err != nil {
		return out, err
	}
	p.at.now = line.At
	out.Plain, err = p.plain.answer(in, false)
	if err == nil {
		out.Undone, err = p.undone.answer(in, true)
	}
	return out, err
}

func run(in io.Reader, to io.Writer) error {
	p, lines, writer := &peer{}, json.NewDecoder(bufio.NewReader(in)), bufio.NewWriter(to)
	answers := json.NewEncoder(writer)
	for {
		var line input
		if err := lines.Decode(&line); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		out, err := p.take(line)
		if err != nil {
			out = output{Error: err.Error()}
		}
		if err := answers.Encode(out); err != nil {
			return err
		}
		if err := writer.Flush(); err != nil {
			return err
		}
	}
}

func main() {
	logger.SetOutput(io.Discard)
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/test/figures"
	"github.com/weir-proxy/weir/tools/stack"
)

const (
	adminToken = "the-administrator-of-the-simulated-nodes"
	nodeToken  = "the-simulated-nodes"
	// patience bounds every start and every stored policy set.
	patience = 30 * time.Second
)

// world is some control planes on one Redis.
type world struct {
	redis   *stack.Process
	address string
	planes  []*stack.ControlPlane
	client  *redis.Client
	http    *http.Client
	stops   []func()
}

// start starts a Redis on the given processors, and replicas of the control plane in front of it.
// through returns the address at which they find Redis; nil returns Redis' own address.
func start(
	ctx context.Context, root, redisCPUs string, replicas int, through func(address string) (string, error),
) (_ *world, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	w := &world{http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1 << 16, DisableCompression: true}}}
	defer func() {
		if err != nil {
			w.stop()
		}
	}()
	dir, err := os.MkdirTemp("", "weir-scale-")
	if err != nil {
		return nil, err
	}
	w.stops = append(w.stops, func() { os.RemoveAll(dir) }, w.http.CloseIdleConnections)
	if w.redis, w.address, err = stack.StartRedis(ctx, stack.RedisOptions{Dir: dir, CPUs: redisCPUs}); err != nil {
		return nil, err
	}
	w.client = redis.NewClient(&redis.Options{Addr: w.address, DisableIdentity: true})
	w.stops = append(w.stops, func() { w.redis.Stop(2 * time.Second) }, func() { w.client.Close() })
	address := w.address
	if through != nil {
		if address, err = through(w.address); err != nil {
			return nil, err
		}
	}
	for range replicas {
		c, err := stack.StartControlPlane(ctx, stack.ControlPlaneOptions{
			Binary: filepath.Join(root, "build/weir"), DataDir: dir, AdminToken: adminToken, NodeToken: nodeToken,
			RedisURL: "redis://" + address + "/0",
		})
		if err != nil {
			return nil, err
		}
		w.planes, w.stops = append(w.planes, c), append(w.stops, c.Stop)
	}
	return w, nil
}

func (w *world) stop() {
	for i := len(w.stops) - 1; i >= 0; i-- {
		w.stops[i]()
	}
}

// plane returns the control plane of a node.
func (w *world) plane(node int) *stack.ControlPlane { return w.planes[node%len(w.planes)] }

func (w *world) apply(ctx context.Context, set string) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return w.planes[0].Apply(ctx, []byte(set))
}

// work is the processor time of the control planes, of Redis, of this process and of all processes.
type work struct{ plane, redis, self, all time.Duration }

func (w *world) work() (n work, err error) {
	for _, p := range w.planes {
		one, err := figures.ProcessorTime(p.PID())
		if err != nil {
			return n, err
		}
		n.plane += one
	}
	if n.redis, err = figures.ProcessorTime(w.redis.PID()); err != nil {
		return n, err
	}
	if n.self, err = figures.ProcessorTime(os.Getpid()); err != nil {
		return n, err
	}
	n.all, err = figures.EverybodysTime()
	return n, err
}

func (n work) since(before work) work {
	return work{n.plane - before.plane, n.redis - before.redis, n.self - before.self, n.all - before.all}
}

// foreign returns the number of processors that worked for other programs.
func (n work) foreign(during time.Duration) float64 {
	return figures.Rounded(max(0, (n.all-n.plane-n.redis-n.self).Seconds()/during.Seconds()))
}

// memory returns the memory that Redis uses, in bytes, and the number of its keys.
func (w *world) memory(ctx context.Context) (bytes, keys int64, err error) {
	info, err := w.client.Info(ctx, "memory").Result()
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(info) {
		if text, ok := strings.CutPrefix(line, "used_memory:"); ok {
			if bytes, err = strconv.ParseInt(strings.TrimSpace(text), 10, 64); err != nil {
				return 0, 0, err
			}
		}
	}
	keys, err = w.client.DBSize(ctx).Result()
	return bytes, keys, err
}

// granted returns the number of buckets for which the control planes have granted all tokens, and
// the number of other answers.
func (w *world) granted(ctx context.Context) (all, other int, err error) {
	for _, p := range w.planes {
		answer, err := p.Call(ctx, http.MethodGet, "/metrics", nil)
		if err != nil {
			return 0, 0, err
		}
		if answer.Status != http.StatusOK {
			return 0, 0, fmt.Errorf("GET /metrics: %d %s", answer.Status, answer.Body)
		}
		for line := range strings.Lines(string(answer.Body)) {
			rest, ok := strings.CutPrefix(line, "weir_lease_items_total{outcome=")
			if !ok {
				continue
			}
			outcome, value, _ := strings.Cut(strings.TrimSpace(rest), "} ")
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return 0, 0, fmt.Errorf("GET /metrics: %q", line)
			}
			if outcome == `"granted"` {
				all += int(n)
			} else {
				other += int(n)
			}
		}
	}
	return all, other, nil
}

func hostPort(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

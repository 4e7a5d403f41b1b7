package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/tools/stack"
)

// pollers are simulated nodes that wait for policy sets as the filter does: the next poll is the
// acknowledgement of the last.
type pollers struct {
	world *world
	// arrived is called with each policy set at each node. It is called by many goroutines.
	arrived func(node int, version uint64)
	wait    sync.WaitGroup
	cancel  context.CancelFunc
	mu      sync.Mutex
	err     error
}

func nodeName(i int) string { return fmt.Sprintf("node-%04d", i) }

// poll starts a poller for each node. The pollers end with end.
func (w *world) poll(ctx context.Context, nodes int, arrived func(node int, version uint64)) *pollers {
	p := &pollers{world: w, arrived: arrived}
	ctx, p.cancel = context.WithCancel(ctx)
	for i := range nodes {
		p.wait.Go(func() {
			if err := p.run(ctx, i); ctx.Err() == nil {
				p.mu.Lock()
				defer p.mu.Unlock()
				p.err = fmt.Errorf("%s: %w", nodeName(i), err)
			}
		})
	}
	return p
}

// end stops all pollers and returns the error of one of them.
func (p *pollers) end() error {
	p.cancel()
	p.wait.Wait()
	return p.err
}

// run polls for ever: it returns only with an error.
func (p *pollers) run(ctx context.Context, node int) error {
	var index match.Index
	for version := uint64(0); ; {
		path := fmt.Sprintf("/node/v1/snapshot?after=%d&wait=25s&applied=%d&node=%s&boot=%x&filter=simulated",
			version, version, nodeName(node), node+1)
		status, body, err := p.world.send(ctx, p.world.plane(node), http.MethodGet, path, nil)
		if err != nil {
			return err
		}
		switch status {
		case http.StatusNoContent:
			continue
		case http.StatusOK:
		default:
			return fmt.Errorf("GET %s: %d %s", path, status, body)
		}
		if err := index.Load(body); err != nil {
			return err
		}
		version = index.Version()
		p.arrived(node, version)
	}
}

// send sends a node's request.
func (w *world) send(
	ctx context.Context, to *stack.ControlPlane, method, path string, content io.Reader,
) (status int, body []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, method, to.URL()+path, content)
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Authorization", "Bearer "+nodeToken)
	response, err := w.http.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(response.Body)
	return response.StatusCode, body, err
}

// times has the duration of something at each node, in ascending order.
type times []time.Duration

// at returns the duration that a share p of them, 0 to 1, did not exceed.
func (t times) at(p float64) time.Duration {
	if len(t) == 0 {
		return 0
	}
	return t[min(int(p*float64(len(t))), len(t)-1)]
}

// push stores a policy set pushes times. From the moment of each PUT it measures the time until
// each node has it, and the time until the control plane shows each node's acknowledgement.
func (w *world) push(ctx context.Context, nodes, pushes int) (reached, acknowledged times, err error) {
	var mu sync.Mutex
	begin, current, left := time.Time{}, uint64(0), 0
	all := make(chan struct{}, 1)
	p := w.poll(ctx, nodes, func(_ int, version uint64) {
		mu.Lock()
		defer mu.Unlock()
		// A node may know the version before the answer to PUT brings its number.
		if version > current {
			current, left = version, nodes
		}
		if version == current {
			reached = append(reached, time.Since(begin))
			if left--; left == 0 {
				all <- struct{}{}
			}
		}
	})
	defer func() {
		err = errors.Join(err, p.end())
		slices.Sort(reached)
		slices.Sort(acknowledged)
	}()
	for i := range pushes + 1 {
		mu.Lock()
		begin = time.Now()
		mu.Unlock()
		version, err := w.apply(ctx, fmt.Sprintf(`{"version": "weir/v1", "policies": [
			{"name": "p", "partition": [], "limit": {"quota": %d, "window": "1m"}}]}`, 100+i))
		if err != nil {
			return nil, nil, err
		}
		after, err := w.acknowledged(ctx, begin, version, nodes)
		if err != nil {
			return nil, nil, err
		}
		select {
		case <-all:
		case <-time.After(patience):
			return nil, nil, fmt.Errorf("version %d has not reached every node", version)
		}
		if i == 0 { // The first meets nodes that are still connecting.
			mu.Lock()
			reached = reached[:0]
			mu.Unlock()
			continue
		}
		acknowledged = append(acknowledged, after...)
	}
	return reached, acknowledged, nil
}

// acknowledged waits until the control plane says that all nodes have applied a version, and
// returns the time that each node needed.
func (w *world) acknowledged(ctx context.Context, begin time.Time, version uint64, nodes int) (after times, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	known := map[string]bool{}
	err = stack.Await(ctx, fmt.Sprintf("version %d at %d nodes", version, nodes), func(ctx context.Context) error {
		list, err := w.planes[0].Nodes(ctx)
		if err != nil {
			return err
		}
		took := time.Since(begin)
		for _, n := range list {
			if n.Applied >= version && !known[n.ID] {
				known[n.ID] = true
				after = append(after, took)
			}
		}
		if len(known) < nodes {
			return fmt.Errorf("%d have it", len(known))
		}
		return nil
	})
	return after, err
}

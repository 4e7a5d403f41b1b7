//go:build !race

package app_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/access/auth"
	"github.com/weir-proxy/weir/controlplane/internal/app/settings"
	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/observe/decisions"
	"github.com/weir-proxy/weir/controlplane/internal/rules/consumers"
	"github.com/weir-proxy/weir/controlplane/internal/store/redisstore"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/wire"
	"github.com/weir-proxy/weir/test/support/redistest"
)

// unrefused is a key that has no refusals: all that are kept are read to find that.
var unrefused = keyhash.Key{2}.String()

// readRoutes are the routes whose answers are largest.
var readRoutes = []string{
	"/v1/decisions?page_size=200", "/v1/decisions?page_size=200&key=" + unrefused,
	"/v1/audit?page_size=200&by=nemo", "/v1/audit?page_size=200", "/v1/consumers?page_size=200",
	"/v1/versions?page_size=200", "/v1/policies", "/v1/nodes", "/v1/series/comparison",
	"/v1/top", "/v1/policyset", "/metrics",
}

// fill gives a store as much to read as it keeps.
func fill(t *testing.T, url string) {
	t.Helper()
	store, err := redisstore.Open(url, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	for range decisions.Kept / 1000 {
		list := make([]decisions.Decision, 1000)
		for i := range list {
			list[i] = decisions.Decision{Policy: "a", Node: "n",
				Key: keyhash.Key{1}.String()}
		}
		if err := store.AppendDecisions(t.Context(), list); err != nil {
			t.Fatal(err)
		}
	}
	people := consumers.Kept{In: store}
	gold := &consumers.Record{Tier: "gold", By: "me"}
	for i := range 20 {
		var writes []consumers.Write
		for k := range 500 {
			key := keyhash.Key{byte(i), byte(k), byte(k >> 8)}
			writes = append(writes, consumers.Write{Key: key, Any: true, Record: gold})
		}
		if _, err := people.WriteConsumers(t.Context(), consumers.Changes{Writes: writes}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2000 {
		w := consumers.Write{Key: keyhash.Key{255, byte(i), byte(i >> 8)}, Any: true, Record: gold}
		e := audit.Entry{Action: "consumer.put", Resource: "consumer", By: "me", Reason: "a reason of some length"}
		change := consumers.Changes{Writes: []consumers.Write{w}, Entry: e}
		if _, err := people.WriteConsumers(t.Context(), change); err != nil {
			t.Fatal(err)
		}
	}
}

// Lease requests are answered within the time that an Envoy waits for them beside a hundred readers
// about as often as without, though the readers of this test use the same processors.
func TestReadersLeaveGrantsAlone(t *testing.T) {
	server := redistest.Start(t)
	fill(t, server.URL())
	p := startWith(t, settings.Settings{
		Listen: "127.0.0.1:0", RedisURL: server.URL(), LostFill: 40, Limits: settings.Limits{API: 500},
		Tokens: auth.Tokens{{Name: "all", Role: auth.Admin, Sum: auth.Sum(secret)}},
	}, slog.New(slog.DiscardHandler))
	version := p.put(1_000_000)
	p.until("/readyz/store", 200)
	most := 0.0
	for range 3 {
		alone, beside := p.goodput(version, 0), p.goodput(version, 100)
		t.Logf("alone %+v, beside readers %+v", alone, beside)
		if beside.reads > 0 && alone.good > 0 {
			most = max(most, beside.share()/alone.share())
		}
		if most > 0.6 {
			return
		}
	}
	t.Errorf("beside readers %.2f of the answers in time without readers", most)
}

// served are lease requests that were answered in time and late, and readers that were answered.
type served struct{ good, late, reads int64 }

// share returns the share of the questions that were answered in time.
func (s served) share() float64 { return float64(s.good) / float64(max(s.good+s.late, 1)) }

// goodput has nodes ask for tokens beside readers.
func (p *plane) goodput(version uint64, readers int) (s served) {
	p.t.Helper()
	const during = 2 * time.Second
	ctx, cancel := context.WithTimeout(p.t.Context(), during)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 200}}
	defer client.CloseIdleConnections()
	var all sync.WaitGroup
	var good, late, reads atomic.Int64
	for range readers {
		all.Go(func() {
			for ctx.Err() == nil {
				r, err := http.NewRequestWithContext(ctx, "GET", p.url+readRoutes[rand.IntN(len(readRoutes))], nil)
				if err != nil {
					panic(err)
				}
				r.Header.Set("Authorization", "Bearer "+secret)
				a, err := client.Do(r)
				if err != nil {
					continue
				}
				_, _ = io.Copy(io.Discard, a.Body)
				a.Body.Close()
				if a.StatusCode == 200 {
					reads.Add(1)
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	for n := range 4 {
		all.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				began := time.Now()
				if p.leases(ctx, client, version, n, i) && time.Since(began) < 50*time.Millisecond {
					good.Add(1)
				} else {
					late.Add(1)
				}
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	all.Wait()
	return served{good.Load(), late.Load(), reads.Load()}
}

func (p *plane) leases(ctx context.Context, client *http.Client, version uint64, n, i int) bool {
	request := wire.LeaseRequest{Node: fmt.Sprint(n), Version: version,
		Items: []wire.LeaseItem{{Bucket: keyhash.Key{byte(i), byte(i >> 8), byte(n)}, Waiting: 1, Cost: 1}}}
	ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	body := bytes.NewReader(wire.AppendLeaseRequest(nil, request))
	r, err := http.NewRequestWithContext(ctx, "POST", p.url+"/node/v1/leases", body)
	if err != nil {
		panic(err)
	}
	r.Header.Set("Authorization", "Bearer "+secret)
	a, err := client.Do(r)
	if err != nil {
		return false
	}
	defer a.Body.Close()
	_, err = io.Copy(io.Discard, a.Body)
	return err == nil && a.StatusCode == 200
}

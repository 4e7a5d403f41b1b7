package million

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/wire"
)

// resident returns the resident memory of the control plane's process, in bytes.
func (p *plane) resident() int64 {
	p.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.control.PID()))
	if err != nil {
		p.t.Fatal(err)
	}
	var total, resident int64
	if _, err := fmt.Sscan(string(status), &total, &resident); err != nil {
		p.t.Fatal(err)
	}
	return resident * int64(os.Getpagesize())
}

// processor returns the processor time that its process has used.
func (p *plane) processor() time.Duration {
	p.t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.control.PID()))
	if err != nil {
		p.t.Fatal(err)
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	var user, system int64
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		p.t.Fatal(err)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}

// atRest returns the least memory of the process in a while in which nothing happens.
func (p *plane) atRest(during time.Duration) int64 {
	p.t.Helper()
	least := p.resident()
	for end := time.Now().Add(during); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		least = min(least, p.resident())
	}
	return least
}

// peak returns the largest memory of the process so far.
func (p *plane) peak() int64 {
	p.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.control.PID()))
	if err != nil {
		p.t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	var kilobytes int64
	if _, err := fmt.Sscan(after, &kilobytes); err != nil {
		p.t.Fatal(err)
	}
	return kilobytes * 1024
}

// set returns a policy set of many policies of a limit.
func set(policies, quota int, window string) string {
	var b strings.Builder
	b.WriteString("version: weir/v1\nidentity: {consumer: [{header: x-api-key}]}\npolicies:\n")
	for i := range policies {
		fmt.Fprintf(&b, "- {name: p%[1]d, match: {paths: [/p%[1]d]}, partition: [consumer], "+
			"limit: {quota: %[2]d, window: %[3]s}}\n", i, quota, window)
	}
	return b.String()
}

func mb(bytes int64) string { return fmt.Sprintf("%.0f MB", float64(bytes)/1e6) }

// A control plane holds no more after a hundred pushes of a large policy set than after half of
// them.
func TestMemoryAfterPushes(t *testing.T) {
	pushes, policies, rest := 12, 500, time.Second
	if *full {
		pushes, policies, rest = 100, 10_000, 3*time.Second
	}
	p := start(t)
	t.Logf("without policies: %s", mb(p.atRest(rest)))
	var half, whole int64
	var spent time.Duration
	for i := range pushes {
		document, before := set(policies, 100+i, "1m"), p.processor()
		p.call(http.MethodPut, "/v1/policyset", document)
		spent += p.processor() - before
		switch i + 1 {
		case max(pushes/10, 2):
			t.Logf("after %d pushes of %d policies: %s at rest", i+1, policies, mb(p.atRest(rest)))
		case pushes / 2:
			half = p.atRest(rest)
			t.Logf("after %d: %s", i+1, mb(half))
		case pushes:
			whole = p.atRest(rest)
			t.Logf("after %d: %s; %.1f MB each, %.2f s of a processor; %s at most", i+1, mb(whole),
				float64(len(document))/1e6, spent.Seconds()/float64(pushes), mb(p.peak()))
		}
	}
	if whole > half+half/4+10e6 {
		t.Errorf("after %d pushes it holds %s, after half of them %s", pushes, mb(whole), mb(half))
	}
}

// A million keys that are asked for once leave a control plane's memory as it was, and each node
// that polls costs it little.
func TestMemoryOfKeysAndNodes(t *testing.T) {
	keys, nodes, rest := 40_000, 100, time.Second
	if *full {
		keys, nodes, rest = 1_000_000, 2000, 10*time.Second
	}
	p := start(t)
	p.call(http.MethodPut, "/v1/policyset", set(10, 1, "10m"))
	p.ask(keys / 20) // Until connections are there.
	before := p.atRest(rest)
	spent, begin := p.processor(), time.Now()
	p.ask(keys)
	spent, took := p.processor()-spent, time.Since(begin)
	after := p.atRest(rest)
	t.Logf("%d cold keys in %v: %s before, %s after; %.2f processors, Redis holds %s", keys,
		took.Round(time.Millisecond), mb(before), mb(after), spent.Seconds()/took.Seconds(), mb(p.memory()))
	if after > before+before/4+10e6 {
		t.Errorf("after %d keys it holds %s, before them %s", keys, mb(after), mb(before))
	}
	p.poll(nodes, rest, after)
}

// ask asks for a token of each of the first keys buckets, 64 a call, from 16 nodes.
func (p *plane) ask(keys int) {
	p.t.Helper()
	const full, nodes = 64, 16
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: nodes}}
	defer client.CloseIdleConnections()
	patient, cancel := context.WithTimeout(p.t.Context(), time.Minute)
	defer cancel()
	var next atomic.Int64
	var all sync.WaitGroup
	for n := range nodes {
		all.Go(func() {
			for seq := uint64(1); ; seq++ {
				from := next.Add(full) - full
				if from >= int64(keys) {
					return
				}
				r := wire.LeaseRequest{Node: fmt.Sprint("n", n), Seq: seq, Version: 1}
				for i := range int64(full) {
					var key keyhash.Key
					binary.BigEndian.PutUint64(key[:], uint64(from+i)*0x9e3779b97f4a7c15)
					r.Items = append(r.Items, wire.LeaseItem{Bucket: key, Waiting: 1, Cost: 1})
				}
				for p.post(client, r) != http.StatusOK { // Too much was asked at once, or the machine is busy.
					if patient.Err() != nil {
						p.t.Errorf("the calls of node %d fail", n)
						return
					}
					time.Sleep(20 * time.Millisecond)
				}
			}
		})
	}
	all.Wait()
}

func (p *plane) post(client *http.Client, request wire.LeaseRequest) (status int) {
	body := bytes.NewReader(wire.AppendLeaseRequest(nil, request))
	r, err := http.NewRequest(http.MethodPost, p.control.URL()+"/node/v1/leases", body)
	if err != nil {
		panic(err)
	}
	r.Header.Set("Authorization", "Bearer the-envoys-of-the-tests")
	a, err := client.Do(r)
	if err != nil {
		return 0
	}
	defer a.Body.Close()
	_, _ = io.Copy(io.Discard, a.Body)
	return a.StatusCode
}

// poll makes nodes poll for the next policy set, and reports their cost.
func (p *plane) poll(nodes int, rest time.Duration, without int64) {
	p.t.Helper()
	ctx, cancel := context.WithCancel(p.t.Context())
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: nodes}}
	defer client.CloseIdleConnections()
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	var refused atomic.Int64
	for n := range nodes {
		all.Go(func() {
			for after := "0"; ctx.Err() == nil; {
				path := fmt.Sprintf("/node/v1/snapshot?node=node-%d&boot=1&wait=25s&after=%s", n, after)
				r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.control.URL()+path, nil)
				if err != nil {
					panic(err)
				}
				r.Header.Set("Authorization", "Bearer the-envoys-of-the-tests")
				a, err := client.Do(r)
				if err != nil {
					continue
				}
				_, _ = io.Copy(io.Discard, a.Body)
				a.Body.Close()
				switch a.StatusCode {
				case http.StatusOK, http.StatusNoContent, http.StatusNotModified:
					after = "1" // It has the only version.
				default:
					refused.Add(1)
					time.Sleep(100 * time.Millisecond)
				}
			}
		})
	}
	time.Sleep(2*time.Second + rest)
	spent, begin := p.processor(), time.Now()
	with := p.atRest(rest)
	spent, took := p.processor()-spent, time.Since(begin)
	p.t.Logf("%d nodes poll: %.0f kB each, together %.3f processors; %d polls were refused", nodes,
		float64(with-without)/1e3/float64(nodes), spent.Seconds()/took.Seconds(), refused.Load())
	if refused.Load() > int64(nodes) {
		p.t.Errorf("%d polls were refused", refused.Load())
	}
}

package app_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/wire"
	"github.com/weir-proxy/weir/test/support/logtest"
	"github.com/weir-proxy/weir/test/support/redistest"
)

const consumerSet = `version: weir/v1
identity: {consumer: [{header: x-api-key}]}
policies:
  - {name: a, partition: [consumer], limit: {quota: 10, window: 1h}}
`

// record puts the record of a consumer.
func (p *plane) record(consumer, body string) {
	p.t.Helper()
	a := p.do("PUT", "/v1/consumers/"+consumer, []byte(body), "If-Match", "*", "Content-Type", "application/json")
	if a.status != http.StatusOK {
		p.t.Fatalf("%d %s", a.status, a.body)
	}
}

// known returns the part of a consumer's record that the test is about.
func (p *plane) known(consumer string) string {
	p.t.Helper()
	a := p.do("GET", "/v1/consumers/"+consumer, nil)
	if a.status == http.StatusNotFound {
		return "nothing"
	}
	var got struct {
		Tier           string
		Banned, Bypass *struct{ Reason string }
	}
	if err := json.Unmarshal(a.body, &got); err != nil || a.status != http.StatusOK {
		p.t.Fatalf("%d %s", a.status, a.body)
	}
	return fmt.Sprint(got.Banned != nil, got.Bypass != nil)
}

// news asks as a node that knows changes of consumers up to a revision, and waits for later
// changes.
func (p *plane) news(revision uint64) (m wire.Consumers) {
	p.t.Helper()
	a := p.do("GET", fmt.Sprintf("/node/v1/snapshot?node=n&boot=1&after=1&wait=20s&consumers=%d",
		revision), nil)
	if err := wire.DecodeConsumers(a.body, &m); err != nil || a.status != http.StatusOK {
		p.t.Fatalf("%d %s: %v", a.status, a.body, err)
	}
	return m
}

// bans counts those whom a message tells to be banned.
func bans(m wire.Consumers) (n int) {
	for _, it := range m.Items {
		if until, _ := wire.Ends(it.Exceptions); until > 0 {
			n++
		}
	}
	return n
}

// Redis goes back under a running control plane, to a time before some bans, pardons and bypasses,
// or to nothing. All come back, and every node that has the earlier state hears of them.
func TestConsumersOfAStoreThatWentBack(t *testing.T) {
	for name, empty := range map[string]bool{"a replica that lags": false, "nothing": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			server := redistest.Start(t, "--dir", dir)
			var log logtest.Buffer
			s := bare(t)
			s.DataDir, s.RedisURL = "", server.URL()
			p := startWith(t, s, slog.New(slog.NewTextHandler(&log, nil)))
			p.until("/readyz/store", http.StatusOK)
			if a := p.do("PUT", "/v1/policyset", []byte(consumerSet), "If-Match", "*"); a.status != http.StatusOK {
				t.Fatalf("%s", a.body)
			}
			p.record("pardoned", `{"banned": {"reason": "a while ago"}}`)
			p.record("old", `{"banned": {"reason": "for long"}}`)
			restore := backup(t, server, dir)
			p.record("banned", `{"banned": {"reason": "floods"}}`)
			p.record("vip", `{"bypass": {"reason": "pays"}}`)
			if a := p.do("DELETE", "/v1/consumers/pardoned", nil, "If-Match", "*"); a.status != http.StatusNoContent {
				t.Fatalf("%d %s", a.status, a.body)
			}
			before := p.news(1)
			if empty {
				server.Do("FLUSHALL")
			} else {
				server.Kill()
				restore()
				server.Restart()
			}
			p.until("/metrics", http.StatusOK, `weir_store_lost_total{part="consumers"} 1`)
			for consumer, want := range map[string]string{"banned": "true false", "old": "true false",
				"vip": "false true", "pardoned": "nothing"} {
				if got := p.known(consumer); got != want {
					t.Errorf("of %s is known %s, want %s", consumer, got, want)
				}
			}
			m := p.news(before.Revision)
			if m.Complete || m.Revision <= before.Revision || bans(m) != 2 {
				t.Errorf("a node that knows the lost state receives %d bans at revision %d after %d, all: %v", bans(m),
					m.Revision, before.Revision, m.Complete)
			}
			if !strings.Contains(log.String(), `level=WARN msg="the store had lost changes of consumers`) {
				t.Errorf("log %s", log.String())
			}
			p.until("/v1/audit?resource=consumers", http.StatusOK, `"consumers.restore"`)
		})
	}
}

// A backup is restored while no control plane runs: nothing is given back, and nodes that know
// later changes come to agree with the store within seconds.
func TestNodesAgreeWithARestoredStore(t *testing.T) {
	dir := t.TempDir()
	server := redistest.Start(t, "--dir", dir)
	p := start(t, "", server.URL())
	p.until("/readyz/store", http.StatusOK)
	p.do("PUT", "/v1/policyset", []byte(consumerSet), "If-Match", "*")
	p.record("pardoned", `{"banned": {"reason": "a while ago"}}`)
	restore := backup(t, server, dir)
	p.record("banned", `{"banned": {"reason": "floods"}}`)
	p.do("DELETE", "/v1/consumers/pardoned", nil, "If-Match", "*")
	before := p.news(1)
	p.stop()
	server.Kill()
	restore()
	server.Restart()
	p = start(t, "", server.URL())
	p.until("/readyz/store", http.StatusOK)
	m := p.news(before.Revision)
	if m.Complete || m.Revision >= before.Revision || bans(m) != 1 {
		t.Errorf("received %d bans at revision %d after %d, all: %v", bans(m), m.Revision, before.Revision, m.Complete)
	}
	if got := p.known("pardoned"); got != "true false" {
		t.Errorf("the store says of who was pardoned later: %s", got)
	}
}

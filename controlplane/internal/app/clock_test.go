package app_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/support/redistest"
)

// storeTime is the time by a server's clock.
func storeTime(t *testing.T, server *redistest.Server) time.Time {
	t.Helper()
	var seconds, micros int64
	if _, err := fmt.Sscan(server.Do("TIME"), &seconds, &micros); err != nil {
		t.Fatal(err)
	}
	return time.Unix(seconds, micros*1000)
}

// A control plane whose clock is an hour off ends bans and orders by the store's clock. It ends
// none that other replicas have given, and reports the wrong clock.
func TestEndsGoByTheStoresClock(t *testing.T) {
	clock := redistest.NewClock(t)
	for off, words := range map[time.Duration]string{
		time.Hour: "behind the store's", -time.Hour: "ahead of the store's",
	} {
		clock.Set(off)
		server := clock.Start()
		p := start(t, "", server.URL())
		date := p.until("/readyz/store", 200, words).header.Get("Date")
		now := storeTime(t, server)
		// The command line makes the end of --for of the time of an answer.
		if told, err := http.ParseTime(date); err != nil || now.Sub(told).Abs() > time.Minute {
			t.Errorf("%v: an answer is of %s, and it is %v", off, date, now)
		}
		end := func(after time.Duration) string { return now.Add(after).UTC().Format(time.RFC3339) }
		if a := p.do("PUT", "/v1/policyset", []byte(consumerSet), "If-Match", "*"); a.status != 200 {
			t.Fatalf("%d %s", a.status, a.body)
		}
		p.record("alice", fmt.Sprintf(`{"banned": {"expires_at": %q}}`, end(10*time.Minute)))
		if got := p.known("alice"); got != "true false" {
			t.Errorf("%v: alice is banned and bypassed: %s", off, got)
		}
		if got := bans(p.news(0)); got != 1 {
			t.Errorf("%v: nodes hear of %d bans", off, got)
		}
		if a := p.do("PUT", "/v1/consumers/bob", fmt.Appendf(nil, `{"banned": {"expires_at": %q}}`, end(-10*time.Minute)),
			"If-Match", "*", "Content-Type", "application/json"); a.status != http.StatusUnprocessableEntity {
			t.Errorf("%v: a ban that is over is answered %d %s", off, a.status, a.body)
		}
		for _, key := range []string{"one", "two"} {
			a := p.do("POST", "/v1/keys/a/ban?partition=consumer:"+key, fmt.Appendf(nil, `{"reason": "x", "expires_at": %q}`,
				end(10*time.Minute)), "Content-Type", "application/json")
			if a.status != 200 || !strings.Contains(string(a.body), `"ban"`) {
				t.Errorf("%v: a ban of a key is answered %d %s", off, a.status, a.body)
			}
		}
		a := p.do("PUT", "/v1/enforcement", fmt.Appendf(nil,
			`{"orders": [{"state": "off", "reason": "x", "expires_at": %q}]}`, end(10*time.Minute)),
			"If-Match", "*", "Content-Type", "application/json")
		if a.status != 200 || !strings.Contains(a.header.Get("Weir-Clock"), words) {
			t.Errorf("%v: an order is answered %d %s %v", off, a.status, a.body, a.header)
		}
		a = p.do("GET", "/v1/enforcement", nil)
		var got struct{ Orders []struct{ State string } }
		if err := json.Unmarshal(a.body, &got); err != nil || len(got.Orders) != 1 {
			t.Errorf("%v: in force is %s", off, a.body)
		}
		metrics := string(p.do("GET", "/metrics", nil).body)
		for _, want := range []string{"weir_enforcement_bans 2", `weir_clock_ahead_seconds ` + map[bool]string{true: "-3", false: "3"}[off > 0]} {
			if !strings.Contains(metrics, want) {
				t.Errorf("%v: the metrics lack %s", off, want)
			}
		}
		p.stop()
		server.Kill()
	}
}

// Where the clocks agree nothing is said.
func TestAClockThatIsRight(t *testing.T) {
	p := start(t, "", redistest.Start(t).URL())
	a := p.until("/readyz/store", 200)
	if strings.Contains(string(a.body), "clock") || a.header.Get("Weir-Clock") != "" {
		t.Errorf("%s %v", a.body, a.header)
	}
	if got := string(p.do("GET", "/metrics", nil).body); !strings.Contains(got, "weir_clock_ahead_seconds ") {
		t.Error("the metrics do not compare the clocks")
	}
}

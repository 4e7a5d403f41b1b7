package app_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/support/logtest"
	"github.com/weir-proxy/weir/test/support/redistest"
)

// Redis is emptied under two control planes that have given ten thousand bans: all of them come
// back, though both give them back at once, and the log says that they have.
func TestAllBansComeBack(t *testing.T) {
	t.Parallel()
	const batches, each = 10, 1000
	server := redistest.Start(t)
	var logs [2]logtest.Buffer
	var planes [2]*plane
	for i := range planes {
		s := bare(t)
		s.DataDir, s.RedisURL = "", server.URL()
		planes[i] = startWith(t, s, slog.New(slog.NewTextHandler(&logs[i], nil)))
		planes[i].until("/readyz/store", http.StatusOK)
	}
	if a := planes[0].do("PUT", "/v1/policyset", []byte(consumerSet), "If-Match", "*"); a.status != http.StatusOK {
		t.Fatalf("%s", a.body)
	}
	<-planes[1].poll(0) // Until it has read the policy set.
	for batch := range batches {
		var items []string
		for i := range each {
			items = append(items, fmt.Sprintf(`{"id": "c%d-%d", "banned": {"reason": "floods"}}`, batch, i))
		}
		a := planes[batch%2].do("POST", "/v1/consumers", []byte(`{"consumers": [`+strings.Join(items, ",")+`]}`),
			"If-Match", "*", "Content-Type", "application/json")
		if a.status != http.StatusOK {
			t.Fatalf("%d %s", a.status, a.body)
		}
	}
	count := func() string { return strings.TrimSpace(server.Do("ZCARD", "weir:{consumers}:banned")) }
	want := fmt.Sprintf(":%d", batches*each)
	if got := count(); got != want {
		t.Fatalf("%s bans are stored, want %s", got, want)
	}
	time.Sleep(time.Second) // Until both have read them.
	server.Do("FLUSHALL")
	for deadline := time.Now().Add(30 * time.Second); count() != want; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s bans have come back, want %s\n%s\n%s", count(), want, logs[0].String(), logs[1].String())
		}
	}
	both := ""
	for deadline := time.Now().Add(30 * time.Second); !strings.Contains(both, "had lost changes of consumers"); {
		if time.Now().After(deadline) {
			t.Fatalf("the logs do not say so:\n%s", both)
		}
		time.Sleep(10 * time.Millisecond)
		both = logs[0].String() + logs[1].String()
	}
}
